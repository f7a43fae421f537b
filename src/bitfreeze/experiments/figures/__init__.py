"""Figures of stored runs, by name: `bitfreeze figure`."""

from . import ablation, accuracy, capacity, extra_bits, games, heatmaps, tradeoff, workflow
from .registry import Drawing, FigureRecord, draw, figures, image, save

__all__ = [
    "Drawing", "FigureRecord", "ablation", "accuracy", "capacity", "draw", "extra_bits", "figures", "games", "heatmaps",
    "image", "save", "tradeoff", "workflow",
]  # fmt: skip
