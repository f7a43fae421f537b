"""Supervised training: the loop, the schedule, evaluation."""

from .evaluation import Accuracies, accuracies, accuracy
from .loop import Epoch, Training
from .nats import nats
from .parallel import share_random_state
from .placement import placed, placed_data
from .schedule import Plateau, Settings

__all__ = [
    "Accuracies", "Epoch", "Plateau", "Settings", "Training", "accuracies", "accuracy", "nats", "placed", "placed_data",
    "share_random_state",
]  # fmt: skip
