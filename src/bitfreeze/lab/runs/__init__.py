"""Runs: settings, kinds of training, events, files, checkpoints, and the run itself."""

# importing a kind of training registers it
from . import language, reinforcement, supervised  # noqa: F401
