"""How much earlier tasks lose beside what BLIP estimates: a plug-in method that keeps some of their samples.

    BITFREEZE_PLUGINS=research/drift.py bitfreeze run STREAM --method blip_drift --set method.rules=directions ...

writes after each task ``drift`` (the estimate, with its factor) and ``lost`` into the run's events. ``lost`` is the KL
divergence from the network before this task to the one after it, on 300 samples of each earlier task, summed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bitfreeze.lab.methods import Record, register_method
from bitfreeze.lab.methods.blip import BitLevelInformationPreserving
from bitfreeze.lab.tasks import Task, TaskData

SAMPLES = 300


@register_method
@dataclass
class BlipWithDrift(BitLevelInformationPreserving):
    """BLIP that compares its estimate of what is lost with the truth."""

    record = Record("blip_drift", "BLIP that compares its estimate of what is lost with the truth", memory="O(T)")

    def begin_task(self, task: Task, data: TaskData) -> None:
        super().begin_task(task, data)
        self.kept: list[tuple[Task, Tensor, Tensor]] = getattr(self, "kept", [])
        self.lost = 0.0

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        super().end_task(task, data)
        self.net.eval()
        x, _ = data.valid.take(slice(0, SAMPLES))
        after = [(owner, x, self.logits(x, owner).log_softmax(1)) for owner, x, _ in self.kept]
        self.lost = sum(
            (before.exp() * (before - now)).sum(1).mean().item()
            for (_, _, before), (_, _, now) in zip(self.kept, after, strict=True)
        )
        self.kept = [*after, (task, x, self.logits(x, task).log_softmax(1))]

    def report(self) -> dict[str, float]:
        return {**super().report(), "lost": self.lost}
