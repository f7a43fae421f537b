"""BLIP as a method of the laboratory: clamp after each step, consolidate at the end of each task."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ...bits import radius
from ...blip.blip import BLIP
from ...blip.checks import require_settings
from ...blip.consolidation import Consolidation
from ...blip.levels import Levels
from ...blip.rules import Rules
from ..nets import MultiHead
from ..tasks import Task, TaskData
from .method import Record
from .registry import register_method
from .task_fisher import FisherMethod, Labels, Samples, fisher_batches

RuleSet = Literal["strict", "following", "released", "text", "algorithm1", "text_straight_through"]
RULES: dict[RuleSet, Callable[[], Rules]] = {
    "strict": Rules.strict,
    "following": Rules.following,
    "released": Rules.released,
    "text": Rules.text,
    "algorithm1": lambda: Rules.text(algorithm1=True),
    "text_straight_through": lambda: Rules.text(straight_through=True),
}


@register_method
@dataclass
class BitLevelInformationPreserving(FisherMethod):
    """Freezes the bits of the backbone that a task made certain."""

    record = Record(
        "blip",
        "Bit-Level Information Preserving: freezes the bits that a task made certain",
        paper="Shi et al., CVPR 2021",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
    )

    rules: Annotated[RuleSet, "set of rules"] = "strict"
    snap: Annotated[bool | None, "move weights to their centre at a task's end; none leaves it to the rules"] = None
    gain: Annotated[Literal["appendix", "eq8"] | None, "information gain; none leaves it to the rules"] = None
    rounding: Annotated[
        Literal["each", "total"] | None,
        "the gain of each task, or the total, is rounded up to whole bits; none leaves it to the rules",
    ] = None
    levels: Annotated[bool, "also hold each unit's response to the mean input, within its bias's interval"] = False
    bits: Annotated[int, "the depth N to which a parameter is resolved"] = 20
    budget: Annotated[float, "share of the bits in use that the first task may freeze; the prior follows from it"] = 0.1
    prior: Annotated[float | None, "F_0 for the Fisher per sample, in place of the budget"] = None
    bound: Annotated[float, "C in the range +-C / sqrt(fan_in) of a layer's weights"] = 6.0
    samples: Samples = 8000
    labels: Labels = "sample"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_settings(self.bits, self.budget, self.prior, self.bound, self._rules())
        if self.levels and self._rules().straight_through:
            raise ValueError("method.levels must be false with straight-through rules, which round weights, got true")

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
        self.fisher_before: dict[str, Tensor] = {}  # accumulated Fisher before the last task, until the next begins
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
        tensors = self.blip.state_dict()["tensors"]
        self.fisher_before = {name: state["fisher"] for name, state in tensors.items() if "fisher" in state}
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
        """Frozen bits, centres (in units of bound * 2^-N), bounds, information gain of the last task, and offsets.

        An offset is a parameter's place in its interval: -127 is the lower end, 127 the upper.
        """
        found: dict[str, Tensor] = {}
        parameters = dict(self.net.named_parameters())
        for name, after in self.blip.state_dict()["tensors"].items():
            before = self.fisher_before.get(name, torch.tensor((self.blip.prior or 0.0) * after["prior_scale"]))
            gain = self.blip.rules.last_gain(after["fisher"], before, after["tasks"])
            found |= {
                f"{name}/bits": after["bits"],
                f"{name}/centre": after["centre"],
                f"{name}/gain": gain.half(),
                f"{name}/bound": torch.tensor(after["bound"]),
                f"{name}/offset": _offset(parameters[name].detach(), after, self.bits),
            }
        return found


def _offset(parameter: Tensor, state: dict[str, Any], depth: int) -> Tensor:
    units: Tensor = parameter * (2.0**depth / state["bound"]) - state["centre"]
    return (units / radius(state["bits"], depth) * 127).round().clamp(-127, 127).to(torch.int8)
