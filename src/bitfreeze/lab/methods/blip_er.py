"""BLIP with a small buffer: weights are held, and kept samples of earlier tasks are trained on again."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..nets import MultiHead
from ..tasks import Batch, Task, TaskData
from .blip import BitLevelInformationPreserving
from .registry import register_method
from .task_buffer import BufferSize, TaskBuffer


@register_method
@dataclass
class BitLevelInformationPreservingWithReplay(BitLevelInformationPreserving):
    """BLIP whose steps train also on a batch from a buffer, as ``er`` does."""

    record = replace(
        BitLevelInformationPreserving.record,
        name="blip_er",
        description="BLIP with plain replay from a small buffer",
        paper="",
        replays=True,
        moves_old_heads=True,
        data_parallel=False,
        trainers=("supervised",),
    )

    buffer: BufferSize = 500

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.kept = TaskBuffer(self.buffer, tasks)
        return super().build(net, tasks)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        return self.step([batch, *self.kept.draw(len(batch.y))], optimizers)

    def end_task(self, task: Task, data: TaskData) -> None:
        super().end_task(task, data)
        self.kept.keep(task, data.train)

    def buffer_bytes(self) -> int:
        return self.kept.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"blip": super().state_dict(), "kept": self.kept.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["blip"])
        self.kept.load_state_dict(state["kept"])
