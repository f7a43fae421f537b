"""Filling the statistics of layers in the pass of an estimate.

A layer gets its statistics if it is called once in each forward pass, with samples on the first axis, and if its
factors agree with autograd on the samples of the plan's probe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..model.parameters import Slot, find_parameters
from ..model.ranks import Ranks
from .agreement import agree, first_line
from .factors import Factors, find_factors, joined_parameters, split_joined
from .fallback import single_gradients
from .statistics import Statistic
from .taps import Call, Taps
from .turned_fisher import TurnedFisher

NOT_USED = "not used by forward"

Statistics = Mapping[nn.Module, Sequence[Statistic]]
Deltas = Mapping[nn.Module, Tensor | None]


class Measuring:
    """The statistics of each layer, and for each layer the reason why it gets none, or ''."""

    def __init__(self, model: nn.Module, statistics: Statistics) -> None:
        self.statistics = statistics
        every = {id(module) for module in model.modules()}
        outside = next((layer for layer in statistics if id(layer) not in every), None)
        if outside is not None:
            raise ValueError(
                f"statistics must be of layers of the model, got a {type(outside).__name__} outside it; give submodules"
            )
        slots = find_parameters(model) if statistics else []
        self.by_layer = {layer: _slots_of(layer, slots) for layer in statistics}
        self.reasons = {layer: _why_not(layer, self.by_layer[layer]) for layer in statistics}
        self.untested: set[nn.Module] = set()
        self.reached: dict[nn.Module, Tensor] = {}  # positions that the scores of this batch have reached so far

    @property
    def layers(self) -> list[nn.Module]:
        """Layers that get their statistics, as far as is known."""
        return [layer for layer, reason in self.reasons.items() if not reason]

    @property
    def slots(self) -> list[Slot]:
        """Slots of the parameters whose true gradients the check needs."""
        return [slot for layer in self.layers for slot in self.by_layer[layer]]

    def check(self, taps: Taps, calls: Mapping[nn.Module, Call], deltas: Deltas, truth: Mapping[str, Tensor]) -> None:
        """Compare factors with the true sums of squared gradients, by parameter name."""
        for layer in self.layers:
            known = {name: truth.get(slot.name) for name, slot in self._named(layer)}
            times = len(taps.calls.get(layer, []))
            if times == 0:
                used = any(value is not None for value in known.values())
                self.reasons[layer] = "used outside its module" if used else NOT_USED
            elif times > 1:
                self.reasons[layer] = f"called {times} times"
            elif layer not in calls:
                self.reasons[layer] = "the first axis of its input is not the sample"
            else:
                self.reasons[layer] = self._compare(layer, calls[layer], deltas[layer], known)

    def _compare(self, layer: nn.Module, call: Call, delta: Tensor | None, known: dict[str, Tensor | None]) -> str:
        squares = TurnedFisher(layer, None, None)
        try:
            with torch.no_grad():
                squares.add(_factors(call, delta, call.samples))
        except Exception as error:  # the factors cannot take this layout; the report names the reason
            return f"its factors failed: {first_line(error)}"
        tested = False
        for name, found in split_joined(layer, squares.totals["turned"]).items():
            true = known[name]
            agrees, tried = agree(found, None if true is None else true.clone())
            tested = tested or tried
            if not agrees:
                return f"its factors disagree with autograd on {name}"
        (self.untested.discard if tested else self.untested.add)(layer)
        return ""

    @torch.no_grad()
    def add(
        self, taps: Taps, calls: Mapping[nn.Module, Call], deltas: Deltas, numbers: range, score: int, last: bool
    ) -> None:
        """Add the first samples of a batch, those with ``numbers``, for one score."""
        for layer in self.layers:
            if layer not in calls:
                if taps.calls.get(layer):
                    self.reasons[layer] = "called differently in a later batch"
                continue
            delta = deltas[layer]
            if layer in self.untested and delta is not None and delta.any():
                self.reasons[layer] = "its gradients are zero in the samples that its factors are checked with"
                continue
            factors = _factors(calls[layer], delta, len(numbers))
            factors = replace(factors, score=score, last=last, numbers=numbers)
            factors = replace(factors, reached=self._reached(layer, factors))
            for statistic in self.statistics[layer]:
                statistic.positions = max(statistic.positions, factors.positions)
                statistic.add(factors)
        if last:
            self.reached.clear()

    def refuse_other_uses(self, taps: Taps, score: Tensor) -> None:
        """Refuse layers that were not called in this batch, but whose parameters the score depends on."""
        for layer in self.layers:
            if not taps.calls.get(layer):
                gradients = single_gradients(score, [slot.parameter for slot in self.by_layer[layer]])
                if any(gradient is not None for gradient in gradients):
                    self.reasons[layer] = "used outside its module in a later batch"

    def finish(self, ranks: Ranks, samples: int) -> dict[nn.Module, str]:
        """Sum statistics over ranks. Returns the reason of each layer; those with a reason are left as they are."""
        by_rank = ranks.gather(list(self.reasons.values()))
        for layer, reasons in zip(self.reasons, zip(*by_rank, strict=True), strict=True):
            self.reasons[layer] = next(filter(None, reasons), "")
        for layer in self.layers:
            for statistic in self.statistics[layer]:
                statistic.finish(ranks, samples)
        return self.reasons

    def _named(self, layer: nn.Module) -> list[tuple[str, Slot]]:
        return list(zip(joined_parameters(layer), self.by_layer[layer], strict=True))

    def _reached(self, layer: nn.Module, factors: Factors) -> Tensor | None:
        """Positions that this score or an earlier one of the batch has reached; None if this is the only score."""
        if factors.last and layer not in self.reached:
            return None
        here = factors.reached_by(slice(None))
        self.reached[layer] = here | self.reached[layer] if layer in self.reached else here
        return self.reached[layer]


def _slots_of(layer: nn.Module, slots: Sequence[Slot]) -> list[Slot]:
    if find_factors(layer)[0] is None:
        return []
    return [slot for name in joined_parameters(layer) for slot in slots if (layer, name) in slot.owners]


def _why_not(layer: nn.Module, slots: Sequence[Slot]) -> str:
    make, reason = find_factors(layer)
    if make is None:
        return reason
    shared = next((slot for slot in slots if len(slot.owners) > 1), None)
    if shared is not None:
        return f"'{shared.name}' is held in {len(shared.owners)} places"
    if not all(name in layer._parameters for name in joined_parameters(layer)):
        return "its weight or bias is computed from other parameters"
    return ""


def _factors(call: Call, delta: Tensor | None, rows: int) -> Factors:
    make, _ = find_factors(call.layer)
    assert make is not None
    a = call.a.detach()
    delta = torch.zeros(call.shape, dtype=a.dtype, device=a.device) if delta is None else delta
    return make(call.layer, a[:rows], delta[:rows])
