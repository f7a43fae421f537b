"""Comparison of sums of squared gradients with the truth by autograd."""

from torch import Tensor


def agree(found: Tensor, truth: Tensor | None) -> tuple[bool, bool]:
    """Whether two sums of squares agree in each entry, and whether any entry of the true one is not zero.

    The tolerance is 1e-3 of the entry plus 1e-8 of the largest: far above rounding, far below the error of a wrong
    layout. ``found`` holds zeros afterwards, ``truth`` is overwritten.
    """
    if truth is None or not truth.numel():
        agrees = not found.any()
        found.zero_()
        return agrees, False
    largest = truth.max()
    agrees = bool((found.sub_(truth).abs_() <= truth.mul_(1e-3).add_(1e-8 * largest)).all())
    found.zero_()
    return agrees, bool(largest > 0)


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
