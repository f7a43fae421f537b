"""Diagonal Fisher of a layer in turned coordinates, and of what they leave out. Index letters: see registry.py."""

import torch
from torch import Tensor, nn

from .factors import Factors
from .moments import unit_interval
from .statistics import Statistic

REST_IN_FULL = 500  # samples that all count for the rest; after them sample n counts with the chance 500 / n


class TurnedFisher(Statistic):
    """Diagonal Fisher of the joined matrix in turned coordinates W' = V^T W U, and of what they leave out.

    With G_n the gradient of sample n, the totals are sums over samples of squares, entry by entry:

        turned [g, ko, ki]   (V^T G_n U)^2
        rest [g, o, i]       (G_n - V V^T G_n U U^T)^2, if ``rest`` and if U or V do not span everything

    The rest takes most of the time and needs the fewest digits. So after the first 500 samples, sample n counts for it
    with the chance 500 / n, and then n / 500 times.

    Args:
        layer: the layer.
        u: directions of inputs [g, i, ki] with orthonormal columns; None for the inputs as they are.
        v: directions of outputs [g, o, ko] with orthonormal columns; None for the outputs as they are.
        rest: whether to add up ``rest`` too.
    """

    def __init__(self, layer: nn.Module, u: Tensor | None, v: Tensor | None, rest: bool = False) -> None:
        super().__init__(layer)
        groups, outputs, inputs = self.shape
        self.u, self.v = (None if turn is None else turn.to(**self.like) for turn in (u, v))
        _require_directions("u", self.u, groups, inputs)
        _require_directions("v", self.v, groups, outputs)
        sizes = outputs if self.v is None else self.v.shape[-1], inputs if self.u is None else self.u.shape[-1]
        self.totals["turned"] = torch.zeros(groups, *sizes, **self.like)
        self.all_outputs, self.all_inputs = sizes[0] == outputs, sizes[1] == inputs
        if rest and not (self.all_outputs and self.all_inputs):
            self.totals["rest"] = torch.zeros(groups, outputs, inputs, **self.like)

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
            if "rest" in self.totals:
                x, x_u, delta, delta_v = _with_rest(factors, rows, (x, x_u), (delta, delta_v))
                for left, right in _rest_products(x, self._inside(x, x_u), delta, self._delta_inside(delta, delta_v)):
                    self.totals["rest"].baddbmm_(left.mT, right)
        if "rest" in self.totals:
            self.totals["rest"].clamp_(min=0)

    def _add_turned_first(self, factors: Factors) -> None:
        """Turn x and delta at each position, then sum over positions."""
        for rows in factors.slices(self._floats(factors.positions)):
            x, delta = factors.inputs(rows).transpose(0, 1), factors.deltas[rows].transpose(0, 1)  # [g, n, l, ...]
            x_u, delta_v = _times(x, self.u), _times(delta, self.v)
            _add_squares(self.totals["turned"], delta_v.mT @ x_u)
            if "rest" in self.totals:
                x, x_u, delta, delta_v = _with_rest(factors, rows, (x, x_u), (delta, delta_v))
                x_in, delta_in = self._inside(x, x_u), self._delta_inside(delta, delta_v)
                if self.all_outputs:
                    gradient = delta.mT @ (x - x_in)
                elif self.all_inputs:
                    gradient = (delta - delta_in).mT @ x
                else:
                    gradient = delta.mT @ x
                    gradient.flatten(0, 1).baddbmm_(delta_in.mT.flatten(0, 1), x_in.flatten(0, 1), alpha=-1)
                _add_squares(self.totals["rest"], gradient)

    def _add_turned_last(self, factors: Factors) -> None:
        """Sum over positions, then turn the gradient of each sample."""
        for rows in factors.slices(self._floats(0)):
            gradient = factors.deltas[rows].transpose(0, 1).mT @ factors.inputs(rows).transpose(0, 1)  # [g, n, o, i]
            inside = _times(gradient, self.u)  # [g, n, o, ki]
            turned = inside if self.v is None else self.v.mT.unsqueeze(1) @ inside
            if "rest" in self.totals:
                gradient, inside, part = _with_rest(factors, rows, (), (gradient, inside, turned))
                if self.v is not None and not self.all_outputs:
                    inside = self.v.unsqueeze(1) @ part
                _add_squares(self.totals["rest"], _minus_back(gradient, inside, self.u))
            _add_squares(self.totals["turned"], turned)

    def _inside(self, x: Tensor, x_u: Tensor) -> Tensor:
        """The part of x within the directions; x itself where they are complete."""
        return x if self.all_inputs else _back(x_u, self.u)

    def _delta_inside(self, delta: Tensor, delta_v: Tensor) -> Tensor:
        return delta if self.all_outputs else _back(delta_v, self.v)

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
        if "rest" in self.totals:  # the rest needs the way back too
            both = not (self.all_outputs or self.all_inputs)
            u, v = u * (not self.all_inputs), v * (not self.all_outputs)
            first += positions * (u + v + (2 if both else 1) * outputs * inputs)
            last += outputs * u + v * ki
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


def _with_rest(factors: Factors, rows: slice, inputs: tuple[Tensor, ...], deltas: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors [g, n, ...] of the samples of a slice that count for the rest.

    ``deltas`` are scaled by the root of how often a sample counts, so that its squared gradient counts that often.
    """
    numbers = factors.numbers[rows] if factors.numbers is not None else range(0)
    if not numbers or numbers[-1] < REST_IN_FULL:
        return [*inputs, *deltas]
    number = torch.tensor(numbers, dtype=torch.float64)
    chance = (REST_IN_FULL / number).clamp_(max=1)
    chosen = (unit_interval(torch.tensor(numbers)) < chance).nonzero().squeeze(1)
    scale = chance[chosen].rsqrt_().to(deltas[0])
    chosen = chosen.to(scale.device)
    some = [tensor.index_select(1, chosen) for tensor in (*inputs, *deltas)]
    for tensor in some[len(inputs) :]:
        tensor.mul_(scale.view(-1, *(1,) * (tensor.ndim - 2)))
    return some


def _rest_products(x: Tensor, x_in: Tensor, delta: Tensor, delta_in: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pairs whose products add up to (delta x^T - delta_in x_in^T)^2, entry by entry.

    With x_out = x - x_in the difference is delta_out x^T + delta_in x_out^T. These terms are as small as the result,
    unlike those of the plain square.
    """
    if x_in is x:
        return [((delta - delta_in).square(), x.square())]
    x_out = x - x_in
    if delta_in is delta:
        return [(delta.square(), x_out.square())]
    delta_out = delta - delta_in
    cross = (delta_out * delta_in).mul_(2), x * x_out
    return [(delta_out.square(), x.square()), cross, (delta_in.square(), x_out.square())]


LOOP_ABOVE = 8192  # numbers a sample


def _add_squares(total: Tensor, gradients: Tensor) -> None:
    """total [g, ...] += sum over n of gradients^2, where gradients [g, n, ...] is overwritten."""
    if total[0].numel() <= LOOP_ABOVE:
        total += gradients.square_().sum(1)
        return
    for gradient in gradients.unbind(1):  # a pass over the cache for each sample; sum(1) is slower for long rows
        total.addcmul_(gradient, gradient)
