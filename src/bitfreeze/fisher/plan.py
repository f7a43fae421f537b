"""Plan of an estimate: the way each parameter's Fisher is computed.

A way is used only if it agrees with autograd on three samples, one at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from ..likelihoods import Likelihood
from ..likelihoods.outputs import as_likelihood
from ..model.parameters import Slot
from .agreement import agree, first_line
from .batches import Places, row_places, take_rows
from .fallback import Work, add_by_torch_func, single_gradients
from .measuring import Deltas, Measuring
from .registry import Rule, convolves_inside, find_rule
from .taps import Call, Taps, output_gradients, tapped

PROBE_ROWS = 3


class Way(Enum):
    RULE = "rule"
    IDLE = "not used by forward"
    TORCH_FUNC = "torch.func"
    ONE_BY_ONE = "one sample at a time"


@dataclass
class Plan:
    """The way of each parameter, and the reason in words."""

    places: Places | None  # which tensors of a batch have a row for each sample; None if it cannot be split
    provisional: bool  # made from a batch of one sample, which shows little
    ways: dict[str, Way] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    reached: bool = False  # whether the output depends on any parameter
    untried: set[str] = field(default_factory=set)  # parameters with a rule, but with gradients of zero in the probe

    def choose(self, slot: Slot, way: Way, reason: str) -> None:
        self.ways[slot.name] = way
        self.reasons[slot.name] = reason

    def by_way(self, slots: Sequence[Slot], way: Way) -> list[Slot]:
        return [slot for slot in slots if self.ways[slot.name] is way]

    def describe(self) -> dict[str, str]:
        plain = (Way.RULE, Way.IDLE)
        return {
            name: self.reasons[name] if way in plain else f"{way.value} ({self.reasons[name]})"
            for name, way in self.ways.items()
        }


def candidate_rule(slot: Slot) -> tuple[Rule | None, str]:
    """The registered rule of a parameter with one owner, and its name; or None, and the reason."""
    if len(slot.owners) > 1:
        return None, f"held in {len(slot.owners)} places"
    return find_rule(*slot.owners[0])


def tapped_layers(slots: Sequence[Slot], measuring: Measuring) -> list[nn.Module]:
    layers = [slot.module for slot in slots if candidate_rule(slot)[0] is not None]
    return list(dict.fromkeys([*layers, *measuring.layers]))


def add_by_rules(
    totals: dict[str, Tensor], slots: Sequence[Slot], calls: Mapping[nn.Module, Call], deltas: Deltas, untried: set[str]
) -> list[Slot]:
    """totals += sum over samples of the squared gradient, by the rule of each parameter.

    Returns the parameters that were left out, because their rule is untried and their gradient is not zero.
    """
    left_out = []
    for slot in slots:
        delta = deltas[slot.module]
        if slot.name in untried and delta is not None and delta.any():
            left_out.append(slot)
        else:
            add_by_rule(totals[slot.name], slot, calls, deltas)
    return left_out


def single_calls(layers: Iterable[nn.Module], taps: Taps, n: int) -> dict[nn.Module, Call]:
    """The only call of each layer that has one, and with n samples."""
    found = {layer: taps.single(layer, n) for layer in layers}
    return {layer: call for layer, call in found.items() if call is not None}


def deltas_of(score: Tensor, calls: Mapping[nn.Module, Call], keep_graph: bool) -> Deltas:
    """d score / d output of the call of each layer."""
    return dict(zip(calls, output_gradients(score, list(calls.values()), keep_graph), strict=True))


@torch.no_grad()
def add_by_rule(total: Tensor, slot: Slot, calls: Mapping[nn.Module, Call], deltas: Deltas) -> None:
    rule, _ = candidate_rule(slot)
    delta = deltas[slot.module]
    if rule is not None and delta is not None:
        call = calls[slot.module]
        rule(total, call.layer, call.a.detach(), delta)


def zeros(slots: Sequence[Slot]) -> dict[str, Tensor]:
    return {slot.name: torch.zeros_like(slot.parameter, memory_format=torch.contiguous_format) for slot in slots}


class Probe:
    """A few samples to check rules and torch.func with. Autograd gives the true gradients of these samples."""

    def __init__(
        self, layers: Sequence[nn.Module], forward: Callable[[Any], Any], x: Any, likelihood: Likelihood
    ) -> None:
        self.layers, self.forward = layers, forward
        n, labels = likelihood.rows, likelihood.unlikely()
        self.places: Places | None = row_places(x, n)
        self.rows = min(PROBE_ROWS, n)
        # A batch can be split if some of its samples, or one alone, give the same log-probabilities as within it.
        self.why_whole = ""
        if n > 1:
            expected = likelihood.log_prob(labels).detach()
            for count in sorted({1, min(PROBE_ROWS, n - 1)}):
                part = slice(0, count)
                self.why_whole = self.why_whole or self._run_part(
                    take_rows(x, part, self.places), take_rows(labels, part, row_places(labels, n)), expected[part]
                )
        if self.why_whole:
            self.places = None
        if n <= PROBE_ROWS or self.why_whole:  # the whole batch is the better probe, or the only one
            self._run(x, labels)

    def _run_part(self, x: Any, labels: Any, expected: Tensor) -> str:
        try:
            self._run(x, labels)
        except Exception as error:  # forward or its labels may not fit fewer samples; forward then gets whole batches
            return f"running fewer samples fails: {first_line(error)}"
        same = self.log_prob.shape == expected.shape
        same = same and torch.allclose(self.log_prob.detach(), expected, rtol=1e-3, atol=1e-4)
        return "" if same else "its batches cannot be split into samples"

    def _run(self, x: Any, labels: Any) -> None:
        self.x, self.labels = x, labels
        with tapped(self.layers) as self.taps:
            self.likelihood = as_likelihood(self.forward(x))
        self.log_prob = self.likelihood.log_prob(labels)

    def truth(self, slots: Sequence[Slot]) -> dict[str, Tensor]:
        """Sum of squared gradients by autograd, one sample at a time, of the parameters that have a gradient."""
        totals: dict[str, Tensor] = {}
        for number in self.log_prob[: self.rows]:
            gradients = single_gradients(number, [slot.parameter for slot in slots])
            for slot, gradient in zip(slots, gradients, strict=True):
                if gradient is not None and slot.name in totals:
                    totals[slot.name].addcmul_(gradient, gradient)
                elif gradient is not None:
                    totals[slot.name] = gradient.square()
        return totals


def make_plan(
    slots: Sequence[Slot],
    measuring: Measuring,
    forward: Callable[[Any], Any],
    x: Any,
    likelihood: Likelihood,
    scratch: dict[str, Tensor],
) -> Plan:
    """Plan from a batch: the rules that agree with autograd, then torch.func where it agrees, then single samples.

    Factors of layers that are measured are checked too. ``scratch`` holds a tensor of zeros for each parameter, before
    and after. Reusing it saves a copy of the model.
    """
    probe = Probe(tapped_layers(slots, measuring), forward, x, likelihood)
    plan = Plan(probe.places, provisional=likelihood.rows == 1)
    calls = single_calls(probe.layers, probe.taps, probe.likelihood.rows)
    deltas = deltas_of(probe.log_prob[: probe.rows].sum(), calls, keep_graph=True)
    truth = probe.truth(list({slot.name: slot for slot in (*slots, *measuring.slots)}.values()))
    plan.reached = bool(truth)
    measuring.check(probe.taps, calls, deltas, truth)
    for slot in slots:
        plan.reasons[slot.name] = _try_rule(scratch[slot.name], slot, probe, calls, deltas)
    _choose_rules(plan, slots, probe, scratch, truth)
    rest = [slot for slot in slots if slot.name not in plan.ways]
    if rest:
        _try_torch_func(plan, rest, probe, scratch)
    return plan


def _choose_rules(
    plan: Plan, slots: Sequence[Slot], probe: Probe, scratch: dict[str, Tensor], truth: dict[str, Tensor]
) -> None:
    """Choose a rule, or idle, for each parameter. A parameter without either gets a reason, but no way."""
    for slot in slots:
        _, name = candidate_rule(slot)
        agrees, tried = agree(scratch[slot.name], truth.get(slot.name))
        if slot.name not in truth and not probe.taps.calls.get(slot.module):
            plan.choose(slot, Way.IDLE, Way.IDLE.value)
        elif not plan.reasons[slot.name]:
            if agrees:
                plan.choose(slot, Way.RULE, name)
                if not tried:
                    plan.untried.add(slot.name)
            else:
                plan.reasons[slot.name] = f"{name} disagrees with autograd"


def _try_rule(total: Tensor, slot: Slot, probe: Probe, calls: Mapping[nn.Module, Call], deltas: Deltas) -> str:
    """Add the squared gradients by the rule to ``total``. Returns why that is not possible, or ''."""
    rule, reason = candidate_rule(slot)
    layer = slot.module
    times = len(probe.taps.calls.get(layer, []))
    if rule is None:
        return reason
    if times == 0 and convolves_inside(layer):
        return f"{type(layer).__name__} overrides forward and does not convolve with its weight itself"
    if times == 0:
        return "used outside its module"
    if times > 1:
        return f"its module is called {times} times"
    if layer not in calls:
        return "the first axis of its module's input is not the sample"
    try:
        add_by_rule(total, slot, calls, deltas)
    except Exception as error:  # the rule cannot take this layout; the report names the reason
        total.zero_()
        return f"{reason} failed: {first_line(error)}"
    return ""


def _try_torch_func(plan: Plan, slots: Sequence[Slot], probe: Probe, scratch: dict[str, Tensor]) -> None:
    failure = probe.why_whole
    if not failure:
        work = Work(probe.forward, probe.x, probe.labels, log_prob_score, probe.rows, plan.places)
        try:
            add_by_torch_func(scratch, slots, work)
        except Exception as error:  # torch.func raises exceptions of many kinds; the report names the reason
            failure = f"torch.func: {first_line(error)}"
    truth = probe.truth(slots)
    for slot in slots:
        reason = plan.reasons[slot.name]
        agrees, tried = agree(scratch[slot.name], truth.get(slot.name))
        if failure:
            plan.choose(slot, Way.ONE_BY_ONE, f"{reason}; {failure}")
        elif not agrees:
            plan.choose(slot, Way.ONE_BY_ONE, f"{reason}; torch.func disagrees with autograd")
        elif not tried:
            plan.choose(slot, Way.ONE_BY_ONE, f"{reason}; no gradient to check torch.func with")
        else:
            plan.choose(slot, Way.TORCH_FUNC, reason)


def log_prob_score(likelihood: Likelihood, labels: Any) -> Tensor:
    return likelihood.log_prob(labels)
