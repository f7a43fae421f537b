"""BLIP: after each task freeze as many leading bits of each parameter as the task's data told us about it.

A parameter whose first S bits are frozen may still move, inside an interval of radius bound * 2^-S (bits.py). Training
on a new task is ordinary training with each step followed by a clamp into that interval. At the end of the task the
Fisher information of the task's data says how much was learned about each parameter; that many more bits are frozen,
so the interval shrinks. State lives beside the model, by parameter name; the model itself stays a plain model.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import fisher as fisher_information
from .attachment import Attachment, likely_cause, unwrap
from .bounds import bound_and_prior_scale
from .budget import prior_of_first_task
from .consolidation import Consolidation, report_tensors, warn_of_exhaustion
from .distributed import world
from .fisher.estimation import Progress
from .fisher.memory import DEFAULT as DEFAULT_MEMORY
from .parameters import (
    Slot,
    Watch,
    find_parameters,
    require_float,
    require_same_shape,
    watched_modules,
    watched_parts,
)
from .refusals import STATE_FORMAT, renamed, require_equal_on, require_same_model, require_settings, require_state
from .rules import Rules
from .sharding import require_supported, reshard
from .statistics import hold_in_eval, release, with_running_statistics
from .tensor_state import TensorState, find_companions
from .whereabouts import put_back, require_healthy, require_inside, require_own_weights


class BLIP:
    """Keeps what a model has learned while it goes on learning.

    - model: any nn.Module with float32 (or float64) parameters.
    - watch: the part whose parameters are protected, or a list of parts and parameter names; default the whole model.
    - bits: the depth N to which a parameter is resolved, 1 to 23.
    - budget: the share of the bits of parameters in use that the first task may freeze; the prior follows from it.
    - prior: F_0 itself, on the scale of the per-sample Fisher; given, it takes the place of the budget.
    - bound: C in the range +-C / sqrt(fan_in) of a layer's weights.
    - rules: what is frozen around which centre; ``Rules.strict()`` unless the paper's ways are wanted.
    - freeze_statistics: hold BatchNorm and the like in eval mode once the first task has been consolidated.
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
        require_settings(bits, budget, prior, bound, rules)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        require_supported(model, world())
        self.model = model
        # a list, since what was given may be an iterator
        self.watch: Watch = None if watch is None else watched_parts(model, watch)
        # plain numbers, whatever kind was given: a state must load under weights_only=True
        self.depth, self.budget, self.bound = int(bits), float(budget), float(bound)
        self.given_prior = None if prior is None else float(prior)
        self.prior = self.given_prior  # the one in force: given, or solved for at the first consolidate
        self.rules = Rules.strict() if rules is None else rules
        self.freeze_statistics = freeze_statistics
        self.tasks = 0
        self._states: dict[str, TensorState] = {}
        self._modules: list[nn.Module] = []  # of the model, when its parameters were last looked for
        self._absent: dict[str, TensorState] = {}  # of parameters that the model does not have just now
        self._underway = False  # whether a step has been made since attach()
        self._just_loaded = False  # whether a state was taken up and no step made since
        self._attachments: list[Attachment] = []
        require_float(self._slots())
        self._warn_of_statistics()

    # training

    def attach(self, optimizer: Optimizer | Any = None) -> Attachment:
        """Clamp after each optimizer step. By default after any step of any optimizer on a watched parameter, whenever
        it was or will be built; with ``optimizer``, after that one's steps only. ``.remove()`` on the result ends it,
        and so does the end of this object: keep it.
        """
        chosen = None if optimizer is None else self._require_watched(unwrap(optimizer))
        self._bind()
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
        """Move every watched parameter into its interval. For loops without a torch optimizer, and after weights were
        restored or averaged; doing it twice changes nothing."""
        if not self._states or self._modules != list(self.model.modules()):
            self._bind()
        self._find_moved()
        self._reshard()
        for state in self._states.values():
            state.after_step_()

    def _before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        straight_through = self.rules.straight_through
        if self._underway and not self._just_loaded and not straight_through:
            return
        held = _held_by(optimizer, self._states)
        if not held:
            return
        if not self._underway:
            self._underway = True
            self._widen()
        if self._just_loaded:
            require_own_weights(self._states, self.rules)
            self._just_loaded = False
        if straight_through and has_closure:
            raise ValueError(
                "with straight-through rules the passes must come before the step, not in a closure given to it: "
                "call backward() first, then step()"
            )
        for state in held if straight_through else ():
            state.before_step_()

    def _after_step(self, optimizer: Optimizer) -> bool:
        self._find_moved()
        self._reshard()
        stepped = _held_by(optimizer, self._states)
        for state in stepped:
            state.after_step_()
        return bool(stepped)

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
        """Measure what the task's data say about each parameter, and freeze as many more bits.

        - data, forward, labels, samples, targets, generator, distributed: see ``bitfreeze.diagonal_fisher``.
        - memory_bytes, progress: see ``bitfreeze.fisher.estimate``.
        - outside: what to do if a parameter left its interval since the last clamp: ``"raise"``, or ``"mend"`` it.

        If anything is wrong with the input, model and state stay as they were. With several ranks all of them call
        this; rank 0 decides, and all end with the same state.
        """
        started, ranks = time.perf_counter(), world(distributed)
        before, mended = (self._states, self._absent), {}
        try:
            with ranks.together():
                self._bind()
                require_healthy(self._states)
                mended = require_inside(self._states, self.rules, outside, likely_cause(self._attachments))
            require_equal_on(ranks, self._states.values())
            estimate = fisher_information.estimate(
                self.model, data, forward, watch=self.watch, labels=labels, samples=samples, targets=targets,
                generator=generator, memory_bytes=memory_bytes, progress=progress, distributed=distributed,
            )  # fmt: skip
            prior = self.prior
            if prior is None:
                gain = self.rules.gain
                prior = prior_of_first_task(self._states, estimate.values, self.budget, self.depth, gain, ranks)
            after = {name: state.after_task(estimate.values[name], prior) for name, state in self._states.items()}
        except BaseException:
            put_back(self._states, mended)
            self._states, self._absent = before
            raise
        for state in after.values():
            state.take_from_first_(ranks)
        reports, histogram = report_tensors(self._states, after, estimate.values, estimate.rules, ranks)
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
        self._states, self.prior = after, prior
        self.tasks += 1
        for state in after.values():
            state.snap_()
        for attachment in self._attachments:
            attachment.steps = 0
        self._hold_statistics()

    # what is frozen

    def frozen_bits(self) -> dict[str, Tensor]:
        """How many leading bits of each parameter are frozen; sharded like the parameter, where that is."""
        return {name: state.layout.wrapped(state.frozen_bits()) for name, state in self._current().items()}

    def intervals(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Lower and upper end of the interval of each parameter."""
        found = {}
        for name, state in self._current().items():
            zeros = torch.zeros_like(state.slot.local, requires_grad=False)
            low, high = state.interval()
            found[name] = state.layout.wrapped(zeros + low), state.layout.wrapped(zeros + high)
        return found

    def capacity(self) -> float:
        """The share of all watched bits that is frozen: 0 before the first task, 1 when nothing can move."""
        states = self._current().values()
        ranks = world(any(state.layout.sharded for state in states))
        bits = [state.frozen_bits() for state in states if state.layout.counts_here(ranks)]
        frozen = int(sum(ranks.gather(sum(int(b.sum(dtype=torch.int64)) for b in bits))))
        return frozen / max(1, self.depth * sum(state.slot.parameter.numel() for state in states))

    def nbytes(self, cache: bool = False) -> int:
        """Bytes of state in this process, which do not grow with the number of tasks; ``cache``: with the interval ends
        that are kept while training."""
        return sum(state.nbytes(cache) for state in (*self._states.values(), *self._absent.values()))

    # saving

    def state_dict(self, sharded: bool = False) -> dict[str, Any]:
        """Tensors and plain scalars only, by parameter name. Where parameters are sharded over ranks, all ranks call
        this together and get whole tensors, which load anywhere; or, ``sharded``, DTensors like the parameters."""
        return {
            "format": STATE_FORMAT,
            "settings": self._settings(),
            "prior": self.prior,
            "tasks": self.tasks,
            "tensors": {name: state.state_dict(sharded) for name, state in self._states.items()},
            "absent": {name: state.state_dict(sharded) for name, state in self._absent.items()},
        }

    def load_state_dict(
        self, state: Mapping[str, Any], rename: Mapping[str, str] | Callable[[str], str] | None = None
    ) -> None:
        """Take up a saved state. ``rename`` maps saved parameter names to those of this model. Load the model's own
        weights as usual; parameters that the state does not know start at their own task 1."""
        require_state(state)
        mine = self._settings()
        older = {"freeze_statistics": self.freeze_statistics, "rounding": "each"}  # which older states do not tell
        theirs = {**older, **state["settings"]}
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        differences = [f"{name}={theirs.get(name)!r} there, {mine.get(name)!r} here" for name in names]
        if differences:
            raise ValueError(f"the state was saved with other settings ({'; '.join(differences)}): use the same")
        slots = {slot.name: slot for slot in self._slots()}
        new_names = renamed([*state["tensors"], *state["absent"]], rename)
        require_same_model(slots, {new_names[name]: saved for name, saved in state["tensors"].items()})
        absent = {
            new_names[name]: TensorState(Slot(new_names[name]), self.depth, self.rules, **saved)
            for name, saved in state["absent"].items()
        }
        self._states = {
            new_names[name]: self._new_state(slots[new_names[name]]).loaded(saved)
            for name, saved in state["tensors"].items()
        }
        self._absent = absent
        self.prior, self.tasks, self._just_loaded = state["prior"], state["tasks"], True
        self._hold_statistics()

    def _settings(self) -> dict[str, Any]:
        measure = {"budget": self.budget} if self.given_prior is None else {"prior": self.given_prior}
        own = {"bits": self.depth, "bound": self.bound, "freeze_statistics": self.freeze_statistics}
        return {**own, **measure, **asdict(self.rules)}

    def __repr__(self) -> str:
        # nothing that ranks would have to do together: one of them may print, or a debugger
        return f"BLIP(bits={self.depth}, budget={self.budget}, prior={self.prior}, tasks={self.tasks})"

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: a copy is attached if this is, to every optimizer; hooks on single ones stay behind."""
        return {**self.__dict__, "_attachments": [None for a in self._attachments if a.active and a.is_to(None)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state["_attachments"]
        self.__dict__.update({**state, "_attachments": []})
        if attached:  # to every optimizer: that can be done for a copy too
            self._attachments = [Attachment(self, None)]

    # keeping up with the model

    def _slots(self) -> list[Slot]:
        return find_parameters(self.model, self.watch)

    def _new_state(self, slot: Slot) -> TensorState:
        if slot.layout.sharded and self.rules.straight_through:
            raise ValueError(
                f"'{slot.name}' is sharded over ranks, where straight-through rules do not work: use others, or DDP"
            )
        bound, scale = bound_and_prior_scale(slot, self.bound, self.depth, self.rules)
        return TensorState(slot, self.depth, self.rules, bound, scale, slot.layout)

    def _bind(self) -> None:
        """Take note of the watched parameters as they are now; from here on their bounds are fixed."""
        require_float(self._slots())
        current = self._current()
        kept = {id(state) for state in current.values()}
        known = {**self._absent, **self._states}
        self._absent = {name: s for name, s in known.items() if id(s) not in kept and s.bits is not None}
        self._states, self._modules = current, list(self.model.modules())
        find_companions(current.values())

    def _find_moved(self) -> None:
        """A parameter that was pruned or parametrised has another place and name, or has gone."""
        if any(state.slot.find() is None for state in self._states.values()):
            self._bind()

    def _widen(self) -> None:
        """Weights that were loaded between attach() and the first step may need wider bounds: nothing is clipped."""
        for name, state in self._states.items():
            if state.bits is None and state.slot.find() is not None and state.layout.largest(state.outside()[0]):
                self._states[name] = self._new_state(state.slot)

    def _reshard(self) -> None:
        if any(state.layout.sharded for state in self._states.values()):
            reshard(self.model)

    def _current(self) -> dict[str, TensorState]:
        """The states of the watched parameters: some may have appeared, or have another name or module now."""
        slots, known = self._slots(), {**self._absent, **self._states}
        names = {slot.name for slot in slots}
        nameless = {id(state.slot.held): state for name, state in known.items() if name not in names}
        states = {}
        for slot in slots:
            state = known.get(slot.name) or nameless.get(id(slot.held)) or self._new_state(slot)
            if state.bits is not None:
                require_same_shape(slot, state.layout.wrapped(state.bits).shape)
            state.rebind(slot)
            states[slot.name] = state
        return states

    def _hold_statistics(self) -> None:
        for module in self._with_statistics() if self.freeze_statistics else ():
            hold_in_eval(module) if self.tasks else release(module)

    def _with_statistics(self) -> list[nn.Module]:
        """Modules under watch that keep running statistics, or of which a parameter is watched."""
        owners = (module for slot in self._slots() for module, _ in slot.owners)
        return with_running_statistics([*watched_modules(self.model, self.watch), *owners])

    def _warn_of_statistics(self) -> None:
        found = self._with_statistics()
        if found and not self.freeze_statistics:
            warnings.warn(
                f"{len(found)} modules under watch ({type(found[0]).__name__}) keep running statistics, which later "
                "tasks overwrite whatever is frozen: use freeze_statistics=True to hold them after the first task",
                stacklevel=3,
            )

    def _require_watched(self, optimizer: Optimizer) -> Optimizer:
        if not _held_by(optimizer, self._current()):
            raise ValueError(
                "the optimizer holds none of the watched parameters: build it from this model's parameters, or "
                "attach() without one"
            )
        return optimizer


def _held_by(optimizer: Optimizer, states: dict[str, TensorState]) -> list[TensorState]:
    """The states of the parameters that an optimizer steps."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [state for state in states.values() if id(state.slot.find()) in held]
