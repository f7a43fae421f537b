"""Statistics of layers that ``estimate`` fills in the same pass as the Fisher, from the factors of each layer.

A statistic adds up ``totals`` over samples. At the end they are summed over ranks, once, and ``samples`` is known.
Index letters: see registry.py and factors.py. All matrices are like the joined one, [W b], of each group.
"""

import torch
from torch import Tensor, nn

from ..model.ranks import Ranks
from .factors import Factors, joined_like, joined_shape
from .moments import (
    POSITIONS,
    SAMPLES_IN_FULL,
    Directions,
    Moment,
    SampledMoment,
    SquareMoment,
    chosen_positions,
)

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


class ReachedPositions(Statistic):
    """Number of positions, over all samples, that a gradient reaches in some output, for each group.

    These are the positions whose inputs take part in ``SecondMoments``.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.totals["reached"] = torch.zeros(self.shape[0], dtype=torch.float64, device=self.like["device"])

    def add(self, factors: Factors) -> None:
        if factors.last:
            self.totals["reached"] += factors.reached_by(slice(None)).sum((0, 2))


class SecondMoments(Statistic):
    """Second moments of inputs and of output gradients: sums over positions, means over samples, never centred.

    Positions whose gradient is zero in all outputs of a group are left out of the inputs' moment of this group, so
    masked tokens do not count. With ``labels="exact"`` an input counts once, an output gradient once a label, with the
    label's probability.

    Of samples with more than 32 positions, after the first 64 samples, 32 take part, chosen at random among those that
    count, with the weight of all. A side that is wider than ``widest`` keeps at most ``rows`` of its rows, chosen at
    random, and no square matrix.

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
        in_full = len(range(numbers.start, min(numbers.stop, SAMPLES_IN_FULL), numbers.step))
        if factors.positions <= POSITIONS:
            in_full = factors.rows
        for rows in factors.slices():
            for part in (slice(rows.start, min(rows.stop, in_full)), slice(max(rows.start, in_full), rows.stop)):
                if part.start < part.stop:
                    self._add(factors, part, numbers[part], some=part.start >= in_full)

    def _add(self, factors: Factors, rows: slice, numbers: range, some: bool) -> None:
        """Add a slice of samples: all positions, or ``some`` of each sample with the weight of all."""
        reached = factors.reached_by(rows)
        alive = reached if factors.reached is None else (factors.deltas[rows] != 0).any(-1)
        if some and isinstance(self.outputs, SquareMoment):
            places, weights = chosen_positions(alive, numbers)
            self.outputs.add_some(factors.some_deltas(rows, places), weights)
        else:
            self.outputs.add(factors.deltas[rows], alive, numbers, factors.score)
        if factors.last and some and isinstance(self.inputs, SquareMoment):
            places, weights = chosen_positions(reached, numbers)
            self.inputs.add_some(factors.some_inputs(rows, places), weights)
        elif factors.last:
            self.inputs.add(factors.inputs(rows), reached, numbers, 0)

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
