"""A layer whose weight W stays and whose change is a sum of products s B A: low-rank adapters, held along directions.

The change D = sum s B A of rank r lies wholly in the span of the layer's directions U, V and of at most r more on each
side, which the factors use outside of U and V. In these coordinates D is a small matrix, and its Fisher is known: along
U and V it was measured, along the others it follows from the Fisher by output and that of entries. The intervals are
those of the merged weight, |D'| <= sqrt(F_0 / F').

A matrix that is clamped entry by entry has a higher rank than D. So A is moved: each input direction for itself, by
least squares towards the clamped matrix, weighted with the Fisher, and what is still outside is scaled in. Input
directions that are full lose their part of A. Those that are free, and B, stay as they are.

Index letters: o output, i input, r rank of all terms together, k output direction, j input direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .held_tensor import radius_of
from .turning import Turning

SWEEPS = 3  # of least squares: more come closer to the clamped matrix, and change little
LEAST = 1e-30  # below the square of any weight
SLACK = 1e-4  # of a radius: rounding of a change that was moved to the edge
ROUNDING = 32  # times the precision, below which a part of a factor is none


@dataclass(frozen=True)
class Term:
    """One product of the sum: scale times up [o, r] times down [r, i]. Both are views of parameters."""

    down: Tensor
    up: Tensor
    scale: float
    learns: bool = True  # the factors of others stay as they are

    def __post_init__(self) -> None:
        assert self.up.shape[1] == self.down.shape[0]


@dataclass
class Coordinates:
    """Factors of a change in a layer's directions and those that they use besides: D = V (up down) U^T."""

    up: Tensor  # [k, r]
    down: Tensor  # [r, j]
    outputs: Tensor  # V [o, k]
    inputs: Tensor  # U [i, j]
    fisher: Tensor  # [k, j]

    @property
    def change(self) -> Tensor:
        return self.up @ self.down


@dataclass
class LowRankLayer:
    """Directions of a layer's weight, without groups, and the Fisher of its entries by sums over rows and columns."""

    turning: Turning
    rows: Tensor  # [o]
    columns: Tensor  # [i]
    prior: float

    def follow(self, like: Tensor) -> None:
        """Bring all tensors to the device and the precision of a factor."""
        if self.rows.dtype != like.dtype or self.rows.device != like.device:
            self.turning = self.turning.to(like)
            self.rows, self.columns = self.rows.to(like), self.columns.to(like)

    def coordinates(self, terms: Sequence[Term]) -> Coordinates:
        """The sum of these terms, whose scales are in the factor ``up``."""
        self.follow(terms[0].up)
        down = torch.cat([term.down for term in terms])
        up = torch.cat([term.scale * term.up for term in terms], 1)
        outputs, up = _extended(self.turning.outputs[0], up, self.rows)
        inputs, down = _extended(self.turning.inputs[0], down.mT, self.columns)
        fisher = torch.outer(outputs.square().mT @ self.rows, inputs.square().mT @ self.columns)
        measured, by_output = self.turning.fisher[0], self.turning.by_output
        k, j = measured.shape
        fisher[:k, :j] = measured
        if by_output is not None:
            fisher[k:, :j] = outputs[:, k:].square().mT @ by_output[0].to(fisher)
        return Coordinates(up, down.mT, outputs, inputs, fisher)

    @torch.no_grad()
    def hold_(self, terms: Sequence[Term], width: float) -> float:
        """Move the factors A of terms that learn so that the sum lies in its intervals. A second call changes nothing.

        Returns the nats a sample that the sum costs. Terms that do not learn must lie in the intervals without others.
        """
        if not all(torch.isfinite(factor).all() for term in terms for factor in (term.down, term.up)):
            raise ValueError(
                "adapters must be finite, got NaN or infinite entries; restore the last good ones, and look at the "
                "learning rate"
            )
        found = self.coordinates(terms)
        radius = radius_of(found.fisher, self.prior * width**2)
        if (found.change.abs() > radius * (1 + SLACK)).any():
            found = self._hold_(terms, found, radius)
        return _cost(found)

    def cost(self, terms: Sequence[Term]) -> float:
        """Nats a sample that the sum of these terms costs."""
        return _cost(self.coordinates(terms))

    def _hold_(self, terms: Sequence[Term], found: Coordinates, radius: Tensor) -> Coordinates:
        learns = torch.cat([torch.full((len(term.down),), term.learns) for term in terms]).to(found.up.device)
        stays, up = found.up[:, ~learns] @ found.down[~learns], found.up[:, learns]
        down, weight = found.down[learns], radius.square().reciprocal()  # a weight of 0 where an interval has no end
        for _ in range(SWEEPS):
            change = stays + up @ down
            down = down + _solved(up, weight, change.clamp(-radius, radius) - change)
        down = down * _fitting(stays, up @ down, radius)
        moved, at = down @ found.inputs.mT, 0
        for term in terms:
            if term.learns:
                term.down.copy_(moved[at : at + len(term.down)])
                at += len(term.down)
        return replace(found, down=found.down.index_put((learns,), down))


def _cost(found: Coordinates) -> float:
    return float(0.5 * (found.fisher * found.change.square()).sum())


def without_bias(turning: Turning) -> Turning:
    """Directions of a layer's weight alone, of directions of its weight and bias: those that its inputs use.

    They are the axes of the inputs' second moment without the constant 1. Another basis of the same span would mix
    directions that are needed with free ones, and the Fisher along it would be wrong by its diagonal alone.
    """
    own = turning.inputs[:, :-1].double()
    span = torch.linalg.svd(own, full_matrices=False)[0]
    moment = span.mT @ (own * turning.input_energy[:, None].double().sqrt())  # times its transpose
    inputs = (span @ torch.linalg.svd(moment, full_matrices=False)[0]).to(turning.inputs)
    joined = torch.nn.functional.pad(inputs, (0, 0, 0, 1))
    squares = (turning.inputs.mT @ joined).square()
    energy, by_output = (turning.input_energy[:, None] @ squares)[:, 0], turning.by_output
    return replace(
        turning,
        inputs=inputs,
        input_energy=energy,
        fisher=turning.fisher @ squares,
        by_output=None if by_output is None else by_output.to(squares) @ squares,
    )


def _extended(directions: Tensor, factor: Tensor, fisher: Tensor) -> tuple[Tensor, Tensor]:
    """Directions [n, k] and those that a factor [n, r] uses besides them, and the factor in all of them, [k', r].

    The additional ones are the axes of the Fisher [n] of entries, so that they do not turn while a factor is moved
    within them.
    """
    inside = directions.mT @ factor
    if directions.shape[0] == directions.shape[1]:
        return directions, inside
    more, sizes, _ = torch.linalg.svd(factor - directions @ inside, full_matrices=False)
    more = more[:, sizes > ROUNDING * torch.finfo(factor.dtype).eps * torch.linalg.norm(factor)]
    more = torch.linalg.qr(more - directions @ (directions.mT @ more))[0]  # because rounding leaves parts along them
    more = more @ torch.linalg.eigh(more.mT @ (fisher[:, None] * more))[1]
    return torch.cat([directions, more], 1), torch.cat([inside, more.mT @ factor])


def _solved(up: Tensor, weight: Tensor, excess: Tensor) -> Tensor:
    """The step X [r, j] of each column by weighted least squares: up X is near the excess [k, j]."""
    gram = torch.einsum("kr,kj,ks->jrs", up, weight, up)
    right = ((weight * excess).mT @ up).unsqueeze(-1)
    size = gram.diagonal(dim1=1, dim2=2).mean(1)
    ridge = 10 * torch.finfo(up.dtype).eps * size.clamp(min=LEAST)
    gram = gram + ridge[:, None, None] * torch.eye(up.shape[1], dtype=up.dtype, device=up.device)
    step: Tensor = torch.linalg.solve(gram, right)
    return step.squeeze(-1).mT


def _fitting(stays: Tensor, moves: Tensor, radius: Tensor) -> Tensor:
    """The largest factor up to 1 of each column of ``moves`` with which the sum is inside."""
    room = torch.where(moves > 0, radius - stays, radius + stays).clamp(min=0)
    return (room / moves.abs().clamp(min=LEAST)).amin(0).clamp(max=1)
