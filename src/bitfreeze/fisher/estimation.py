"""Diagonal Fisher of a model: the mean over samples of the squared gradient of log p(y|x), exact at any batch size."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..model.parameters import Slot, Watch, find_parameters, require_float
from ..model.ranks import current_ranks
from ..model.shards import as_one_process, require_supported
from ..model.undo import LAST, ONE_AT_A_TIME, Undo, turn_over
from . import memory
from .accumulation import Accumulation
from .arguments import require_arguments, require_batches
from .batches import split_batch
from .calls import Calls
from .labels import common_generator, require_kind
from .measuring import Measuring, Statistics
from .quiet import undisturbed

Progress = Callable[[int, int | None], None]
FEW = 50  # labels that tell nothing of the predictions


@dataclass(frozen=True)
class FisherEstimate:
    """The Fisher of each watched parameter, and how it was computed.

    Attributes:
        values: the Fisher by parameter name; for a parameter that is sharded over ranks, this rank's shard of it.
        samples: number of samples, over all ranks.
        ways: by parameter name the rule that was used, or the fallback and the reason for it.
        seconds: wall time.
        statistics: by layer why its statistics were not filled, or "" where they were.
        positions: predicted positions a sample, 1 where samples have none.
        accuracy: share of the predictions that agree with the labels of the data, None without labels.
        is_a_guess: whether that share is about that of a guess among the classes, or of an untrained head.

    Example:
        >>> found = estimate(nn.Linear(2, 3), [torch.ones(4, 2)])
        >>> found.samples, found.ways["bias"], found.values["bias"].shape
        (4, 'rule Linear.bias', torch.Size([3]))
    """

    values: dict[str, Tensor]
    samples: int
    ways: dict[str, str]
    seconds: float
    statistics: dict[nn.Module, str] = field(default_factory=dict)
    positions: float = 1.0
    accuracy: float | None = None
    is_a_guess: bool = False


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
    """Diagonal Fisher of each parameter: the mean over samples of the squared gradient of log p(y|x).

    The whole model is in eval mode meanwhile. Modes, ``requires_grad`` and random states are put back at the end.

    With several ranks of torch.distributed, all ranks call this together and each gets the Fisher of all samples.
    Each rank gives its own samples, dealt in turn as DistributedSampler deals them, in any number of batches.
    DistributedSampler repeats samples to give each rank as many: ``samples=len(dataset)`` leaves the copies out.

    Args:
        module: the model.
        data: batches. A tuple or list is (input, labels, ...); any other batch is an input.
        forward: maps an input to class logits, an object with ``.logits``, or one of ``bitfreeze.likelihoods``.
            Default: ``module``.
        labels: ``"sample"`` draws labels from the model, ``"exact"`` takes the expectation over all labels, ``"true"``
            takes the labels of the data (the empirical Fisher).
        samples: how many samples to use, over all ranks. Default: all. Shuffle data that are stored class by class.
        targets: gets the labels from a batch, for ``labels="true"``. Default: the second element.
        generator: source of the draws. Default: one seeded from torch's random state.
        watch: a submodule, a name of a parameter or module, or a list of these. Default: the whole module.
        distributed: False leaves other ranks out.

    Returns:
        By parameter name a tensor in the parameter's shape, a DTensor where the parameter is one.

    Raises:
        TypeError: ``data`` is no iterable of batches, ``forward`` returns something else, or a parameter or the output
            has half precision.
        ValueError: there are no samples, the output does not depend on a watched parameter, a number is not finite, or
            an argument is out of range.

    Example:
        With two classes and zero weights, p = 1/2, and the Fisher is p (1 - p) times the mean of x^2:

        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> diagonal_fisher(model, [x], labels="exact")["weight"]
        tensor([[0.2500, 0.5000],
                [0.2500, 0.5000]])
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
    statistics: Statistics | None = None,
    skip: Collection[str] = (),
) -> FisherEstimate:
    """Diagonal Fisher with a report. Arguments that are not listed here are those of ``diagonal_fisher``.

    Args:
        memory_bytes: limit of the memory for per-sample gradients. One sample at a time may exceed it.
        progress: called as ``progress(done, wanted)`` after each batch, with this rank's numbers of samples.
            ``wanted`` is None without ``samples``.
        statistics: by layer the statistics (see ``bitfreeze.fisher.statistics``) to fill in the same pass. A layer
            gets them if it is called once in each forward pass and its factors agree with autograd. Statistics of a
            layer with a reason in the result hold nothing of use.
        skip: names of watched parameters whose Fisher is not wanted. It is not computed.

    Returns:
        The Fisher of each parameter, and the rule or fallback that computed it.

    Raises:
        TypeError: as in ``diagonal_fisher``.
        ValueError: as in ``diagonal_fisher``; or ``skip`` or ``statistics`` names what the model does not have.

    Example:
        >>> estimate(nn.Linear(2, 3), [torch.ones(4, 2)]).ways
        {'weight': 'rule Linear.weight', 'bias': 'rule Linear.bias'}
    """
    started, ranks = time.perf_counter(), current_ranks(distributed)
    with ranks.together():
        require_kind(labels)
        require_batches(data)
        require_arguments(
            forward=forward, samples=samples, targets=targets, generator=generator, memory_bytes=memory_bytes,
            progress=progress, distributed=distributed,
        )  # fmt: skip
        require_supported(model, ranks)
        measuring = Measuring(model, statistics or {})
        watched = find_parameters(model, watch)
        used = list({slot.name: slot for slot in (*watched, *measuring.slots)}.values())
        require_float(used)
        slots = _without(watched, skip)
    layouts = {slot.name: slot.layout for slot in slots}
    limit = None if samples is None else ranks.share(samples)
    calls = Calls(forward or call_model(model))
    undo = Undo(calls.close)
    with (
        turn_over(),
        ONE_AT_A_TIME,
        as_one_process(model),
        undisturbed(model, used),
        undo,
        undo,
        memory.memory_limit(memory_bytes),
        LAST,
    ):
        draws, device = common_generator(generator, ranks), used[0].parameter.device
        sums = Accumulation(slots, measuring, device, calls, labels, draws, ranks)
        with ranks.together():
            for batch in data if limit != 0 else ():
                x, given = split_batch(batch)
                sums.add(x, targets(batch) if targets is not None else given, limit)
                if progress is not None:
                    progress(sums.samples, limit)
                if limit is not None and sums.samples >= limit:
                    break
        found = _Found(ranks.gather(sums.summary()))
        reasons = measuring.finish(ranks, found.samples)
        values = {name: layouts[name].part_of_sum(sums.totals.pop(name), ranks) for name in layouts}
    for value in values.values():
        value.div_(found.samples)
    with ranks.together():
        _require_finite(values)
    seconds = time.perf_counter() - started
    return FisherEstimate(
        values, found.samples, found.ways, seconds, reasons, found.positions, found.accuracy, found.is_a_guess
    )


def explain(
    model: nn.Module, data: Iterable[Any], forward: Callable[[Any], Any] | None = None, *, watch: Watch = None
) -> dict[str, str]:
    """Which rule each parameter gets, or which fallback and why, as found with the first batch.

    Args:
        model: the model.
        data: as in ``diagonal_fisher``; only the first batch is used.
        forward: as in ``diagonal_fisher``.
        watch: as in ``diagonal_fisher``.

    Returns:
        The rule, or the fallback and the reason for it, by parameter name.

    Raises:
        TypeError: as in ``diagonal_fisher``.
        ValueError: as in ``diagonal_fisher``.

    Example:
        >>> explain(nn.Sequential(nn.PReLU(), nn.Linear(2, 3)), [-torch.ones(4, 2)])["0.weight"]
        'torch.func (no rule for weight of PReLU)'
    """
    return estimate(model, data, forward, watch=watch, samples=1).ways


def _without(slots: list[Slot], skip: Collection[str]) -> list[Slot]:
    unknown = set(skip) - {slot.name for slot in slots}
    if unknown:
        raise ValueError(
            f"skip must name watched parameters, got '{min(unknown)}'; use the names in FisherEstimate.ways"
        )
    return [slot for slot in slots if slot.name not in skip]


def _most_of_a_guess(hits: float, judged: int) -> float:
    """Hits of an untrained head at most, where a guess among the classes has ``hits`` on average.

    Its features are not random, so it may have a tenth of what a guess misses beside, but not twice the hits.
    """
    return hits + min(0.1 * (judged - hits), hits) + 2 * sqrt(hits * (1 - hits / judged))


class _Found:
    """Number of samples and ways of all ranks, from the summary of each."""

    def __init__(self, summaries: list[dict[str, Any]]) -> None:
        self.samples = sum(summary["samples"] for summary in summaries)
        self.positions = sum(summary["predictions"] for summary in summaries) / max(1, self.samples)
        hits, judged, guessed = (sum(s[name] for s in summaries) for name in ("hits", "judged", "guessed"))
        self.accuracy = hits / judged if judged else None
        self.is_a_guess = judged >= FEW and hits <= _most_of_a_guess(guessed, judged)
        self.ways: dict[str, str] = {}
        for summary in reversed(summaries):  # where ranks differ, the first rank's way is reported
            self.ways |= summary["ways"]
        if not self.samples:
            raise ValueError(
                "data must hold at least one sample, got no samples; if data is a generator that is used up, make a "
                "new one"
            )
        if not any(summary["reached"] for summary in summaries):
            raise ValueError(
                "the output of forward does not depend on any watched parameter; check that forward calls the watched "
                "model, without torch.no_grad() and without detached features"
            )


def call_model(model: nn.Module) -> Callable[[Any], Any]:
    """A forward that calls the model with the input of a batch."""

    def forward(x: Any) -> Any:
        try:
            return model(x)
        except TypeError as error:
            error.add_note(
                "the model was called as model(x), with the input of a batch; if it takes more arguments, pass "
                "forward=, such as forward=lambda x: model(x, task)"
            )
            raise

    return forward


def _require_finite(values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        if not torch.isfinite(value.sum()):
            raise ValueError(
                f"the Fisher of '{name}' is not finite; look for infinite gradients (log of 0, division by 0)"
            )
