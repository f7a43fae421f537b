"""Errors of runs on disk."""


class RunRefused(RuntimeError):
    """The run cannot be started as asked; what is on disk stays as it is."""


class RunDamaged(ValueError):
    """A file of a run cannot be read, or is not what the run wrote."""
