"""The diagonal Fisher of a model: mean over samples of the squared gradient of log p(y|x), exact at any batch size."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from ..distributed import Ranks, world
from ..likelihoods import Likelihood, as_likelihood, warn_of_probabilities
from ..parameters import Slot, Watch, find_parameters, require_float
from ..sharding import as_one_process, require_supported
from . import memory
from .batches import Places, row_places, split_batch, to_device
from .calls import Calls
from .fallback import Score, Work, add_by_torch_func, add_one_by_one, single_gradients
from .labels import common_generator, draw, require_exact_size, require_kind
from .plan import Plan, Way, add_by_rules, first_line, log_prob_score, make_plan, tapped_layers, zeros
from .quiet import undisturbed
from .taps import Taps, tapped

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class FisherEstimate:
    """The Fisher of each watched parameter (of one that is sharded over ranks, of its shard), and how it was found."""

    values: dict[str, Tensor]
    samples: int
    rules: dict[str, str]  # for each parameter the rule that was used, or the fallback and the reason for it
    seconds: float


def diagonal_fisher(
    module: nn.Module,
    data: Iterable[Any],
    forward: Callable[[Any], Any] | None = None,
    *,
    labels: str = "sample",
    samples: int | None = None,
    targets: Callable[[Any], Any] | None = None,
    generator: torch.Generator | None = None,
    watch: Watch = None,
    distributed: bool = True,
) -> dict[str, Tensor]:
    """The Fisher of each parameter of ``module`` (or of the part ``watch`` of it), by name.

    ``data`` yields batches: of a tuple or list the first element goes to ``forward`` and the second holds the labels,
    anything else goes whole. ``forward`` (default: the module) returns class logits, an object with ``.logits``, or one
    of ``bitfreeze.likelihoods``. ``labels`` are drawn from the model (``"sample"``), averaged over
    (``"exact"``) or taken from the data (``"true"``; ``targets`` finds them in a batch). ``samples`` stops after so
    many: shuffle data that are stored class by class.

    With several ranks of torch.distributed all of them call this together, each with its own samples, dealt to them in
    turn as DistributedSampler does it, in as many batches as it likes; each gets the Fisher of all. ``samples`` counts
    those of all ranks: given the size of the dataset, it leaves out what DistributedSampler repeats to fill up. With
    ``distributed=False`` this process is on its own.
    """
    values = estimate(
        module, data, forward, labels=labels, samples=samples, targets=targets, generator=generator, watch=watch,
        distributed=distributed,
    ).values  # fmt: skip
    return {slot.name: slot.layout.wrapped(values[slot.name]) for slot in find_parameters(module, watch)}


def estimate(
    model: nn.Module,
    data: Iterable[Any],
    forward: Callable[[Any], Any] | None = None,
    *,
    labels: str = "sample",
    samples: int | None = None,
    targets: Callable[[Any], Any] | None = None,
    generator: torch.Generator | None = None,
    watch: Watch = None,
    memory_bytes: int = memory.DEFAULT,
    progress: Progress | None = None,
    distributed: bool = True,
) -> FisherEstimate:
    """As ``diagonal_fisher``, with a report. ``memory_bytes`` bounds what per-sample gradients may take at once;
    ``progress(done, samples)`` is called after each batch, with how many samples are done and were asked for, on this
    rank."""
    started, ranks = time.perf_counter(), world(distributed)
    with ranks.together():
        require_kind(labels)
        _require_batches(data, samples)
        require_supported(model, ranks)
        slots = find_parameters(model, watch)
        require_float(slots)
    layouts = {slot.name: slot.layout for slot in slots}
    limit = None if samples is None else ranks.share(samples)
    calls = Calls(forward or _as_it_is(model))
    with as_one_process(model), undisturbed(model, slots), closing(calls), memory.memory_limit(memory_bytes):
        run = _Run(slots, calls, labels, common_generator(generator, ranks), ranks)
        with ranks.together():
            for batch in data if limit != 0 else ():
                x, given = split_batch(batch)
                run.add(x, targets(batch) if targets is not None else given, limit)
                if progress is not None:
                    progress(run.samples, limit)
                if limit is not None and run.samples >= limit:
                    break
        found = _Found(ranks.gather(run.found()))
        values = {name: layouts[name].part_of_sum(run.totals.pop(name), ranks) for name in layouts}
    for value in values.values():
        value.div_(found.samples)
    with ranks.together():
        _require_finite(values)
    return FisherEstimate(values, found.samples, found.rules, time.perf_counter() - started)


def explain(
    model: nn.Module, data: Iterable[Any], forward: Callable[[Any], Any] | None = None, *, watch: Watch = None
) -> dict[str, str]:
    """Which rule each parameter gets, or which fallback and why, as found out on the first samples of the data."""
    return estimate(model, data, forward, watch=watch, samples=1).rules


class _Found:
    """What the ranks have found together, besides the sums."""

    def __init__(self, parts: list[dict[str, Any]]) -> None:
        self.samples = sum(part["samples"] for part in parts)
        self.rules: dict[str, str] = {}
        for part in reversed(parts):  # where they differ, the first has its say
            self.rules |= part["rules"]
        if not self.samples:
            raise ValueError(
                "the data hold no samples: give at least one batch (a generator that was used up gives none)"
            )
        if not any(part["reached"] for part in parts):
            raise ValueError(
                "the output of forward does not depend on any watched parameter: check that forward uses the model "
                "that is watched, and that it is not run under torch.no_grad() or on detached features"
            )


class _Run:
    """The sums so far on this rank, and the plan once the first batch has shown which rules hold."""

    def __init__(
        self,
        slots: Sequence[Slot],
        forward: Callable[[Any], Any],
        labels: str,
        generator: torch.Generator,
        ranks: Ranks,
    ) -> None:
        self.slots, self.forward, self.kind = slots, forward, labels
        self.generator, self.ranks = generator, ranks
        self.layers = tapped_layers(slots)
        self.totals = zeros(slots)
        self.samples = 0
        self.plan: Plan | None = None

    def add(self, x: Any, given: Any, limit: int | None) -> None:
        x = to_device(x, self.slots[0].parameter.device)
        with tapped(self.layers) as taps:
            output = self.forward(x)
        likelihood = as_likelihood(output)
        if self.plan is None:
            warn_of_probabilities(output)
        n = likelihood.rows
        if n == 0:
            return
        rows = n if limit is None else min(n, limit - self.samples)
        labels = self._labels(likelihood, given)
        if self.plan is None or (self.plan.provisional and n > 1):
            scratch = zeros(self.slots) if self.samples else self.totals
            self.plan = make_plan(self.slots, self.forward, x, likelihood, scratch)
        places = self._places(self.plan, x, n)
        scores = self._scores(likelihood)
        for k, score in enumerate(scores):
            number = score(likelihood, labels)[:rows].sum()
            _require_usable(number)
            ruled = self._ruled(self.plan, taps, number, n)
            last = k + 1 == len(scores)
            for slot in add_by_rules(self.totals, ruled, taps, number, n, not last, self.plan.untried):
                self.plan.choose(slot, Way.ONE_BY_ONE, f"{self.plan.reasons[slot.name]} has had no trial")
            self._add_by_fallback(self.plan, Work(self.forward, x, labels, score, rows, places))
        self.samples += rows

    def found(self) -> dict[str, Any]:
        if self.plan is None:
            return {"samples": 0, "reached": False, "rules": {}}
        reached = self.plan.reached or any(bool(total.any()) for total in self.totals.values())
        return {"samples": self.samples, "reached": reached, "rules": self.plan.describe()}

    def _places(self, plan: Plan, x: Any, n: int) -> Places | None:
        """Where this batch holds a row for each sample: as in the trial, if it is built alike."""
        there, here = plan.places, row_places(x, n)
        alike = there is not None and there.keys() == here.keys() and all(here[path] >= there[path] for path in here)
        return there if alike else None

    def _ruled(self, plan: Plan, taps: Taps, score: Tensor, n: int) -> list[Slot]:
        """The parameters to be left to their rules. What this batch uses otherwise than the trial did goes one by one,
        the way that needs no trial."""
        ruled, idle = [], plan.by_way(self.slots, Way.IDLE)
        for slot in plan.by_way(self.slots, Way.RULE):
            layer = slot.module
            if taps.single(layer, n) is not None:
                ruled.append(slot)
            elif taps.calls.get(layer):
                plan.choose(slot, Way.ONE_BY_ONE, "called otherwise in a later batch")
            else:
                idle.append(slot)
        # a parameter that the score does not depend on costs next to nothing to ask for
        for slot, gradient in zip(idle, single_gradients(score, [slot.parameter for slot in idle]), strict=True):
            if gradient is not None:
                plan.choose(slot, Way.ONE_BY_ONE, "first used in a later batch")
        return ruled

    def _add_by_fallback(self, plan: Plan, work: Work) -> None:
        by_func = plan.by_way(self.slots, Way.TORCH_FUNC)
        if by_func:
            part = zeros(by_func)
            failure = "" if work.places is not None else "it cannot be taken apart into samples"
            try:
                if not failure:
                    add_by_torch_func(part, by_func, work)
            except Exception as error:  # torch.func raises many kinds; the reason goes into the report
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
                "labels='true' needs labels: give batches of (input, labels), or targets=, which finds them"
            )
        if not isinstance(given, Tensor | tuple) and not (isinstance(given, list) and isinstance(given[0], Tensor)):
            given = torch.as_tensor(given)
        likelihood.require_labels(given)
        return to_device(given, self.slots[0].parameter.device)

    def _scores(self, likelihood: Likelihood) -> list[Score]:
        if self.kind != "exact":
            return [log_prob_score]
        return [partial(_support_score, k) for k in range(likelihood.support_size)]


def _support_score(k: int, likelihood: Likelihood, labels: Any) -> Tensor:
    return likelihood.support(k)


def _as_it_is(model: nn.Module) -> Callable[[Any], Any]:
    def forward(x: Any) -> Any:
        try:
            return model(x)
        except TypeError as error:
            error.add_note(
                "model(x) was called with a batch's input alone: if it takes more, pass forward=, such as "
                "forward=lambda x: model(x, task)"
            )
            raise

    return forward


def _require_batches(data: Any, samples: int | None) -> None:
    if isinstance(data, Tensor | dict | str) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise TypeError(
            f"data must be an iterable of batches, not a {type(data).__name__}: wrap a single batch in a list"
        )
    kinds = {(item.dtype, item.shape[1:]) for item in data if isinstance(item, Tensor)} if type(data) is tuple else ()
    if len(kinds) > 1:  # x.split(...) is a tuple too, of tensors that are alike
        raise TypeError(
            "data must be an iterable of batches, not one batch of inputs and labels: wrap it in a list, [(x, y)]"
        )
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise TypeError(
            f"data must be an iterable of batches, and {type(data).__name__} is a dataset of single samples: wrap it "
            "in a DataLoader"
        )
    whole = hasattr(samples, "__index__") and not isinstance(samples, bool)
    if samples is not None and (not whole or samples < 1):
        raise ValueError(f"samples must be at least 1, a whole number, got {samples!r}")


def _require_usable(score: Tensor) -> None:
    if score.dtype in (torch.float16, torch.bfloat16):
        raise TypeError("forward returned half precision: leave autocast out of the forward given here")
    if not torch.isfinite(score):
        raise ValueError("the log-likelihood is not finite: look for NaN or infinite weights, inputs or labels")


def _require_finite(values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        if not torch.isfinite(value.sum()):
            raise ValueError(
                f"the Fisher of '{name}' is not finite: look for infinite gradients (a log or division of 0?)"
            )
