"""Continual learning with Bit-Level Information Preserving: freeze the bits that a task made certain."""

from . import likelihoods
from .bits import information_gain, quantize
from .blip import BLIP, Consolidation, Rules
from .fisher import diagonal_fisher

__version__ = "0.1.0"

__all__ = ["BLIP", "Consolidation", "Rules", "diagonal_fisher", "information_gain", "likelihoods", "quantize"]
