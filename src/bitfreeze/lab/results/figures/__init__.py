"""Figures of stored runs, by name: `bitfreeze figure`. Each file here registers its own."""

from ...registry import import_all
from .registry import Drawing, FigureRecord, draw, figures, image, save

__all__ = ["Drawing", "FigureRecord", "draw", "figures", "image", "save"]

import_all(__name__, __path__)
