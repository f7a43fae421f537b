"""BLIP: after each task hold the model to what the task's data told us, and leave all else free.

Training on a new task is ordinary training, with a clamp into intervals after a step. At the end of a task the Fisher
information of the task's data says how precisely the weights are needed. The intervals shrink to that. Guards do the
work (guards.py). State lives beside the model, by parameter name. The model itself stays a plain model.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._messages import warn_caller
from ..fisher.estimation import Progress
from ..fisher.memory import DEFAULT as DEFAULT_MEMORY
from ..model.autocast import without_autocast
from ..model.parameters import Watch, watched_modules, watched_parts
from ..model.ranks import current_ranks
from ..model.shards import require_supported
from ..model.undo import LAST, ONE_AT_A_TIME, turn_over
from . import checks
from .attachment import Attachment, Attachments, likely_cause, unwrap
from .choosing import default_rules, make_guards
from .consolidation import Consolidation, warn_of_a_guess, warn_of_exhaustion, warn_of_no_edge
from .guards import Guard, Measured
from .looking import Looker
from .lookout import Lookout, note_holder
from .memento import Memento
from .rules import Rules, WeightRules, require_rules
from .running_statistics import hold_in_eval, release, warn_of_running_statistics, with_running_statistics
from .saving import saved, take_up


class BLIP:
    """Keeps what a model has learned while it goes on learning.

    Args:
        model: any nn.Module with float32 or float64 parameters.
        watch: the part whose parameters are protected, or a list of parts and parameter names. Default: all of it.
        tolerance: nats a sample (a predicted token, for sequences) that one task may cost all earlier ones, as far as
            the cost can be estimated; 0.05 by default. Smaller keeps more and learns less.
        rules: how intervals follow from the Fisher. Default: ``Rules.directions()``, or ``Rules.strict()`` if a budget
            or a prior is given.
        bits: depth N to which a parameter is resolved, 1 to 23.
        budget: rules by weight only: share of the bits of parameters in use that the first task may freeze, 0.1 by
            default. The prior follows from it.
        prior: rules by weight only: F_0 on the scale of the per-sample Fisher, in place of the budget.
        bound: C in the bound C / sqrt(fan_in) of a layer's weights.
        freeze_statistics: hold BatchNorm and the like in eval mode once the first task has been consolidated.

    Raises:
        TypeError: ``model`` is no nn.Module, a watched parameter has half precision, or ``rules`` is no Rules.
        ValueError: a setting lies outside its range or belongs to other rules, or ``watch`` names nothing of the model.

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
        tolerance: float | None = None,
        rules: Rules | None = None,
        bits: int = 20,
        budget: float | None = None,
        prior: float | None = None,
        bound: float = 6.0,
        freeze_statistics: bool = False,
    ) -> None:
        rules = default_rules(budget, prior) if rules is None else rules
        checks.require_settings(rules, bits, bound, tolerance=tolerance, budget=budget, prior=prior)
        checks.require_flag("freeze_statistics", freeze_statistics)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        require_supported(model, current_ranks())
        self.model, self.rules = model, require_rules(rules)
        # a list, because the argument may be an iterator
        self.watch: Watch = None if watch is None else watched_parts(model, watch)
        self.freeze_statistics = freeze_statistics
        self.tasks = 0
        # plain numbers, because a state must load under weights_only=True
        self.depth, self.bound = int(bits), float(bound)
        self._tensors, self._guards = make_guards(
            model, self.watch, self.rules, depth=self.depth, bound=self.bound, tolerance=tolerance, budget=budget,
            prior=prior,
        )  # fmt: skip
        self._underway = False  # whether a step has been made since attach()
        self._just_loaded = False  # whether a state was taken up and no step made since
        self._just_ended = False  # whether a task has ended and no step was made since
        self._attachments = Attachments()
        self._lookout: Lookout | None = None  # once there is something to protect
        self._versions: dict[str, tuple[int, int]] = {}  # of the watched parameters when the last task ended
        note_holder(model, self)
        warn_of_running_statistics(
            model, [slot.module for slot in self._tensors.slots()], self._with_statistics(), are_held=freeze_statistics
        )

    @property
    def prior(self) -> float | None:
        """F_0 in force: given, or found at the first consolidate."""
        return self._tensors.prior

    # training

    @without_autocast
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
        chosen = None if optimizer is None else self._tensors.require_watched(unwrap(optimizer))
        self._bind()
        self._underway = False
        attachment, is_new = self._attachments.to(self, chosen)
        if is_new and self._is_straight_through:
            self.clamp_()
        return attachment

    def detach(self) -> None:
        """End all clamping, and let running statistics that were held move again: the model is plain from then on.

        What was measured stays: ``attach()`` goes on, and the next ``consolidate`` holds statistics again.
        """
        self._attachments.remove()
        if self._lookout is not None:
            self._lookout.end()
        for module in self._with_statistics():
            release(module)

    @torch.no_grad()
    @without_autocast
    def clamp_(self) -> None:
        """Move every watched parameter into its interval. A second call changes nothing.

        Call it in loops without a torch optimizer, and after weights were restored or averaged.
        """
        self._tensors.bind_if_changed()
        for guard in self._guards:
            guard.hold_()
        if self._lookout is not None:
            self._lookout.note_clamp()

    def _bind(self) -> None:
        for guard in self._guards:
            guard.bind()

    @property
    def _is_straight_through(self) -> bool:
        return isinstance(self.rules, WeightRules) and self.rules.straight_through

    @without_autocast
    def _before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        if self._underway and not (self._just_loaded or self._just_ended or self._is_straight_through):
            return
        if (self._just_loaded or self._just_ended) and self._tensors.is_stepped_by(optimizer):
            self._tensors.bind_if_changed()  # a head may have been replaced by a larger one
        if not self._tensors.held_by(optimizer):
            return
        if not self._underway:
            self._underway = True
            self._tensors.begin_training()
        if self._just_loaded:
            self._tensors.require_own_weights()
        elif self._just_ended and self._versions != self._current_versions():
            self._warn_of_restored()
        self._just_loaded = self._just_ended = False
        self._tensors.before_step(optimizer, has_closure=has_closure)

    def _warn_of_restored(self) -> None:
        try:
            self._tensors.require_own_weights()
        except checks.OtherWeights as error:
            warn_caller(str(error))

    @without_autocast
    def _after_step(self, optimizer: Optimizer) -> bool:
        held = [guard.hold_(optimizer) for guard in self._guards]
        return any(held)

    def _clamps(self, optimizer: Optimizer) -> bool:
        """Whether an attachment follows this optimizer."""
        return self._attachments.clamp_after(optimizer)

    def _watches(self, optimizer: Optimizer) -> bool:
        return bool(self._tensors.held_by(optimizer))

    # the end of a task

    @torch.inference_mode(False)
    @without_autocast
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
            ValueError: data, weights or gradients cannot be measured. Model and state are then as before the call,
                as after any other error and after Ctrl-C.
            RuntimeError: a parameter lies outside its interval, and ``outside`` is ``"raise"``.
        """
        started, ranks = time.perf_counter(), current_ranks(distributed)
        tensors = self._tensors
        look = Looker(
            self.model, data, forward, passes=sum(guard.passes for guard in self._guards), samples=samples,
            temperature=getattr(self.rules, "temperature", 1.0),
            watch=self.watch, labels=labels, targets=targets, generator=generator, memory_bytes=memory_bytes,
            progress=progress, distributed=distributed,
        )  # fmt: skip
        before = Memento(self, tensors.moves_weights(outside), self._with_statistics())
        with turn_over(), ONE_AT_A_TIME, before, before, LAST:
            with ranks.together():
                self._bind()
                changed = self._has_changed()  # before a clamp writes to the weights
                checks.require_healthy(tensors.states)
                trained = any(attachment.active and attachment.steps for attachment in self._attachments)
                tensors.require_inside(outside, trained, likely_cause(self._attachments))
            checks.require_equal_on(ranks, tensors.states.values())
            drift = tensors.drift_inside()
            measured: list[tuple[Guard, Measured]] = []
            for guard in reversed(self._guards):
                measured.append((guard, guard.measure(look, ranks)))
            estimate = measured[0][1].estimate
            assert estimate is not None
            warn_of_a_guess(estimate)
            for guard, found in measured:
                guard.commit(found)
            self._end_task()
            before.done = True
        result = self._report(measured[0][1], drift, look.seconds, time.perf_counter() - started)
        warn_of_exhaustion(result)
        warn_of_no_edge(result, changed)
        return result

    def _report(self, found: Measured, drift: float | None, fisher_seconds: float, seconds: float) -> Consolidation:
        touched = sum(report.touched_entries for report in found.reports.values())
        frozen = sum(report.frozen_now for report in found.reports.values())
        assert found.estimate is not None
        assert self.prior is not None
        return Consolidation(
            task=self.tasks, tensors=found.reports, histogram=found.histogram, prior=self.prior,
            share=frozen / max(1, touched * self.depth), rules=self.rules, samples=found.estimate.samples,
            fisher_seconds=fisher_seconds, seconds=seconds, drift=drift, accuracy=found.estimate.accuracy,
            is_a_guess=found.estimate.is_a_guess,
        )  # fmt: skip

    def _current_versions(self) -> dict[str, tuple[int, int]]:
        """What tells whether a watched parameter has been written to. Shards do not tell, so they count as changed."""
        whole = {name: s for name, s in self._tensors.states.items() if not s.layout.sharded}
        there = {name: s for name, s in whole.items() if s.slot.find() is not None}
        return {name: (id(s.slot.parameter), s.local._version) for name, s in there.items()}

    def _has_changed(self) -> bool:
        """Whether a watched parameter may have been written to since the last task ended."""
        sharded = any(state.layout.sharded for state in self._tensors.states.values())
        return sharded or self._versions != self._current_versions()

    def _end_task(self) -> None:
        self.tasks, self._just_ended = self.tasks + 1, True
        self._versions = self._current_versions()
        for attachment in self._attachments:
            attachment.steps = 0
        self._look_out()
        self._hold_statistics()

    def _look_out(self) -> None:
        """Look out, from the first task on, for training that nothing clamps."""
        if self._lookout is not None:
            self._lookout.end()
        parameters = [state.slot.parameter for state in self._tensors.states.values() if state.slot.find() is not None]
        self._lookout = Lookout(self, self.model, parameters, self._attachments) if self.tasks else None

    @without_autocast
    def drift(self) -> float | None:
        """Estimate what earlier tasks have lost since the last consolidate, from what is stored, without their data.

        Returns:
            Nats a sample (a predicted token, for sequences), on hard tasks known to within a factor of two; 0 before
            the first consolidate, because nothing is held yet; None under rules by weight.

        Raises:
            ValueError: the weights are not finite.
        """
        self._tensors.bind_if_changed()
        lost = self._tensors.drift()
        if lost is not None and not isfinite(lost):
            raise ValueError("weights must be finite, got NaN or infinite entries; restore the last good weights")
        return lost

    # what is frozen

    @without_autocast
    def frozen_bits(self) -> dict[str, Tensor]:
        """Number of frozen leading bits of each parameter, by name; sharded where the parameter is.

        Along directions no single weight has bits. There it is how precisely the weight is held if it moves alone.
        """
        states = self._tensors.current()
        return {name: states[name].layout.wrapped(bits) for name, bits in self._tensors.frozen_bits().items()}

    def intervals(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Lower and upper end of each parameter's interval, by name. Layers held along directions are left out."""
        found = {}
        for name, state in self._tensors.held_by_entry().items():
            zeros = torch.zeros_like(state.slot.local, requires_grad=False)
            low, high = state.interval()
            found[name] = state.layout.wrapped(zeros + low), state.layout.wrapped(zeros + high)
        return found

    def capacity(self) -> float:
        """Share of all watched bits that is frozen: 0 before the first task, 1 when nothing can move."""
        states = self._tensors.current()
        ranks = current_ranks(any(state.layout.sharded for state in states.values()))
        bits = self._tensors.frozen_bits()
        counted = [bits[name] for name, state in states.items() if state.layout.counts_here(ranks)]
        frozen = int(sum(ranks.gather(sum(int(b.sum(dtype=torch.int64)) for b in counted))))
        return frozen / max(1, self.depth * sum(state.slot.parameter.numel() for state in states.values()))

    def nbytes(self, cache: bool = False) -> int:
        """Count the bytes of state in this process, which do not grow with tasks.

        Args:
            cache: count the interval ends that are kept while training too.

        Returns:
            The number of bytes.
        """
        return sum(guard.nbytes(cache) for guard in self._guards)

    # saving

    def state_dict(self, sharded: bool = False) -> dict[str, Any]:
        """Save the state. Where parameters are sharded over ranks, all ranks call this together.

        Args:
            sharded: keep the state of sharded parameters as DTensors. Default: whole tensors, which load anywhere.

        Returns:
            Tensors and plain scalars, by parameter name, and a digest of all. They load under ``weights_only=True``.
        """
        return saved(self, sharded)

    def load_state_dict(
        self, state: Mapping[str, Any], rename: Mapping[str, str] | Callable[[str], str] | None = None
    ) -> None:
        """Take up a saved state. Load the model's own weights as usual.

        Args:
            state: what ``state_dict`` returned. Watched parameters that it does not name start at their own task 1.
            rename: maps saved parameter names to those of this model.

        Raises:
            ValueError: the state is no state of a BLIP, is damaged, was saved with other settings, or is of another
                model. This BLIP is then as before the call.
        """
        take_up(self, state, rename)

    def _settings(self) -> dict[str, Any]:
        return {"freeze_statistics": self.freeze_statistics, **self._tensors.settings, **asdict(self.rules)}

    def __repr__(self) -> str:
        # local values only, because a single rank or a debugger may print
        settings = ", ".join(f"{name}={value}" for name, value in self._tensors.settings.items() if name != "bound")
        return f"BLIP({settings}, tasks={self.tasks})"

    def __getstate__(self) -> dict[str, Any]:
        """State for copy and pickle. An attachment to every optimizer is copied; hooks on single ones stay behind."""
        return {**self.__dict__, "_attachments": self._attachments.are_to_every_optimizer, "_lookout": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_attachments": Attachments()})
        if state["_attachments"]:
            self._attachments.to(self, None)
        note_holder(self.model, self)
        self._look_out()

    # running statistics

    def _hold_statistics(self) -> None:
        for module in self._with_statistics() if self.freeze_statistics else ():
            hold_in_eval(module) if self.tasks else release(module)

    def _with_statistics(self) -> list[nn.Module]:
        """Modules with running statistics that lie under watch or own a watched parameter."""
        owners = (module for slot in self._tensors.slots() for module, _ in slot.owners)
        return with_running_statistics([*watched_modules(self.model, self.watch), *owners])
