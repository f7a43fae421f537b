"""BLIP as a method of the laboratory: clamp after each step, consolidate at the end of each task."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ...bits import radius
from ...blip.blip import BLIP
from ...blip.checks import require_settings
from ...blip.consolidation import Consolidation
from ...blip.rules import DirectionRules, Rules, WeightRules
from ..nets import MultiHead
from ..tasks import Split, Task, TaskData
from .method import ANY_SCENARIO, Record
from .registry import register_method
from .task_fisher import FisherMethod, Labels, Samples, fisher_batches

RuleSet = Literal["directions", "strict", "following", "released", "text", "algorithm1", "text_straight_through"]
RULES: dict[RuleSet, Callable[[], WeightRules | DirectionRules]] = {
    "directions": Rules.directions,
    "strict": Rules.strict,
    "following": Rules.following,
    "released": Rules.released,
    "text": Rules.text,
    "algorithm1": lambda: Rules.text(algorithm1=True),
    "text_straight_through": lambda: Rules.text(straight_through=True),
}
DEFAULTS = Rules.directions()
BY_WEIGHT = {"snap": None, "gain": None, "rounding": None, "levels": False}  # options of rules by weight only
ALONG_DIRECTIONS = {  # options of directions only
    **{name: getattr(DEFAULTS, name) for name in ("strongest", "every", "leading", "leading_every", "moment_samples")},
    "over_tasks": DEFAULTS.fisher,
    "sides": DEFAULTS.sides,
    "refit": DEFAULTS.refit,
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
        trainers=("supervised", "language", "reinforcement"),
        scenarios=ANY_SCENARIO,
    )

    rules: Annotated[RuleSet, "set of rules"] = "directions"
    snap: Annotated[bool | None, "move weights to their centre at a task's end; none leaves it to the rules"] = None
    gain: Annotated[Literal["appendix", "eq8"] | None, "information gain; none leaves it to the rules"] = None
    rounding: Annotated[
        Literal["each", "total"] | None,
        "the gain of each task, or the total, is rounded up to whole bits; none leaves it to the rules",
    ] = None
    levels: Annotated[bool, "also hold each unit's response to the mean input, within its bias's interval"] = False
    bits: Annotated[int, "the depth N to which a parameter is resolved"] = 20
    tolerance: Annotated[float | None, "directions: nats a sample that a task may cost the earlier ones"] = None
    strongest: Annotated[int | None, "directions of each side of a layer; none takes all"] = DEFAULTS.strongest
    every: Annotated[int, "directions: steps between two clamps along all directions"] = DEFAULTS.every
    leading: Annotated[int, "strongest directions that are clamped more often; 0 for none"] = DEFAULTS.leading
    leading_every: Annotated[int, "steps between two clamps along the leading directions"] = DEFAULTS.leading_every
    over_tasks: Annotated[Literal["sum", "mean"], "directions: the Fisher of all tasks"] = "sum"
    sides: Annotated[Literal["both", "inputs", "outputs"], "directions: sides of a layer that are turned"] = "both"
    refit: Annotated[bool, "directions: each task turns coordinates anew; else those of the first are kept"] = True
    damping: Annotated[float, "directions: share of the mean Fisher over outputs added to each"] = DEFAULTS.damping
    temperature: Annotated[float, "directions: by which logits are divided for the Fisher"] = DEFAULTS.temperature
    moment_samples: Annotated[int, "samples that directions are found from"] = DEFAULTS.moment_samples
    budget: Annotated[float | None, "by weight: share of the bits in use that the first task may freeze"] = None
    prior: Annotated[float | None, "by weight: F_0 for the Fisher per sample, in place of the budget"] = None
    bound: Annotated[float, "C in the range +-C / sqrt(fan_in) of a layer's weights"] = 6.0
    samples: Samples = 8000
    labels: Labels = "sample"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_options_of_the_rules()
        require_settings(
            self._rules(), self.bits, self.bound, tolerance=self.tolerance, budget=self.budget, prior=self.prior
        )

    def _require_options_of_the_rules(self) -> None:
        """Refuse options that the rules would not look at."""
        for name, unset in (BY_WEIGHT if self.rules == "directions" else ALONG_DIRECTIONS).items():
            if (value := getattr(self, name)) != unset:
                others = "rules by weight, such as strict" if self.rules == "directions" else "directions"
                raise ValueError(
                    f"method.{name} must be left out with method.rules={self.rules}, got {value!r}; it belongs "
                    f"to {others}"
                )

    def _rules(self) -> WeightRules | DirectionRules:
        rules = RULES[self.rules]()
        if isinstance(rules, DirectionRules):
            return DirectionRules(
                strongest=self.strongest, every=self.every, leading=self.leading, leading_every=self.leading_every,
                fisher=self.over_tasks, moment_samples=self.moment_samples, temperature=self.temperature,
                damping=self.damping, sides=self.sides, refit=self.refit,
            )  # fmt: skip
        changed: dict[str, Any] = {"snap": self.snap, "gain": self.gain, "rounding": self.rounding}
        chosen = {name: value for name, value in changed.items() if value is not None}
        return replace(rules, levels=self.levels, **chosen)

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.net = net
        self.blip = BLIP(
            net, watch=net.shared(), bits=self.bits, tolerance=self.tolerance, budget=self.budget, prior=self.prior,
            bound=self.bound, rules=self._rules(), freeze_statistics=True,
        )  # fmt: skip
        self.last_report: Consolidation | None = None
        self.fisher_before: dict[str, Tensor] = {}  # accumulated Fisher before the last task, until the next begins
        self._by_weight = isinstance(self.blip.rules, WeightRules)
        # optimizers are made anew in each task, so each of them is followed
        self._attachment = None if self._by_weight else self.blip.attach()
        return net

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.fisher_before = {}
        if getattr(self.blip.rules, "straight_through", False):
            self.blip.attach()
        self.blip.clamp_()

    def after_step(self, task: Task) -> None:
        if self._by_weight:
            self.blip.clamp_()

    def validation_loss(self, splits: Iterable[tuple[Task, Split]], task: Task, batch_size: int) -> float:
        self.blip.clamp_()
        return super().validation_loss(splits, task, batch_size)

    def end_task(self, task: Task, data: TaskData) -> None:
        if self._by_weight:
            tensors = self.blip.state_dict()["tensors"]
            self.fisher_before = {name: state["fisher"] for name, state in tensors.items() if "fisher" in state}
        batches = fisher_batches(data.train, self.samples, self.fisher_batch)
        with self.independent_samples(task, data):
            self.last_report = self.blip.consolidate(batches, lambda x: self.likelihood(x, task), labels=self.labels)

    def state_dict(self) -> dict[str, Any]:
        return self.blip.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.blip.load_state_dict(state)

    def extra_bytes(self) -> int:
        return self.blip.nbytes()

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
            **{name: value for name in ("drift", "at_edge") if (value := getattr(self.last_report, name)) is not None},
        }

    def pictures(self) -> dict[str, Tensor]:
        """Frozen bits, centres (in units of bound * 2^-N), bounds, information gain of the last task, and offsets.

        An offset is a parameter's place in its interval: -127 is the lower end, 127 the upper.
        """
        found: dict[str, Tensor] = {}
        if not isinstance(self.blip.rules, WeightRules):
            return {}  # bits along directions belong to no single weight
        parameters = dict(self.net.named_parameters())
        for name, after in self.blip.state_dict()["tensors"].items():
            before = self.fisher_before.get(name, torch.tensor((self.blip.prior or 0.0) * after["prior_scale"]))
            gain = _last_gain(self.blip.rules, after, before)
            found |= {
                f"{name}/bits": after["bits"],
                f"{name}/centre": after["centre"],
                f"{name}/gain": gain.half(),
                f"{name}/bound": torch.tensor(after["bound"]),
                f"{name}/offset": _offset(parameters[name].detach(), after, self.bits),
            }
        return found


def _last_gain(rules: WeightRules, after: dict[str, Any], before: Tensor) -> Tensor:
    """Information gain of the last task. Rows that were added later count their own tasks."""
    fisher, tasks = after["fisher"], after["tasks"]
    if "began" not in after:
        return rules.last_gain(fisher, before, tasks)
    gain, before = torch.empty_like(fisher), before.expand_as(fisher)
    for began in torch.unique(after["began"]).tolist():
        rows = after["began"] == began
        gain[rows] = rules.last_gain(fisher[rows], before[rows], tasks - began)
    return gain


def _offset(parameter: Tensor, state: dict[str, Any], depth: int) -> Tensor:
    units: Tensor = parameter * (2.0**depth / state["bound"]) - state["centre"]
    return (units / radius(state["bits"], depth) * 127).round().clamp(-127, 127).to(torch.int8)
