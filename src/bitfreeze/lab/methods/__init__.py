"""Methods of continual learning behind one small interface. Each file here registers its own."""

from ..registry import import_all
from .method import Method, Record, adam
from .registry import make_method, methods, register_method

__all__ = ["Method", "Record", "adam", "make_method", "methods", "register_method"]

import_all(__name__, __path__)
