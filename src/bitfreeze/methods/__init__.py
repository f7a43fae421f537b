"""Methods of continual learning behind one small interface."""

from . import agem, blip, ewc, finetuning, imm, lwf, reference  # noqa: F401 - each registers its methods
from . import blip, finetuning, reference, ucb, vcl  # noqa: F401 - each registers its methods
from .method import Batch, Method, Record
from .registry import make_method, methods, register_method

__all__ = ["Batch", "Method", "Record", "make_method", "methods", "register_method"]
