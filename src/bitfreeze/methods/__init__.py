"""Methods of continual learning behind one small interface."""

from . import acl, acl_r, blip, finetuning, hat, reference  # noqa: F401 - each registers its methods
from .method import Batch, Method, Record
from .registry import make_method, methods, register_method

__all__ = ["Batch", "Method", "Record", "make_method", "methods", "register_method"]
