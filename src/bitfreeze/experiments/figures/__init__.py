"""Figures of stored runs, by name: `bitfreeze figure`."""

from . import ablation, accuracy, capacity, extra_bits, heatmaps, rewards, tradeoff, workflow
from .registry import Drawing, FigureRecord, draw, figures, image, save

__all__ = [
    "Drawing", "FigureRecord", "ablation", "accuracy", "capacity", "draw", "extra_bits", "figures", "heatmaps", "image",
    "rewards", "save", "tradeoff", "workflow",
]  # fmt: skip
