"""Fine-tuning, which forgets most, and fine-tuning with a fixed backbone, which cannot forget."""

from dataclasses import dataclass
from typing import Annotated

from ..tasks import Task, TaskData
from .method import ANY_SCENARIO, Method, Record
from .registry import register_method
from .unprotected import hold_statistics


@register_method
@dataclass
class FineTuning(Method):
    """Trains one task after another and protects nothing."""

    record = Record(
        "ft",
        "fine-tuning: one task after another, nothing protected",
        data_parallel=True,
        trainers=("supervised", "language", "reinforcement"),
        scenarios=ANY_SCENARIO,
    )


@register_method
@dataclass
class FixedBackbone(Method):
    """Trains only heads after the first task, or from the start."""

    record = Record(
        "ft_fix",
        "fine-tuning of heads only, once the first task has shaped the backbone",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
        scenarios=ANY_SCENARIO,
    )

    probe: Annotated[bool, "the backbone is fixed from the start: a linear probe of pretrained features"] = False

    def begin_task(self, task: Task, data: TaskData) -> None:
        if task.index > 0 or self.probe:
            self._fix_backbone()

    def end_task(self, task: Task, data: TaskData) -> None:
        self._fix_backbone()

    def _fix_backbone(self) -> None:
        self.net.backbone.requires_grad_(False)
        hold_statistics(self.net.backbone)
