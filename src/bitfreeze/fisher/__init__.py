"""Exact diagonal Fisher information: a rule for each kind of layer, two fallbacks, and a check against autograd."""

from . import layers  # noqa: F401 - registers the rules
from .estimation import FisherEstimate, diagonal_fisher, estimate, explain
from .factors import register_factors
from .registry import register_rule

__all__ = ["FisherEstimate", "diagonal_fisher", "estimate", "explain", "register_factors", "register_rule"]
