"""BLIP as a method of the laboratory: clamp after each step, consolidate at the end of each task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..blip import BLIP
from ..consolidation import Consolidation
from ..nets import MultiHead
from ..rules import Rules
from ..streams import Task, TaskData
from .method import Method, Record
from .registry import register_method

RULES: dict[str, Callable[[], Rules]] = {
    "strict": Rules.strict,
    "released": Rules.released,
    "text": Rules.text,
    "algorithm1": lambda: Rules.text(algorithm1=True),
    "text_straight_through": lambda: Rules.text(straight_through=True),
}


@register_method
@dataclass
class Blip(Method):
    """Freezes the bits of the backbone that each task made certain."""

    record = Record(
        "blip",
        "Bit-Level Information Preserving: freezes the bits that a task made certain",
        paper="Shi et al., CVPR 2021",
        memory="O(1)",
    )

    rules: str = "strict"
    bits: int = 20
    budget: float = 0.1
    prior: float | None = None
    bound: float = 6.0
    samples: int = 8000
    labels: str = "sample"
    fisher_batch: int = 500

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        if self.rules not in RULES:
            raise ValueError(f"rules={self.rules!r} is not known: use one of {', '.join(RULES)}")
        self.net = net
        self.blip = BLIP(
            net, watch=net.backbone, bits=self.bits, budget=self.budget, prior=self.prior, bound=self.bound,
            rules=RULES[self.rules](), freeze_statistics=True,
        )  # fmt: skip
        self.last: Consolidation | None = None
        return net

    def begin_task(self, task: Task, data: TaskData) -> None:
        if self.blip.rules.straight_through:
            self.blip.attach()
        self.blip.clamp_()

    def after_step(self, task: Task) -> None:
        self.blip.clamp_()

    def end_task(self, task: Task, data: TaskData) -> None:
        self.last = self.blip.consolidate(
            data.train.batches(self.fisher_batch),
            lambda x: self.logits(x, task),
            samples=min(self.samples, len(data.train)),
            labels=self.labels,
        )

    def state_dict(self) -> dict[str, Any]:
        return self.blip.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.blip.load_state_dict(state)

    def extra_bytes(self) -> int:
        return self.blip.nbytes()

    def report(self) -> dict[str, float]:
        if self.last is None:
            return {}
        return {
            "capacity_used": self.last.used,
            "share_frozen": self.last.share,
            "prior": self.last.prior,
            "full_depth_entries": self.last.full_depth_entries,
            "fisher_seconds": self.last.fisher_seconds,
        }
