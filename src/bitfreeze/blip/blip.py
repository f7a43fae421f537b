"""BLIP: after each task freeze as many leading bits of each parameter as the task's data told us about it.

A parameter whose first S bits are frozen may still move, inside an interval of radius bound * 2^-S (bits.py). Training
on a new task is ordinary training, with a clamp into that interval after each step. At the end of the task the Fisher
information of the task's data says how much was learned about each parameter. That many more bits are frozen, so the
interval shrinks. State lives beside the model, by parameter name. The model itself stays a plain model.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import fisher as fisher_information
from ..fisher.estimation import Progress
from ..fisher.memory import DEFAULT as DEFAULT_MEMORY
from ..model.parameters import Watch, watched_modules, watched_parts
from ..model.ranks import current_ranks
from ..model.shards import require_supported
from . import checks
from .attachment import Attachment, likely_cause, unwrap
from .budget import prior_of_first_task
from .consolidation import Consolidation, report_tensors, warn_of_exhaustion
from .intervals import Intervals
from .rules import Rules
from .running_statistics import hold_in_eval, release, with_running_statistics
from .tensor_state import TensorState


class BLIP:
    """Keeps what a model has learned while it goes on learning.

    Args:
        model: any nn.Module with float32 or float64 parameters.
        watch: the part whose parameters are protected, or a list of parts and parameter names. Default: all of it.
        bits: depth N to which a parameter is resolved, 1 to 23.
        budget: share of the bits of parameters in use that the first task may freeze. The prior follows from it.
        prior: F_0 on the scale of the per-sample Fisher, in place of the budget.
        bound: C in the bound C / sqrt(fan_in) of a layer's weights.
        rules: how bits and intervals follow from the Fisher. Default: ``Rules.strict()``.
        freeze_statistics: hold BatchNorm and the like in eval mode once the first task has been consolidated.

    Raises:
        TypeError: ``model`` is no nn.Module, a watched parameter has half precision, or ``rules`` is no Rules.
        ValueError: a setting lies outside its range, or ``watch`` names nothing of the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> blip = BLIP(model, watch=model[0])
        >>> handle = blip.attach()
        >>> loader = [(torch.randn(16, 4), torch.randint(2, (16,)))]
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for x, y in loader:  # any training
        ...     nn.functional.cross_entropy(model(x), y).backward()
        ...     optimizer.step()
        >>> report = blip.consolidate(loader)
        >>> blip.tasks, 0 < blip.capacity() < 1
        (1, True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        watch: Watch = None,
        bits: int = 20,
        budget: float = 0.1,
        prior: float | None = None,
        bound: float = 6.0,
        rules: Rules | None = None,
        freeze_statistics: bool = False,
    ) -> None:
        checks.require_settings(bits, budget, prior, bound, rules)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        require_supported(model, current_ranks())
        self.model = model
        # a list, because the argument may be an iterator
        self.watch: Watch = None if watch is None else watched_parts(model, watch)
        # plain numbers, because a state must load under weights_only=True
        self.depth, self.budget, self.bound = int(bits), float(budget), float(bound)
        self.given_prior = None if prior is None else float(prior)
        self.prior = self.given_prior  # the one in force: given, or solved for at the first consolidate
        self.rules = Rules.strict() if rules is None else rules
        self.freeze_statistics = freeze_statistics
        self.tasks = 0
        self._intervals = Intervals(model, self.watch, self.depth, self.bound, self.rules)
        self._underway = False  # whether a step has been made since attach()
        self._just_loaded = False  # whether a state was taken up and no step made since
        self._attachments: list[Attachment] = []
        self._warn_of_statistics()

    # training

    def attach(self, optimizer: Optimizer | Any = None) -> Attachment:
        """Clamp watched parameters into their intervals after each optimizer step.

        Args:
            optimizer: a torch optimizer, or a wrapper that keeps one as ``.optimizer``. Default: every optimizer that
                steps a watched parameter, whenever it is built.

        Returns:
            A handle. Its ``remove()`` ends the clamping, and so does the end of a ``with`` block around the handle or
            of this object.

        Raises:
            ValueError: ``optimizer`` holds none of the watched parameters.
            TypeError: ``optimizer`` is no optimizer.
        """
        chosen = None if optimizer is None else self._intervals.require_watched(unwrap(optimizer))
        self._intervals.bind()
        self._underway = False
        self._attachments = [attachment for attachment in self._attachments if attachment.active]
        for attachment in self._attachments:
            if attachment.is_to(chosen):
                attachment.claims += 1
                return attachment
        attachment = Attachment(self, chosen)
        self._attachments.append(attachment)
        if self.rules.straight_through:
            self.clamp_()
        return attachment

    @torch.no_grad()
    def clamp_(self) -> None:
        """Move every watched parameter into its interval. A second call changes nothing.

        Call it in loops without a torch optimizer, and after weights were restored or averaged.
        """
        self._intervals.bind_if_changed()
        self._intervals.hold_()

    def _before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        straight_through = self.rules.straight_through
        if self._underway and not self._just_loaded and not straight_through:
            return
        held = self._intervals.held_by(optimizer)
        if not held:
            return
        if not self._underway:
            self._underway = True
            self._intervals.widen()
        if self._just_loaded:
            checks.require_own_weights(self._intervals.states, self.rules)
            self._just_loaded = False
        if straight_through and has_closure:
            raise ValueError(
                "with straight-through rules the passes must come before the step, not in a closure; call backward() "
                "first, then step()"
            )
        for state in held if straight_through else ():
            state.before_step_()

    def _after_step(self, optimizer: Optimizer) -> bool:
        return self._intervals.hold_(optimizer)

    # the end of a task

    @torch.inference_mode(False)
    def consolidate(
        self,
        data: Iterable[Any],
        forward: Callable[[Any], Any] | None = None,
        *,
        labels: str = "sample",
        samples: int | None = None,
        targets: Callable[[Any], Any] | None = None,
        generator: torch.Generator | None = None,
        outside: str = "raise",
        memory_bytes: int = DEFAULT_MEMORY,
        progress: Progress | None = None,
        distributed: bool = True,
    ) -> Consolidation:
        """End a task: measure what its data tell about each parameter, and freeze that many more bits.

        With several ranks all of them call this. Rank 0 decides, and all end with the same state.

        Args:
            data: batches of the task, as for ``bitfreeze.diagonal_fisher``. So are forward, labels, samples, targets,
                generator and distributed.
            outside: what happens if a parameter left its interval since the last clamp: ``"raise"`` an error, or
                ``"mend"`` the parameter by a clamp.
            memory_bytes: see ``bitfreeze.fisher.estimate``.
            progress: see ``bitfreeze.fisher.estimate``.

        Returns:
            A report: bits frozen in each tensor, room left, how the Fisher was found. Print it.

        Raises:
            ValueError: data, weights or gradients cannot be measured. Model and state are then as before the call.
            RuntimeError: a parameter lies outside its interval, and ``outside`` is ``"raise"``.
        """
        started, ranks = time.perf_counter(), current_ranks(distributed)
        intervals = self._intervals
        before, mended = (intervals.states, intervals.absent), {}
        try:
            with ranks.together():
                intervals.bind()
                checks.require_healthy(intervals.states)
                mended = checks.require_inside(intervals.states, self.rules, outside, likely_cause(self._attachments))
            checks.require_equal_on(ranks, intervals.states.values())
            estimate = fisher_information.estimate(
                self.model, data, forward, watch=self.watch, labels=labels, samples=samples, targets=targets,
                generator=generator, memory_bytes=memory_bytes, progress=progress, distributed=distributed,
            )  # fmt: skip
            prior = self.prior
            if prior is None:
                gain = self.rules.gain
                prior = prior_of_first_task(intervals.states, estimate.values, self.budget, self.depth, gain, ranks)
            after = {name: state.after_task(estimate.values[name], prior) for name, state in intervals.states.items()}
        except BaseException:
            checks.put_back(intervals.states, mended)
            intervals.states, intervals.absent = before
            raise
        for state in after.values():
            state.take_from_first_(ranks)
        reports, histogram = report_tensors(intervals.states, after, estimate.values, estimate.ways, ranks)
        self._commit(after, prior)
        touched = sum(report.touched_entries for report in reports.values())
        frozen = sum(report.frozen_now for report in reports.values())
        result = Consolidation(
            task=self.tasks, tensors=reports, histogram=histogram, prior=prior,
            share=frozen / max(1, touched * self.depth), rules=self.rules, samples=estimate.samples,
            fisher_seconds=estimate.seconds, seconds=time.perf_counter() - started,
        )  # fmt: skip
        warn_of_exhaustion(result)
        return result

    def _commit(self, after: dict[str, TensorState], prior: float) -> None:
        self._intervals.states, self.prior = after, prior
        self.tasks += 1
        for state in after.values():
            state.snap_()
        for attachment in self._attachments:
            attachment.steps = 0
        self._hold_statistics()

    # what is frozen

    def frozen_bits(self) -> dict[str, Tensor]:
        """Number of frozen leading bits of each parameter, by name; sharded where the parameter is."""
        return {name: state.layout.wrapped(state.frozen_bits()) for name, state in self._intervals.current().items()}

    def intervals(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Lower and upper end of each parameter's interval, by name."""
        found = {}
        for name, state in self._intervals.current().items():
            zeros = torch.zeros_like(state.slot.local, requires_grad=False)
            low, high = state.interval()
            found[name] = state.layout.wrapped(zeros + low), state.layout.wrapped(zeros + high)
        return found

    def capacity(self) -> float:
        """Share of all watched bits that is frozen: 0 before the first task, 1 when nothing can move."""
        states = self._intervals.current().values()
        ranks = current_ranks(any(state.layout.sharded for state in states))
        bits = [state.frozen_bits() for state in states if state.layout.counts_here(ranks)]
        frozen = int(sum(ranks.gather(sum(int(b.sum(dtype=torch.int64)) for b in bits))))
        return frozen / max(1, self.depth * sum(state.slot.parameter.numel() for state in states))

    def nbytes(self, cache: bool = False) -> int:
        """Count the bytes of state in this process, which do not grow with tasks.

        Args:
            cache: count the interval ends that are kept while training too.

        Returns:
            The number of bytes.
        """
        return self._intervals.nbytes(cache)

    # saving

    def state_dict(self, sharded: bool = False) -> dict[str, Any]:
        """Save the state. Where parameters are sharded over ranks, all ranks call this together.

        Args:
            sharded: keep the state of sharded parameters as DTensors. Default: whole tensors, which load anywhere.

        Returns:
            Tensors and plain scalars, by parameter name. They load under ``weights_only=True``.
        """
        return {
            "format": checks.STATE_FORMAT,
            "settings": self._settings(),
            "prior": self.prior,
            "tasks": self.tasks,
            **self._intervals.state_dict(sharded),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], rename: Mapping[str, str] | Callable[[str], str] | None = None
    ) -> None:
        """Take up a saved state. Load the model's own weights as usual.

        Args:
            state: what ``state_dict`` returned. Watched parameters that it does not name start at their own task 1.
            rename: maps saved parameter names to those of this model.

        Raises:
            ValueError: the state is no state of a BLIP, was saved with other settings, or is of another model.
        """
        checks.require_state(state)
        mine = self._settings()
        older = {"freeze_statistics": self.freeze_statistics, "rounding": "each"}  # absent from older states
        theirs = {**older, **state["settings"]}
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        differences = [f"{name}={theirs.get(name)!r} there, {mine.get(name)!r} here" for name in names]
        if differences:
            raise ValueError(f"the state must have the same settings, got {'; '.join(differences)}; use the same")
        self._intervals.load_state_dict(state, rename)
        self.prior, self.tasks, self._just_loaded = state["prior"], state["tasks"], True
        self._hold_statistics()

    def _settings(self) -> dict[str, Any]:
        measure = {"budget": self.budget} if self.given_prior is None else {"prior": self.given_prior}
        own = {"bits": self.depth, "bound": self.bound, "freeze_statistics": self.freeze_statistics}
        return {**own, **measure, **asdict(self.rules)}

    def __repr__(self) -> str:
        # local values only, because a single rank or a debugger may print
        return f"BLIP(bits={self.depth}, budget={self.budget}, prior={self.prior}, tasks={self.tasks})"

    def __getstate__(self) -> dict[str, Any]:
        """State for copy and pickle. An attachment to every optimizer is copied; hooks on single ones stay behind."""
        return {**self.__dict__, "_attachments": [None for a in self._attachments if a.active and a.is_to(None)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state["_attachments"]
        self.__dict__.update({**state, "_attachments": []})
        if attached:
            self._attachments = [Attachment(self, None)]

    # running statistics

    def _hold_statistics(self) -> None:
        for module in self._with_statistics() if self.freeze_statistics else ():
            hold_in_eval(module) if self.tasks else release(module)

    def _with_statistics(self) -> list[nn.Module]:
        """Modules with running statistics that lie under watch or own a watched parameter."""
        owners = (module for slot in self._intervals.slots() for module, _ in slot.owners)
        return with_running_statistics([*watched_modules(self.model, self.watch), *owners])

    def _warn_of_statistics(self) -> None:
        found = self._with_statistics()
        if found and not self.freeze_statistics:
            warnings.warn(
                f"{len(found)} modules under watch ({type(found[0]).__name__}) keep running statistics, which later "
                "tasks overwrite; use freeze_statistics=True to hold the statistics after the first task",
                stacklevel=3,
            )
