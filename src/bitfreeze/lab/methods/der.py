"""Dark experience replay: kept samples shall keep the scores that they had when they were kept."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Task
from .method import ANY_SCENARIO, Method, Record
from .registry import register_method
from .reservoir import Reservoir


@register_method
@dataclass
class DarkExperienceReplay(Method):
    """Cross-entropy + alpha * (mean square of z - z_kept) + beta * (cross-entropy of kept samples).

    z are the scores of a kept sample by the head of its own task. The two terms have draws of their own.
    """

    record = Record(
        "der",
        "dark experience replay (DER++): kept samples keep their scores, and their labels are learned again",
        paper="Buzzega et al., NeurIPS 2020",
        memory="O(1)",
        replays=True,
        moves_old_heads=True,
        scenarios=ANY_SCENARIO,
    )

    buffer: Annotated[int, "samples kept, over all tasks"] = 500
    alpha: Annotated[float, "weight of the squared distance to kept scores"] = 0.2
    beta: Annotated[float, "weight of the loss on kept labels; 0 makes DER, more makes DER++"] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["buffer"], lambda n: n >= 1, "at least 1")
        require("method", self, ["alpha", "beta"], lambda x: x >= 0, "at least 0", "0 turns the term off")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.tasks = tasks
        self.reservoir = Reservoir(self.buffer)
        return super().build(net, tasks)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        """Take one step, then let the batch take part in the buffer with the scores that the step started from."""
        loss = super().train_batch(batch, progress, optimizers)
        scores, count = self.scores, len(batch.y)
        index, columns = batch.y.new_full((count,), batch.task.index), batch.y.new_full((count,), scores.shape[1])
        self.reservoir.add(x=batch.x, y=batch.y, scores=scores, columns=columns, task=index)
        return loss

    def objective(self, batches: list[Batch]) -> Tensor:
        (batch,) = batches
        scores = self.logits(batch.x, batch.task)
        self.scores = scores.detach().float()
        loss = F.cross_entropy(scores, batch.y)
        if len(self.reservoir) and self.alpha:
            loss = loss + self.alpha * self._distance(self.reservoir.draw(len(batch.y)))
        if len(self.reservoir) and self.beta:
            loss = loss + self.beta * self._label_loss(self.reservoir.draw(len(batch.y)))
        return loss

    def _distance(self, kept: dict[str, Tensor]) -> Tensor:
        """Mean over samples of the mean square of z - z_kept, over the columns that were kept of a sample."""
        terms = []
        for z, own in self._by_task(kept):
            columns = int(own["columns"].max())  # a head that grows keeps the order of its columns
            among = torch.arange(columns, device=z.device) < own["columns"][:, None]
            squares = (z[:, :columns] - own["scores"][:, :columns]).square()
            terms.append((squares * among).sum(1).div(own["columns"]).sum())
        return torch.stack(terms).sum() / len(kept["y"])

    def _label_loss(self, kept: dict[str, Tensor]) -> Tensor:
        terms = [F.cross_entropy(z, own["y"], reduction="sum") for z, own in self._by_task(kept)]
        return torch.stack(terms).sum() / len(kept["y"])

    def _by_task(self, kept: dict[str, Tensor]) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Today's scores of the samples of each task, by its own head, and what was kept of these samples."""
        groups = {index: kept["task"] == index for index in sorted(set(kept["task"].tolist()))}
        features = self._features(kept["x"], groups)
        return [
            (self.net.scores(own, index), {name: values[groups[index]] for name, values in kept.items()})
            for index, own in features.items()
        ]

    def _features(self, x: Tensor, groups: dict[int, Tensor]) -> dict[int, Tensor]:
        """Features by task, from one pass unless the backbone goes by task: norms by batch see all samples together."""
        if self.net.goes_by_task:
            return {index: self.net.features(x[own], index) for index, own in groups.items()}
        together = self.net.features(x, next(iter(groups)))
        return {index: together[own] for index, own in groups.items()}

    def buffer_bytes(self) -> int:
        """Memory of all places: pictures as the network sees them, labels, scores, their number, tasks."""
        return self.reservoir.nbytes

    def state_dict(self) -> dict[str, Any]:
        return self.reservoir.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reservoir.load_state_dict(state)
