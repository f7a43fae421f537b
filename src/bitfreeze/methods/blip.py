"""BLIP as a method of the laboratory: clamp after each step, consolidate at the end of each task."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..bits import information_gain, radius
from ..blip import BLIP
from ..consolidation import Consolidation
from ..nets import MultiHead
from ..options import option
from ..refusals import require_settings
from ..rules import Rules
from ..streams import Task, TaskData
from .levels import Levels
from .method import Method, Record
from .registry import register_method
from .task_fisher import fisher_batches, require_fisher_options

RULES: dict[str, Callable[[], Rules]] = {
    "strict": Rules.strict,
    "following": Rules.following,
    "released": Rules.released,
    "text": Rules.text,
    "algorithm1": lambda: Rules.text(algorithm1=True),
    "text_straight_through": lambda: Rules.text(straight_through=True),
}


@register_method
@dataclass
class BitLevelInformationPreserving(Method):
    """Freezes the bits of the backbone that each task made certain."""

    record = Record(
        "blip",
        "Bit-Level Information Preserving: freezes the bits that a task made certain",
        paper="Shi et al., CVPR 2021",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
    )

    rules: str = option("strict", "strict, following, released, text, algorithm1 or text_straight_through")
    snap: bool | None = option(None, "whether weights end a task at their centre; none leaves it to the rules")
    gain: str | None = option(None, "information gain, appendix or eq8; none leaves it to the rules")
    rounding: str | None = option(
        None, "up to whole bits: the gain of each task, or the total; none leaves it to the rules"
    )
    levels: bool = option(False, "also hold what a unit gets from the mean input, within its bias's interval")
    bits: int = option(20, "the depth N to which a parameter is resolved")
    budget: float = option(0.1, "share of the bits in use that the first task may freeze; the prior follows from it")
    prior: float | None = option(None, "F_0 for the Fisher per sample, in place of the budget")
    bound: float = option(6.0, "C in the range +-C / sqrt(fan_in) of a layer's weights")
    samples: int | None = option(8000, "training samples of a task for its Fisher; none: all")
    labels: str = option("sample", "of the Fisher: sample (drawn from the model), exact (averaged over), true")
    fisher_batch: int = option(500, "samples at a time for the Fisher; the result does not depend on it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rules not in RULES:
            raise ValueError(f"rules={self.rules!r} is not known: use one of {', '.join(RULES)}")
        require_fisher_options(self.samples, self.labels, self.fisher_batch)
        require_settings(self.bits, self.budget, self.prior, self.bound, self._rules())
        if self.levels and self._rules().straight_through:
            raise ValueError("levels=true will not do with straight-through rules, whose weights are rounded")

    def _rules(self) -> Rules:
        changed: dict[str, Any] = {"snap": self.snap, "gain": self.gain, "rounding": self.rounding}
        return replace(RULES[self.rules](), **{name: value for name, value in changed.items() if value is not None})

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.net = net
        self.blip = BLIP(
            net, watch=net.backbone, bits=self.bits, budget=self.budget, prior=self.prior, bound=self.bound,
            rules=self._rules(), freeze_statistics=True,
        )  # fmt: skip
        self.last_report: Consolidation | None = None
        self.fisher_before: dict[str, Tensor] = {}  # the accumulated Fisher before the last task, until the next begins
        self.held_levels = Levels(net.backbone) if self.levels else None
        return net

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.fisher_before = {}
        if self.blip.rules.straight_through:
            self.blip.attach()
        self.blip.clamp_()

    def after_step(self, task: Task) -> None:
        if self.held_levels is not None:
            self.held_levels.hold_()
        self.blip.clamp_()

    def end_task(self, task: Task, data: TaskData) -> None:
        self.fisher_before = self._accumulated_fisher()
        batches = fisher_batches(data.train, self.samples, self.fisher_batch)
        self.last_report = self.blip.consolidate(batches, lambda x: self.likelihood(x, task), labels=self.labels)
        if self.held_levels is not None:
            self.net.eval()
            batches = fisher_batches(data.train, self.samples, self.fisher_batch)
            self.held_levels.measure(self.blip, batches, lambda x: self.logits(x, task))

    def state_dict(self) -> dict[str, Any]:
        return self.blip.state_dict() | ({} if self.held_levels is None else {"levels": self.held_levels.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.blip.load_state_dict(state)
        if self.held_levels is not None:
            self.held_levels.load_state_dict(state["levels"])

    def extra_bytes(self) -> int:
        return self.blip.nbytes() + (0 if self.held_levels is None else self.held_levels.nbytes())

    def report(self) -> dict[str, float]:
        if self.last_report is None:
            return {}
        return {
            "capacity": self.last_report.used,
            "bits_per_parameter": self.last_report.used * self.bits,
            "share_frozen": self.last_report.share,
            "prior": self.last_report.prior,
            "full_depth_entries": self.last_report.full_depth_entries,
            "fisher_seconds": self.last_report.fisher_seconds,
        }

    def pictures(self) -> dict[str, Tensor]:
        """Frozen bits, centres (in units of bound * 2^-N), bounds, and the information gain of the last task.

        And where in its interval each parameter lies: -127 is the lower end, 127 the upper.
        """
        found: dict[str, Tensor] = {}
        parameters = dict(self.net.named_parameters())
        for name, after in self.blip.state_dict()["tensors"].items():
            before = self.fisher_before.get(name, torch.tensor((self.blip.prior or 0.0) * after["prior_scale"]))
            gain = _gain(before, after["fisher"], after["tasks"], self.blip.rules)
            found |= {f"{name}/bits": after["bits"], f"{name}/centre": after["centre"], f"{name}/gain": gain.half()}
            found |= {f"{name}/bound": torch.tensor(after["bound"])}
            found |= {f"{name}/offset": _offset(parameters[name].detach(), after, self.bits)}
        return found

    def _accumulated_fisher(self) -> dict[str, Tensor]:
        return {name: s["fisher"] for name, s in self.blip.state_dict()["tensors"].items() if "fisher" in s}


def _gain(before: Tensor, after: Tensor, task: int, rules: Rules) -> Tensor:
    """The information gain of a task from F_{0:t-1} and F_{0:t}."""
    total = after * (task + 1) if rules.fisher == "mean" else after  # t F_{0:t-1} + F_t
    return information_gain(total - task * before, before, task, rules.gain)


def _offset(parameter: Tensor, state: dict[str, Any], depth: int) -> Tensor:
    units: Tensor = parameter * (2.0**depth / state["bound"]) - state["centre"]
    return (units / radius(state["bits"], depth) * 127).round().clamp(-127, 127).to(torch.int8)
