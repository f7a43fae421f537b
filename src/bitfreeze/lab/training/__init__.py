"""Supervised training: the loop, the schedule, evaluation."""

from .evaluation import accuracy
from .loop import Epoch, Training
from .parallel import share_random_state
from .schedule import Plateau, Settings

__all__ = ["Epoch", "Plateau", "Settings", "Training", "accuracy", "share_random_state"]
