"""The method: the BLIP object, its rules, the state of each tensor, attachment to optimizers, the end of a task."""

from .blip import BLIP
from .consolidation import Consolidation
from .protecting import protect, save_protection
from .rules import Rules

__all__ = ["BLIP", "Consolidation", "Rules", "protect", "save_protection"]
