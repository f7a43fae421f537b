"""Sums of squared gradients over the batches of one rank."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..likelihoods import Likelihood
from ..likelihoods.outputs import as_likelihood, look_at_labels, warn_of_probabilities
from ..model.parameters import Slot
from ..model.ranks import Ranks
from .agreement import first_line
from .batches import Places, row_places, to_device
from .fallback import Score, Work, add_by_torch_func, add_one_by_one, single_gradients
from .labels import draw, require_exact_size
from .measuring import Measuring
from .plan import Plan, Way, add_by_rules, deltas_of, log_prob_score, make_plan, single_calls, tapped_layers, zeros
from .taps import Taps, tapped


class Accumulation:
    """Sums so far on this rank, and the plan made from the first batch."""

    def __init__(
        self,
        slots: Sequence[Slot],
        measuring: Measuring,
        device: torch.device,
        forward: Callable[[Any], Any],
        labels: str,
        generator: torch.Generator,
        ranks: Ranks,
    ) -> None:
        self.slots, self.measuring, self.device = slots, measuring, device
        self.forward, self.kind = forward, labels
        self.generator, self.ranks = generator, ranks
        self.totals = zeros(slots)
        self.samples = 0
        self.predictions = 0
        self.hits, self.judged = 0, 0  # predictions that the data's own labels confirm, and those compared
        self.guessed = 0.0  # hits of a guess, on average
        self.plan: Plan | None = None

    def add(self, x: Any, given: Any, limit: int | None) -> None:
        """Add the squared gradients of a batch, of at most ``limit`` samples in all. ``given``: the data's labels."""
        x = to_device(x, self.device)
        with tapped(tapped_layers(self.slots, self.measuring)) as taps:
            output = self.forward(x)
        likelihood = as_likelihood(output)
        if self.plan is None:
            warn_of_probabilities(output)
            look_at_labels(likelihood, given)
        n = likelihood.rows
        if n == 0:
            return
        rows = n if limit is None else min(n, limit - self.samples)
        labels = self._labels(likelihood, given)
        if self.plan is None or (self.plan.provisional and n > 1):
            scratch = zeros(self.slots) if self.samples else self.totals
            self.plan = make_plan(self.slots, self.measuring, self.forward, x, likelihood, scratch)
        places = self._places(self.plan, x, n)
        scores = self._scores(likelihood)
        for k, score in enumerate(scores):
            number = score(likelihood, labels)[:rows].sum()
            _require_usable(number)
            ruled, last = self._ruled(self.plan, taps, number, n), k + 1 == len(scores)
            self.measuring.refuse_other_uses(taps, number)
            calls = single_calls([*(slot.module for slot in ruled), *self.measuring.layers], taps, n)
            deltas = deltas_of(number, calls, keep_graph=not last)
            for slot in add_by_rules(self.totals, ruled, calls, deltas, self.plan.untried):
                self.plan.choose(slot, Way.ONE_BY_ONE, f"{self.plan.reasons[slot.name]} is untested")
            self.measuring.add(taps, calls, deltas, self._numbers(rows), k, last)
            self._add_by_fallback(self.plan, Work(self.forward, x, labels, score, rows, places))
        self.samples += rows
        self.predictions += likelihood.predictions(rows)
        hits, judged, guessed = likelihood.correct(given, rows) or (0, 0, 0.0)
        self.hits, self.judged, self.guessed = self.hits + hits, self.judged + judged, self.guessed + guessed

    def summary(self) -> dict[str, Any]:
        """Plain values that tell other ranks what this rank did."""
        counted = {name: getattr(self, name) for name in ("samples", "predictions", "hits", "judged", "guessed")}
        if self.plan is None:
            return {**counted, "reached": False, "ways": {}}
        reached = self.plan.reached or any(bool(total.any()) for total in self.totals.values())
        return {**counted, "reached": reached, "ways": self.plan.describe()}

    def _numbers(self, rows: int) -> range:
        """Numbers of the next samples among those of all ranks, which are dealt in turn."""
        count, index = self.ranks.count, self.ranks.index
        return range(self.samples * count + index, (self.samples + rows) * count + index, count)

    def _places(self, plan: Plan, x: Any, n: int) -> Places | None:
        """The plan's places if this batch is built like the first one, else None."""
        there, here = plan.places, row_places(x, n)
        alike = there is not None and there.keys() == here.keys() and all(here[path] >= there[path] for path in here)
        return there if alike else None

    def _ruled(self, plan: Plan, taps: Taps, score: Tensor, n: int) -> list[Slot]:
        """Parameters whose rule holds in this batch too. A parameter that this batch uses in a new way goes one sample
        at a time from now on, because that way needs no check."""
        ruled, idle = [], plan.by_way(self.slots, Way.IDLE)
        for slot in plan.by_way(self.slots, Way.RULE):
            layer = slot.module
            if taps.single(layer, n) is not None:
                ruled.append(slot)
            elif taps.calls.get(layer):
                plan.choose(slot, Way.ONE_BY_ONE, "called differently in a later batch")
            else:
                idle.append(slot)
        # Asking for the gradient of a parameter costs next to nothing if the score does not depend on it.
        for slot, gradient in zip(idle, single_gradients(score, [slot.parameter for slot in idle]), strict=True):
            if gradient is not None:
                plan.choose(slot, Way.ONE_BY_ONE, "first used in a later batch")
        return ruled

    def _add_by_fallback(self, plan: Plan, work: Work) -> None:
        by_func = plan.by_way(self.slots, Way.TORCH_FUNC)
        if by_func:
            part = zeros(by_func)
            failure = "" if work.places is not None else "the batch cannot be split into samples"
            try:
                if not failure:
                    add_by_torch_func(part, by_func, work)
            except Exception as error:  # torch.func raises exceptions of many kinds; the report names the reason
                failure = first_line(error)
            for slot in by_func:
                if failure:
                    reason = f"{plan.reasons[slot.name]}; torch.func in a later batch: {failure}"
                    plan.choose(slot, Way.ONE_BY_ONE, reason)
                else:
                    self.totals[slot.name] += part[slot.name]
        one_by_one = plan.by_way(self.slots, Way.ONE_BY_ONE)
        if one_by_one:
            add_one_by_one(self.totals, one_by_one, work)

    def _labels(self, likelihood: Likelihood, given: Any) -> Any:
        if self.kind == "exact":
            require_exact_size(likelihood)
            return None
        if self.kind == "sample":
            return draw(likelihood, self.generator, self.ranks)
        if given is None:
            raise ValueError(
                "labels='true' needs labels; give batches (input, labels), or targets=, which gets them from a batch"
            )
        if not isinstance(given, Tensor | tuple) and not (isinstance(given, list) and isinstance(given[0], Tensor)):
            given = _as_tensor(given)
        likelihood.require_labels(given)
        return to_device(given, self.device)

    def _scores(self, likelihood: Likelihood) -> list[Score]:
        if self.kind != "exact":
            return [log_prob_score]
        return [partial(_support_score, k) for k in range(likelihood.support_size)]


def _support_score(k: int, likelihood: Likelihood, labels: Any) -> Tensor:
    return likelihood.support(k)


def _as_tensor(labels: Any) -> Tensor:
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"labels must be numbers, got {type(labels).__name__} of other things; pass targets=, which makes them "
            "from a batch"
        ) from error


def _require_usable(score: Tensor) -> None:
    if score.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(f"forward must return float32 or float64, got {score.dtype}; leave autocast out of forward")
    if not torch.isfinite(score):
        raise ValueError("the log-likelihood is not finite; look for NaN or infinite weights, inputs or labels")
