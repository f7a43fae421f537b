"""Methods of continual learning behind one small interface."""

# importing a method registers it
from . import acl, acl_r, agem, blip, ewc, finetuning, hat, imm, lwf, reference, ucb, vcl  # noqa: F401
from .method import Batch, Method, Record
from .registry import make_method, methods, register_method

__all__ = ["Batch", "Method", "Record", "make_method", "methods", "register_method"]
