"""Data that the package carries."""

from .digits import load_digits

__all__ = ["load_digits"]
