"""Diagonal Fisher of a layer in turned coordinates, and of what they leave out. Index letters: see registry.py."""

import torch
from torch import Tensor, nn

from .factors import Factors
from .moments import unit_interval
from .statistics import Statistic

OTHERS_IN_FULL = 500  # samples that all count for the other parts; after them sample n counts with the chance 500 / n


class TurnedFisher(Statistic):
    """Diagonal Fisher of the joined matrix in turned coordinates, and of what they leave out.

    With G_n the gradient of sample n, the totals are sums over samples of squares, entry by entry:

        turned [g, ko, ki]     (V^T G_n U)^2
        by_output [g, o, ki]   ((G_n - V V^T G_n) U)^2, if ``others`` and if V does not span everything
        rest [g, o, i]         (G_n - G_n U U^T)^2, if ``others`` and if U does not span everything

    The others take most of the time and need the fewest digits. So after the first 500 samples, sample n counts for
    them with the chance 500 / n, and then n / 500 times.

    Args:
        layer: the layer.
        u: directions of inputs [g, i, ki] with orthonormal columns; None for the inputs as they are.
        v: directions of outputs [g, o, ko] with orthonormal columns; None for the outputs as they are.
        others: whether to add up ``by_output`` and ``rest`` too.
    """

    def __init__(self, layer: nn.Module, u: Tensor | None, v: Tensor | None, others: bool = False) -> None:
        super().__init__(layer)
        groups, outputs, inputs = self.shape
        self.u, self.v = (None if turn is None else turn.to(**self.like) for turn in (u, v))
        _require_directions("u", self.u, groups, inputs)
        _require_directions("v", self.v, groups, outputs)
        ki, ko = inputs if self.u is None else self.u.shape[-1], outputs if self.v is None else self.v.shape[-1]
        self.totals["turned"] = torch.zeros(groups, ko, ki, **self.like)
        self.has_by_output, self.has_rest = others and ko < outputs, others and ki < inputs
        if self.has_by_output:
            self.totals["by_output"] = torch.zeros(groups, outputs, ki, **self.like)
        if self.has_rest:
            self.totals["rest"] = torch.zeros(groups, outputs, inputs, **self.like)

    @property
    def has_others(self) -> bool:
        return self.has_by_output or self.has_rest

    def add(self, factors: Factors) -> None:
        if factors.positions == 1:
            self._add_single(factors)
        elif self._turn_first(factors.positions):
            self._add_turned_first(factors)
        else:
            self._add_turned_last(factors)

    def _add_single(self, factors: Factors) -> None:
        """With one position G_n is a product of two vectors, so sums of squares are products of squares."""
        for rows in factors.slices(floats=2 * sum(self.shape[1:])):
            x = factors.inputs(rows).squeeze(2).transpose(0, 1)  # [g, n, i]
            delta = factors.deltas[rows].squeeze(2).transpose(0, 1)  # [g, n, o]
            x_u, delta_v = _times(x, self.u), _times(delta, self.v)
            self.totals["turned"].baddbmm_(delta_v.square().mT, x_u.square())
            if not self.has_others:
                continue
            x, x_u, delta, delta_v = _for_others(factors, rows, (x, x_u), (delta, delta_v))
            if self.has_by_output:
                self.totals["by_output"].baddbmm_((delta - _back(delta_v, self.v)).square().mT, x_u.square())
            if self.has_rest:
                self.totals["rest"].baddbmm_(delta.square().mT, (x - _back(x_u, self.u)).square())

    def _add_turned_first(self, factors: Factors) -> None:
        """Turn x and delta at each position, then sum over positions."""
        for rows in factors.slices(self._floats(factors.positions)):
            x, delta = factors.inputs(rows).transpose(0, 1), factors.deltas[rows].transpose(0, 1)  # [g, n, l, ...]
            x_u, delta_v = _times(x, self.u), _times(delta, self.v)
            _add_squares(self.totals["turned"], delta_v.mT @ x_u)
            if not self.has_others:
                continue
            x, x_u, delta, delta_v = _for_others(factors, rows, (x, x_u), (delta, delta_v))
            if self.has_by_output:
                _add_squares(self.totals["by_output"], (delta - _back(delta_v, self.v)).mT @ x_u)
            if self.has_rest:
                _add_squares(self.totals["rest"], delta.mT @ (x - _back(x_u, self.u)))

    def _add_turned_last(self, factors: Factors) -> None:
        """Sum over positions, then turn the gradient of each sample."""
        for rows in factors.slices(self._floats(0)):
            gradient = factors.deltas[rows].transpose(0, 1).mT @ factors.inputs(rows).transpose(0, 1)  # [g, n, o, i]
            along = _times(gradient, self.u)  # [g, n, o, ki]
            turned = along if self.v is None else self.v.mT.unsqueeze(1) @ along
            if self.has_others:
                gradient, along, part = _for_others(factors, rows, (), (gradient, along, turned))
                if self.has_by_output and self.v is not None:
                    _add_squares(self.totals["by_output"], along - self.v.unsqueeze(1) @ part)
                if self.has_rest:
                    _add_squares(self.totals["rest"], _minus_back(gradient, along, self.u))
            _add_squares(self.totals["turned"], turned)

    def _floats(self, positions: int) -> int:
        """Numbers that a sample takes beside its factors: gradients, and factors turned there and back."""
        groups, outputs, inputs = self.shape
        return 2 * groups * (outputs * inputs + positions * (outputs + inputs))

    def _turn_first(self, positions: int) -> bool:
        """Whether turning at each position takes fewer multiplications than turning the gradient of each sample."""
        _, outputs, inputs = self.shape
        _, ko, ki = self.totals["turned"].shape
        u = inputs * ki if self.u is not None else 0
        v = outputs * ko if self.v is not None else 0
        first = positions * (u + v + ko * ki)
        last = positions * outputs * inputs + outputs * u + v * ki
        if self.has_by_output:
            first += positions * (v + outputs * ki)
            last += v * ki
        if self.has_rest:
            first += positions * (u + outputs * inputs)
            last += outputs * u
        return first < last


def _require_directions(name: str, turn: Tensor | None, groups: int, width: int) -> None:
    if turn is not None and (turn.ndim != 3 or turn.shape[:2] != (groups, width) or turn.shape[2] > width):
        raise ValueError(
            f"{name} must have the shape [{groups}, {width}, k] with k of at most {width}, got {list(turn.shape)}"
        )


def _times(rows: Tensor, turn: Tensor | None) -> Tensor:
    """Rows [g, ..., width] in turned coordinates, by one product for each group."""
    return rows if turn is None else (rows.flatten(1, -2) @ turn).view(*rows.shape[:-1], turn.shape[-1])


def _back(rows: Tensor, turn: Tensor | None) -> Tensor:
    """Turned rows in the coordinates of the layer."""
    return rows if turn is None else _times(rows, turn.mT)


def _minus_back(total: Tensor, rows: Tensor, turn: Tensor | None) -> Tensor:
    """Total (overwritten) minus turned rows in the coordinates of the layer."""
    if turn is None:
        return total.sub_(rows)
    total.flatten(1, -2).baddbmm_(rows.flatten(1, -2), turn.mT, alpha=-1)
    return total


def _for_others(factors: Factors, rows: slice, inputs: tuple[Tensor, ...], deltas: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors [g, n, ...] of the samples of a slice that count for the other parts.

    ``deltas`` are scaled by the root of how often a sample counts, so that its squared gradient counts that often.
    """
    numbers = factors.numbers[rows] if factors.numbers is not None else range(0)
    if not numbers or numbers[-1] < OTHERS_IN_FULL:
        return [*inputs, *deltas]
    number = torch.tensor(numbers, dtype=torch.float64)
    chance = (OTHERS_IN_FULL / number).clamp_(max=1)
    chosen = (unit_interval(torch.tensor(numbers)) < chance).nonzero().squeeze(1)
    scale = chance[chosen].rsqrt_().to(deltas[0])
    chosen = chosen.to(scale.device)
    some = [tensor.index_select(1, chosen) for tensor in (*inputs, *deltas)]
    for tensor in some[len(inputs) :]:
        tensor.mul_(scale.view(-1, *(1,) * (tensor.ndim - 2)))
    return some


LOOP_ABOVE = 8192  # numbers a sample


def _add_squares(total: Tensor, gradients: Tensor) -> None:
    """total [g, ...] += sum over n of gradients^2, where gradients [g, n, ...] is overwritten."""
    if total[0].numel() <= LOOP_ABOVE:
        total += gradients.square_().sum(1)
        return
    for gradient in gradients.unbind(1):  # a pass over the cache for each sample; sum(1) is slower for long rows
        total.addcmul_(gradient, gradient)
