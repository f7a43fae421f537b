"""Supervised training: the loop, the schedule, evaluation."""

from .evaluation import accuracy
from .loop import Epoch, Training, TrainingDiverged
from .schedule import Plateau, Settings

__all__ = ["Epoch", "Plateau", "Settings", "Training", "TrainingDiverged", "accuracy"]
