"""What a method is: a few points at which it takes part in ordinary training."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..distributed import world
from ..likelihoods import Likelihood
from ..nets import MultiHead
from ..options import option
from ..streams import Split, Task, TaskData


@dataclass(frozen=True)
class Batch:
    """Samples of one task."""

    x: Tensor
    y: Tensor
    task: Task
    weight: float = 1.0  # of this rank's part of the batch in the mean over ranks


@dataclass(frozen=True)
class Record:
    """What `bitfreeze list` says of a method."""

    name: str
    description: str
    paper: str = ""
    memory: str = "none"  # how what it keeps grows with the number of tasks
    optimizer: str = "SGD"
    own_networks: bool = False  # whether it makes its networks itself, from the shape of an input alone
    replays: bool = False  # whether it trains on samples of earlier tasks: buffer_bytes counts what is kept of them
    rereads: bool = False  # whether it asks the stream for the data of earlier tasks again, which no buffer holds
    moves_old_heads: bool = False  # whether heads of earlier tasks go on learning
    data_parallel: bool = False  # whether a run of it can be shared by several ranks, each with part of every batch
    trainers: tuple[str, ...] = ("supervised",)  # which training it can take part in, see StreamRecord.trainer


@dataclass
class Method:
    """Plain fine-tuning, and the base of all others: most override two or three of these.

    The fields of a subclass are its options; ``__post_init__`` refuses values that make no sense. One object serves
    one run, which calls ``build``; for each task ``begin_task``, ``optimizers``, then ``train_batch`` and
    ``validation_loss``, and with the best weights restored ``end_task``, ``report`` and ``pictures``; and ``logits`` to
    evaluate. One that continues calls ``build``, ``recall``, loads the network's weights, then ``load_state_dict``.
    """

    record: ClassVar[Record]
    momentum: float = option(0.0, "momentum of SGD", kw_only=True)
    weight_decay: float = option(0.0, "weight decay of the optimizer", kw_only=True)
    clip: float | None = option(None, "largest norm of all gradients together", kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} will not do: it must be at least 0 and less than 1")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay={self.weight_decay} will not do: it must be at least 0")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip} will not do: it must be greater than 0, or none")
        self.compute: Callable[[list[Batch]], Tensor] = self.objective  # or that of all ranks together

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        """The network that this method trains; by default the one given."""
        self.net = net
        return net

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        """New ones are made for each task and each drop of the learning rate."""
        return [SGD(self.trained(task), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)]

    def trained(self, task: Task) -> list[Tensor]:
        """What an optimizer may move, now that the task has begun. Heads of other tasks only where they go on learning:
        weight decay would move them even with a gradient of 0."""
        others = [k for k in range(len(self.net.heads)) if k != task.index and not self.record.moves_old_heads]
        idle = {id(parameter) for other in others for parameter in self.net.of_task(other)}
        return [p for p in self.net.parameters() if p.requires_grad and id(p) not in idle]

    def begin_task(self, task: Task, data: TaskData) -> None:
        """Before the first epoch, and again where a run continues in the middle of a task."""

    def recall(self, task: Task, data: TaskData) -> None:
        """For methods that reread: the data of an earlier task, where a run continues after it."""

    def observe(self, batch: Batch, progress: float) -> None:
        """In training only, before the loss: fill a buffer, anneal. ``progress`` runs from 0 to 1 in each epoch."""

    def loss(self, batch: Batch) -> Tensor:
        """The training criterion without penalty, and with it the validation criterion: pure, a mean over samples."""
        return F.cross_entropy(self.logits(batch.x, batch.task), batch.y)

    def penalty(self, task: Task) -> Tensor | None:
        """What is added to any loss, that of validation too."""
        return None

    def before_step(self, task: Task) -> None:
        """Gradients are there: project, mask. They are clipped after it."""

    def after_step(self, task: Task) -> None:
        """Parameters have moved: clamp."""

    def end_task(self, task: Task, data: TaskData) -> None:
        """After the best weights were restored, before evaluation."""

    def logits(self, x: Tensor, task: Task) -> Tensor:
        scores: Tensor = self.net(x, task.index)
        return scores

    def likelihood(self, x: Tensor, task: Task) -> Likelihood:
        """Of a sample's label, for the Fisher."""
        return task.likelihood(self.logits(x, task))

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        """One step of training; returns its loss."""
        self.observe(batch, progress)
        return self.step([batch], optimizers)

    def step(self, batches: list[Batch], optimizers: list[Optimizer]) -> Tensor:
        """Forward, backward and update on the mean over all samples; the first batch is of the task at hand."""
        return self._descend(self.compute(batches), batches[0].task, optimizers, self.clip)

    def update(self, loss: Tensor, task: Task, optimizers: list[Optimizer], clip: float | None) -> Tensor:
        """From any loss to parameters that have moved: what this method does around an optimizer's step."""
        return self._descend(self._with_penalty(loss, task), task, optimizers, clip)

    def _descend(self, loss: Tensor, task: Task, optimizers: list[Optimizer], clip: float | None) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.before_step(task)
        if clip is not None:
            # only what is trained: a head of another task may still hold a gradient of its own time
            trained = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, clip)
        for optimizer in optimizers:
            optimizer.step()
        self.after_step(task)
        return loss.detach()

    def objective(self, batches: list[Batch]) -> Tensor:
        """All that a step minimises."""
        return self._with_penalty(self._mean_loss(batches), batches[0].task)

    def validation_splits(self, task: Task, data: TaskData) -> list[tuple[Task, Split]]:
        """What the learning-rate schedule looks at."""
        return [(task, data.valid)]

    @torch.no_grad()
    def validation_loss(self, splits: Iterable[tuple[Task, Split]], task: Task, batch_size: int) -> float:
        """The full training criterion over these splits."""
        ranks, total, count = world(), 0.0, 0
        for owner, split in splits:
            for x, y in split.share(ranks).batches(batch_size):
                total += self.loss(Batch(x, y, owner)).item() * len(y)
            count += len(split)
        return self._with_penalty(torch.tensor(sum(ranks.gather(total)) / count), task).item()

    def _mean_loss(self, batches: list[Batch]) -> Tensor:
        if len(batches) == 1:  # the usual case, and the operations below would cost a small network a tenth of its step
            return self.loss(batches[0])
        count = sum(len(batch.y) for batch in batches)
        return torch.stack([self.loss(batch) * (len(batch.y) / count) for batch in batches]).sum()

    def _with_penalty(self, loss: Tensor, task: Task) -> Tensor:
        penalty = self.penalty(task)
        return loss if penalty is None else loss + penalty

    def state_dict(self) -> dict[str, Any]:
        """What must be kept between tasks besides the network: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave; the network has its weights back already."""

    def extra_bytes(self) -> int:
        """All that persists between tasks beyond the plain network, in bytes; buffers of samples are counted apart."""
        return 0

    def buffer_bytes(self) -> int:
        """Samples of earlier tasks that are kept, in bytes."""
        return 0

    def report(self) -> dict[str, float]:
        """Figures of this method's own, for the record of each task."""
        return {}

    def pictures(self) -> dict[str, Tensor]:
        """Tensors that are kept after each task for looking at; nothing is ever read back from them."""
        return {}
