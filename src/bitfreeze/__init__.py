"""Continual learning with Bit-Level Information Preserving: freeze the bits that a task made certain."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import likelihoods
    from .bits import information_gain, quantize
    from .blip import BLIP, Consolidation, Rules, protect, save_protection
    from .fisher import diagonal_fisher

__version__ = "0.2.0"

__all__ = [
    "BLIP",
    "Consolidation",
    "Rules",
    "diagonal_fisher",
    "information_gain",
    "likelihoods",
    "protect",
    "quantize",
    "save_protection",
]

_MODULES = ("bits", "blip", "fisher", "likelihoods", "model")


def __getattr__(name: str) -> Any:
    """Import the public names when the first of them is asked for: torch, which they need, keeps a command waiting."""
    if name not in (*__all__, *_MODULES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import bitfreeze.likelihoods
    from bitfreeze.bits import information_gain, quantize
    from bitfreeze.blip import BLIP, Consolidation, Rules, protect, save_protection
    from bitfreeze.fisher import diagonal_fisher

    found = (
        BLIP, Consolidation, Rules, diagonal_fisher, information_gain, bitfreeze.likelihoods, protect, quantize,
        save_protection,
    )  # fmt: skip
    globals().update(zip(__all__, found, strict=True))
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
