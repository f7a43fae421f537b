"""Statistics of layers that ``estimate`` fills in the same pass as the Fisher, from the factors of each layer.

A statistic adds up ``totals`` over samples. At the end they are summed over ranks, once, and ``samples`` is known.
Index letters: see registry.py and factors.py. All matrices are like the joined one, [W b], of each group.
"""

import torch
from torch import Tensor, nn

from ..model.ranks import Ranks
from .factors import Factors, joined_like, joined_shape
from .moments import Directions, Moment, SampledMoment, SquareMoment

WIDEST = 4096
KEPT_ROWS = 2048


class Statistic:
    """A statistic of one layer. Subclasses override ``add``, and what else they need.

    Attributes:
        totals: sums over samples; once the estimate is done, over those of all ranks.
        samples: number of samples, over all ranks; 0 before the estimate is done.
        positions: largest number of positions of a sample on this rank.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.shape = joined_shape(layer)
        self.like = joined_like(layer)
        self.totals: dict[str, Tensor] = {}
        self.samples = 0
        self.positions = 1

    def add(self, factors: Factors) -> None:
        """Add the samples of a batch, for one score."""
        raise NotImplementedError

    def finish(self, ranks: Ranks, samples: int) -> None:
        """Sum over ranks. All ranks call this together."""
        for total in self.totals.values():
            ranks.sum_(total)
        self.samples = samples

    @property
    def nbytes(self) -> int:
        return sum(total.nbytes for total in self.totals.values())


class MeanInputs(Statistic):
    """Mean of x over samples and positions, [g, i]. All positions count, padded ones too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        groups, _, inputs = self.shape
        self.totals["inputs"] = torch.zeros(groups, inputs, **self.like)
        self.totals["positions"] = torch.zeros((), dtype=torch.float64, device=self.like["device"])

    def add(self, factors: Factors) -> None:
        if factors.last:
            self.totals["positions"] += factors.rows * factors.positions
            for x, _ in factors.chunks():
                self.totals["inputs"] += x.sum((0, 2))

    def mean(self) -> Tensor:
        return self.totals["inputs"] / self.totals["positions"].to(self.like["dtype"])


class SecondMoments(Statistic):
    """Second moments of inputs and of output gradients: sums over positions, means over samples, never centred.

    Positions whose gradient is zero in all outputs of a group are left out of the inputs' moment of this group, so
    masked tokens do not count. With ``labels="exact"`` an input counts once, an output gradient once a label, with the
    label's probability.

    A side that is wider than ``widest`` keeps at most ``rows`` of its rows, chosen at random, and no square matrix.

    Attributes:
        inputs: moment of x; its ``directions(k)`` are those of the sum over samples.
        outputs: moment of delta.
    """

    def __init__(self, layer: nn.Module, widest: int = WIDEST, rows: int = KEPT_ROWS) -> None:
        super().__init__(layer)
        groups, outputs, inputs = self.shape
        self.inputs = self._moment(groups, inputs, widest, rows)
        self.outputs = self._moment(groups, outputs, widest, rows)

    def _moment(self, groups: int, width: int, widest: int, rows: int) -> Moment:
        if width > widest:
            return SampledMoment(groups, width, **self.like, most=rows)
        return SquareMoment(groups, width, **self.like)

    def add(self, factors: Factors) -> None:
        numbers = factors.numbers or range(factors.rows)
        for rows in factors.slices():
            delta = factors.deltas[rows]
            self.outputs.add(delta, (delta != 0).any(-1), numbers[rows], factors.score)
            if factors.last:
                self.inputs.add(factors.inputs(rows), factors.reached_by(rows), numbers[rows], 0)

    def finish(self, ranks: Ranks, samples: int) -> None:
        self.inputs.sum_over(ranks)
        self.outputs.sum_over(ranks)
        self.samples = samples

    def strongest_inputs(self, k: int, earlier: Directions | None = None) -> Directions:
        """Strongest directions of inputs, as (vectors [g, i, k'], values [g, k']).

        Values are means over samples, strongest first. k' is k, or less where there are fewer. ``earlier`` directions
        take part with their values.
        """
        return self._strongest(self.inputs, k, earlier)

    def strongest_outputs(self, k: int, earlier: Directions | None = None) -> Directions:
        """The same for output gradients, with vectors [g, o, k']."""
        return self._strongest(self.outputs, k, earlier)

    def _strongest(self, moment: Moment, k: int, earlier: Directions | None) -> Directions:
        scaled = None if earlier is None else (earlier[0], earlier[1] * self.samples)
        vectors, values = moment.directions(k, scaled)
        return vectors, (values / self.samples).to(vectors)

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.outputs.nbytes


class TurnedFisher(Statistic):
    """Diagonal Fisher of the joined matrix in turned coordinates W' = V^T W U, and of what they leave out.

    With G_n the gradient of sample n, the totals are sums over samples of squares, entry by entry:

        turned [g, ko, ki]   (V^T G_n U)^2
        rest [g, o, i]       (G_n - V V^T G_n U U^T)^2, if ``rest`` and if U or V do not span everything

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
        if rest and sizes != (outputs, inputs):
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
        for x, delta in factors.chunks(floats=2 * sum(self.shape[1:])):
            x, delta = x.squeeze(2).transpose(0, 1), delta.squeeze(2).transpose(0, 1)  # [g, n, i], [g, n, o]
            x_u, delta_v = _times(x, self.u), _times(delta, self.v)
            self.totals["turned"].baddbmm_(delta_v.square().mT, x_u.square())
            if "rest" in self.totals:
                for left, right in _rest_products(x, _back(x_u, self.u), delta, _back(delta_v, self.v)):
                    self.totals["rest"].baddbmm_(left.mT, right)
        if "rest" in self.totals:
            self.totals["rest"].clamp_(min=0)

    def _add_turned_first(self, factors: Factors) -> None:
        """Turn x and delta at each position, then sum over positions."""
        for x, delta in factors.chunks(self._floats(factors.positions)):
            x, delta = x.transpose(0, 1), delta.transpose(0, 1)  # [g, n, l, i], [g, n, l, o]
            x_u, delta_v = _times(x, self.u), _times(delta, self.v)
            if "rest" in self.totals:
                gradient = delta.mT @ x
                _subtract(gradient, _back(delta_v, self.v).mT, _back(x_u, self.u))
                _add_squares(self.totals["rest"], gradient)
            _add_squares(self.totals["turned"], delta_v.mT @ x_u)

    def _add_turned_last(self, factors: Factors) -> None:
        """Sum over positions, then turn the gradient of each sample."""
        for x, delta in factors.chunks(self._floats(0)):
            gradient = delta.transpose(0, 1).mT @ x.transpose(0, 1)  # [g, n, o, i]
            turned = _times(gradient, self.u)
            turned = turned if self.v is None else self.v.mT.unsqueeze(1) @ turned
            if "rest" in self.totals:
                inside = turned if self.v is None else self.v.unsqueeze(1) @ turned
                _subtract_back(gradient, inside, self.u)
                _add_squares(self.totals["rest"], gradient)
            _add_squares(self.totals["turned"], turned)

    def _floats(self, positions: int) -> int:
        """Numbers that a sample takes beside its factors: gradients, and factors turned there and back."""
        groups, outputs, inputs = self.shape
        return 2 * groups * (outputs * inputs + positions * (outputs + inputs))

    def _turn_first(self, positions: int) -> bool:
        """Whether turning at each position takes fewer multiplications than turning the gradient of each sample."""
        _, outputs, inputs = self.shape
        _, ko, ki = self.totals["turned"].shape
        both = 2 if "rest" in self.totals else 1  # the rest needs the way back too
        u = inputs * ki if self.u is not None else 0
        v = outputs * ko if self.v is not None else 0
        first = positions * (both * (u + v) + ko * ki + 2 * (both - 1) * outputs * inputs)
        last = positions * outputs * inputs + both * (outputs * u + v * ki)
        return first < last


def _require_directions(name: str, turn: Tensor | None, groups: int, width: int) -> None:
    if turn is not None and (turn.ndim != 3 or turn.shape[:2] != (groups, width) or turn.shape[2] > width):
        raise ValueError(
            f"{name} must have the shape [{groups}, {width}, k] with k of at most {width}, got {list(turn.shape)}"
        )


def _times(rows: Tensor, turn: Tensor | None) -> Tensor:
    """Rows [g, ..., width] in turned coordinates, by one product for each group."""
    return rows if turn is None else (rows.flatten(1, -2) @ turn).view(*rows.shape[:-1], -1)


def _back(rows: Tensor, turn: Tensor | None) -> Tensor:
    """Turned rows in the coordinates of the layer."""
    return rows if turn is None else _times(rows, turn.mT)


def _subtract_back(total: Tensor, rows: Tensor, turn: Tensor | None) -> None:
    """total -= turned rows in the coordinates of the layer."""
    if turn is None:
        total -= rows
    else:
        total.flatten(1, -2).baddbmm_(rows.flatten(1, -2), turn.mT, alpha=-1)


def _subtract(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total -= left @ right, for each group and sample."""
    total.flatten(0, 1).baddbmm_(left.flatten(0, 1), right.flatten(0, 1), alpha=-1)


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
