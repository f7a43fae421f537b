"""The interface of methods: hooks in ordinary training."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ...likelihoods import Likelihood
from ...model.ranks import current_ranks
from ..nets import MultiHead
from ..options import require
from ..precision import Passes
from ..scenario import Scenario
from ..tasks import Batch, Split, Task, TaskData


@dataclass(frozen=True)
class Record:
    """Facts about a method. ``bitfreeze list`` prints them, and runs rely on them.

    Attributes:
        name: the name that commands take.
        description: one line.
        paper: authors, venue and year.
        memory: growth of the kept state with the number of tasks T, such as ``"O(1)"``.
        optimizer: the optimizer in words.
        own_networks: the method makes its own networks, from the shape of an input alone.
        replays: the method trains on samples of earlier tasks. ``buffer_bytes`` counts the kept ones.
        rereads: the method asks the stream for the data of earlier tasks again, which no buffer holds.
        moves_old_heads: heads of earlier tasks go on learning.
        ceiling: the method shows what is possible without the limits of continual learning, so it is no rival.
        data_parallel: several ranks can share a run, each with its part of every batch.
        trainers: names of the kinds of training that the method supports.
        scenarios: the scenarios that the method makes sense in. One that needs the task knows "task" alone.
    """

    name: str
    description: str
    paper: str = ""
    memory: str = "none"
    optimizer: str = "SGD"
    own_networks: bool = False
    replays: bool = False
    rereads: bool = False
    moves_old_heads: bool = False
    ceiling: bool = False
    data_parallel: bool = False
    trainers: tuple[str, ...] = ("supervised",)
    scenarios: tuple[Scenario, ...] = ("task",)


ANY_SCENARIO: tuple[Scenario, ...] = ("task", "domain", "class")  # of methods that never look at the task


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over samples and, where there are several, their positions: scores [n, ..., classes]."""
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


def adam(parameters: Sequence[Tensor], lr: float, eps: float = 1e-8) -> Adam:
    """Adam in one kernel where torch has one for the device of the parameters."""
    return Adam(parameters, lr=lr, eps=eps, fused=_in_one_kernel(parameters))


def _in_one_kernel(parameters: Sequence[Tensor]) -> bool | None:
    return True if parameters[0].device.type in ("cpu", "cuda") else None


@dataclass
class Method:
    """Plain fine-tuning, and the base class of all methods. Most override two or three of these functions.

    The fields of a subclass are its options. ``__post_init__`` raises a ValueError for values that make no sense.

    One object serves one run. A run calls ``build`` once. For each task it calls ``begin_task`` and ``optimizers``,
    then ``train_batch`` and ``validation_loss``. It restores the best weights, then calls ``end_task``, ``report`` and
    ``pictures``, and ``logits`` to evaluate. A run that continues calls ``build`` and ``recall``, loads the network's
    weights, then calls ``load_state_dict``.

    Many functions take the same arguments. ``task`` is the task that is learned, ``data`` its samples, ``batch`` the
    samples of a step, which know their task. ``progress`` is the share of the epoch that is done, from 0 to 1.
    """

    record: ClassVar[Record]
    momentum: Annotated[float, "momentum of SGD"] = 0.0
    weight_decay: Annotated[float, "weight decay of the optimizer"] = 0.0
    clip: Annotated[float | None, "largest norm of all gradients together; none does not clip"] = None

    def __post_init__(self) -> None:
        require("method", self, ["momentum"], lambda m: 0 <= m < 1, "in [0, 1)", "0 turns it off")
        require("method", self, ["weight_decay"], lambda w: w >= 0, "at least 0", "0 turns it off")
        require("method", self, ["clip"], lambda c: c is None or c > 0, "greater than 0, or none")
        self.compute: Callable[[list[Batch]], Tensor] = self.objective  # replaced where several ranks share a run
        self.passes: Passes = nullcontext  # context of forward passes of training and evaluation: their precision
        self.adamw = False  # or SGD; the training sets it

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        """The network that this method trains, by default ``net``. ``tasks`` are all tasks of the stream.

        An override keeps the network as ``self.net``.
        """
        self.net = net
        return net

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        """New optimizers with learning rate ``lr``, at the start of a task and after each drop of the learning rate."""
        trained = self.trained(task)
        if self.adamw:
            return [AdamW(trained, lr=lr, weight_decay=self.weight_decay, fused=_in_one_kernel(trained))]
        return [SGD(trained, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)]

    def trained(self, task: Task) -> list[Tensor]:
        """Parameters for the optimizers of this task.

        Heads that are not in use are left out unless they go on learning, because weight decay moves even parameters
        whose gradient is 0.
        """
        idle = set() if self.record.moves_old_heads else {id(parameter) for parameter in self.net.unused(task.index)}
        return [p for p in self.net.parameters() if p.requires_grad and id(p) not in idle]

    def begin_task(self, task: Task, data: TaskData) -> None:
        """Prepare for a task: called before its first epoch, and again when a run continues in the middle of it."""

    def recall(self, task: Task, data: TaskData) -> None:
        """Take the data of an earlier task again, when a run continues. Only called where ``record.rereads``."""

    def observe(self, batch: Batch, progress: float) -> None:
        """Look at a training batch before its loss: fill a buffer, anneal."""

    def loss(self, batch: Batch) -> Tensor:
        """Mean loss over the samples of a batch, without the penalty. Validation calls it too: it changes no state."""
        return cross_entropy(self.logits(batch.x, batch.task), batch.y)

    def penalty(self, task: Task) -> Tensor | None:
        """Term that is added to every loss, in validation too. None adds nothing."""
        return None

    def before_step(self, task: Task) -> None:
        """Change the gradients: project, mask. They are clipped afterwards."""

    def after_step(self, task: Task) -> None:
        """Change the parameters after the optimizer's step: clamp."""

    def end_task(self, task: Task, data: TaskData) -> None:
        """Close a task: called after the best weights were restored and before the evaluation."""

    def logits(self, x: Tensor, task: Task) -> Tensor:
        """Class scores of the heads for this task, or [n, positions, tokens], for evaluation."""
        scores: Tensor = self.net(x, task.index)
        return scores

    def logits_of_all(self, x: Tensor, task: Task, learned: Sequence[Task]) -> Tensor | None:
        """Scores of the classes of all learned tasks, side by side, from one pass; None where there are none.

        ``x`` are samples of ``task``. Where each task has its own head, the heads of all tasks see the same features.
        """
        if self.net.scenario == "class":
            return self.logits(x, task)
        if self.net.scenario == "domain" or self.net.goes_by_task or "class" not in self.record.scenarios:
            return None
        features = self.net.features(x, task.index)
        return torch.cat([self.net.scores(features, each.index) for each in learned], 1)

    def likelihood(self, x: Tensor, task: Task) -> Likelihood:
        """Distribution of the labels of ``x``, for the Fisher."""
        return task.likelihood(self.logits(x, task))

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        """Take one training step and return its loss, penalty included."""
        self.observe(batch, progress)
        return self.step([batch], optimizers)

    def step(self, batches: list[Batch], optimizers: list[Optimizer]) -> Tensor:
        """Take one step on the mean over the samples of all batches and return its loss.

        The first batch belongs to the task that is learned.
        """
        with self.passes():
            loss = self.compute(batches)
        return self._descend(loss, batches[0].task, optimizers, self.clip)

    def update(self, loss: Tensor, task: Task, optimizers: list[Optimizer], clip: float | None) -> Tensor:
        """Take one step on a loss from outside, such as PPO's, with this method's penalty and hooks.

        Gradients are clipped to the norm ``clip``. Returns the loss, penalty included.
        """
        return self._descend(self._with_penalty(loss, task), task, optimizers, clip)

    def _descend(self, loss: Tensor, task: Task, optimizers: list[Optimizer], clip: float | None) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.before_step(task)
        if clip is not None:
            # trained parameters only, because a head of an earlier task may still hold an old gradient
            trained = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, clip)
        for optimizer in optimizers:
            optimizer.step()
        self.after_step(task)
        return loss.detach()

    def objective(self, batches: list[Batch]) -> Tensor:
        """Mean loss over all samples plus penalty: the quantity that a step minimises."""
        return self._with_penalty(self._mean_loss(batches), batches[0].task)

    def validation_splits(self, task: Task, data: TaskData) -> list[tuple[Task, Split]]:
        """Samples for the learning-rate schedule, each split with its task."""
        return [(task, data.valid)]

    @torch.no_grad()
    def validation_loss(self, splits: Iterable[tuple[Task, Split]], task: Task, batch_size: int) -> float:
        """Mean loss over these splits plus the penalty of ``task``."""
        ranks, total, count = current_ranks(), 0.0, 0
        for owner, split in splits:
            for x, y in split.share(ranks).batches(batch_size):
                with self.passes():
                    loss = self.loss(Batch(x, y, owner))
                total += loss.item() * len(y)
            count += len(split)
        return self._with_penalty(torch.tensor(sum(ranks.gather(total)) / count), task).item()

    def _mean_loss(self, batches: list[Batch]) -> Tensor:
        if len(batches) == 1:  # the usual case: the operations below would take a tenth of a small network's step
            return self.loss(batches[0])
        count = sum(len(batch.y) for batch in batches)
        return torch.stack([self.loss(batch) * (len(batch.y) / count) for batch in batches]).sum()

    def _with_penalty(self, loss: Tensor, task: Task) -> Tensor:
        penalty = self.penalty(task)
        return loss if penalty is None else loss + penalty

    def state_dict(self) -> dict[str, Any]:
        """State besides the network's weights: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` gave. The network has its weights already."""

    def extra_bytes(self) -> int:
        """Memory kept between tasks besides the plain network and the buffer of samples, in bytes."""
        return 0

    def buffer_bytes(self) -> int:
        """Memory of the kept samples of earlier tasks, in bytes."""
        return 0

    def report(self) -> dict[str, float]:
        """This method's own figures, by name, recorded after each task."""
        return {}

    def pictures(self) -> dict[str, Tensor]:
        """Tensors by name, written after each task for figures. Runs never read them back."""
        return {}
