"""Continual learning with Bit-Level Information Preserving: freeze the bits that a task made certain."""

from . import likelihoods
from .bits import information_gain, quantize
from .blip import BLIP
from .consolidation import Consolidation
from .fisher import diagonal_fisher
from .rules import Rules

__all__ = ["BLIP", "Consolidation", "Rules", "diagonal_fisher", "information_gain", "likelihoods", "quantize"]
