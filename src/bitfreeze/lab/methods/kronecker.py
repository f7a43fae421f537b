"""Kronecker products as the precision of a layer's weights.

A layer's joined matrix W = [w b] is [g, o, i], as in ``bitfreeze.fisher.factors``. The precision of its entries is the
Kronecker product of ``outputs`` [g, o, o] and ``inputs`` [g, i, i], so precision times W is outputs @ W @ inputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Kronecker:
    """A Kronecker product of two symmetric matrices for each group."""

    outputs: Tensor
    inputs: Tensor

    @classmethod
    def identity(cls, shape: tuple[int, int, int], scale: float, like: Tensor) -> "Kronecker":
        """``scale`` times the identity, for a joined matrix of this shape."""
        groups, outputs, inputs = shape
        sides = (torch.eye(width).to(like).mul(scale**0.5).repeat(groups, 1, 1) for width in (outputs, inputs))
        return cls(*sides)

    def times(self, matrix: Tensor) -> Tensor:
        return self.outputs @ matrix @ self.inputs

    def inverse(self) -> "Kronecker":
        """The inverse, computed in double precision. Both sides must be positive definite."""
        return Kronecker(*(_inverse(side) for side in (self.outputs, self.inputs)))

    @property
    def trace(self) -> Tensor:
        """Trace of the product for each group."""
        return _trace(self.outputs) * _trace(self.inputs)

    @property
    def nbytes(self) -> int:
        return self.outputs.nbytes + self.inputs.nbytes


def sum_by_traces(a: Kronecker, b: Kronecker) -> Kronecker:
    """(A + pi A') x (B + B' / pi) for inputs A, A' and outputs B, B', pi = sqrt(tr A tr B' / (tr A' tr B)).

    It holds two products more than the sum, A' x B and A x B', so it is too large: by two for equal a and b. A group in
    which ``b`` is 0 keeps ``a``.
    """
    pi = (_trace(a.inputs) * _trace(b.outputs) / (_trace(b.inputs) * _trace(a.outputs))).sqrt()[:, None, None]
    positive = (b.trace > 0)[:, None, None]
    return Kronecker(
        torch.where(positive, a.outputs + b.outputs / pi, a.outputs),
        torch.where(positive, a.inputs + b.inputs * pi, a.inputs),
    )


def _trace(side: Tensor) -> Tensor:
    return side.diagonal(dim1=-2, dim2=-1).sum(-1)


def _inverse(side: Tensor) -> Tensor:
    inverse: Tensor = torch.cholesky_inverse(torch.linalg.cholesky(side.double()))
    return inverse.to(side.dtype)
