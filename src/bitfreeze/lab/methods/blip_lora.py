"""BLIP for LoRA: adapters are held so that the merged weights keep what the base knew and what earlier tasks taught."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from ...blip.adapters import HeldAdapters
from ...blip.blip import BLIP
from ...blip.low_rank import Term
from ...blip.protection import table_of
from ...blip.widening import Widening
from ..nets import MultiHead
from ..tasks import Task, TaskData
from .lora import LowRank, LowRankAdaptation
from .method import Record
from .registry import register_method
from .task_fisher import FisherMethod, Labels, Samples, fisher_batches


@register_method
@dataclass
class HeldAdaptation(LowRankAdaptation, FisherMethod):
    """Trains adapters, holds them after each step, and merges them when their task ends. Then the task is measured."""

    record = Record(
        "blip_lora",
        "BLIP for LoRA: adapters that are held along directions of the weights, merged when their task ends",
        memory="O(1)",
        trainers=("supervised", "language"),
    )

    tolerance: Annotated[
        float | None, "nats a sample that a task may cost the earlier ones; none leaves it to BLIP"
    ] = None
    samples: Samples = 8000
    labels: Labels = "sample"

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        super().build(net, tasks)
        names = {id(module): name for name, module in net.named_modules()}
        self.held_layers = {f"{names[id(adapter)]}.layer.weight": adapter for adapter in self.adapters}
        self.blip = BLIP(net, watch=[adapter.layer for adapter in self.adapters], tolerance=self.tolerance)
        self.held: HeldAdapters | None = None  # from the end of the first task on
        return net

    def end_task(self, task: Task, data: TaskData) -> None:
        if self.held is not None:
            self.held.clamp_()
            self.held.settle(self.blip)
        super().end_task(task, data)
        batches = fisher_batches(data.train, self.samples, self.fisher_batch)
        with self.independent_samples(task, data):
            self.blip.consolidate(batches, lambda x: self.likelihood(x, task), labels=self.labels, outside="mend")
        self._hold()

    def _hold(self) -> None:
        table = table_of(self.blip.state_dict())
        terms = {name: _terms(adapter) for name, adapter in self.held_layers.items()}
        self.held = HeldAdapters(table, terms, table["settings"]["tolerance"])
        self.held.attach()

    def state_dict(self) -> dict[str, Any]:
        if self.held is None:
            return {"blip": self.blip.state_dict()}
        return {"blip": self.blip.state_dict(), "width": self.held.widening.width, "steps": self.held.widening.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.blip.load_state_dict(state["blip"])
        if "width" in state:
            self._hold()
            assert self.held is not None
            self.held.widening = Widening(state["width"], state["steps"])

    def extra_bytes(self) -> int:
        held = 0 if self.held is None else self.held.nbytes()
        return super().extra_bytes() + self.blip.nbytes() + held


def _terms(adapter: LowRank) -> Callable[[], list[Term]]:
    return lambda: [Term(adapter.down.detach(), adapter.up.detach(), adapter.scale)]
