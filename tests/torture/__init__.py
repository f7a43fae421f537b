"""Attacks on the library and the laboratory, seeded and counted: ``make torture``, a short form of it in ``make test``."""
