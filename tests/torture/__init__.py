"""Attacks on the library and the laboratory, seeded and counted: ``make torture``, in short in ``make test``."""
