"""Fine-tuning, with and without a fixed backbone: what forgets most, and what cannot forget."""

from dataclasses import dataclass

from torch import nn

from ..statistics import hold_in_eval, with_running_statistics
from ..streams import Task, TaskData
from .method import Method, Record
from .registry import register_method


@register_method
@dataclass
class FineTuning(Method):
    """One task after another, nothing else."""

    record = Record(
        "ft",
        "fine-tuning: one task after another, nothing protected",
        memory="none",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
    )


@register_method
@dataclass
class FixedBackbone(Method):
    """After the first task only heads are trained."""

    record = Record(
        "ft_fix",
        "fine-tuning of heads only, once the first task has shaped the backbone",
        memory="none",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
    )

    def begin_task(self, task: Task, data: TaskData) -> None:
        if task.index > 0:
            self._fix(self.net.backbone)

    def end_task(self, task: Task, data: TaskData) -> None:
        self._fix(self.net.backbone)

    def _fix(self, backbone: nn.Module) -> None:
        backbone.requires_grad_(False)
        for module in with_running_statistics(backbone.modules()):
            hold_in_eval(module)
