"""Exact diagonal Fisher information: a rule for each kind of layer, two tiers of fallback, and a check of both."""

from . import layers  # noqa: F401 - registers the rules
from .estimation import FisherEstimate, diagonal_fisher, estimate, explain
from .registry import register_rule

__all__ = ["FisherEstimate", "diagonal_fisher", "estimate", "explain", "register_rule"]
