"""ACL: a shared code, trained against a discriminator of tasks, beside a private code for each task."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..nets import MultiHead
from ..nets.adversarial import SharedPrivate, discriminator, reverse_gradient, shared_private
from ..options import require
from ..tasks import Batch, Task, TaskData
from .method import Method, Record
from .registry import register_method

WIDTHS = ("latent", "units", "head_units", "head_inner", "shared_width", "private_channels")  # options for the network
JUDGE_WEIGHT_DECAY = 0.01  # weight decay of the discriminator in the released code


@register_method
@dataclass
class Adversarial(Method):
    """Trains a shared module whose code should not reveal the task, and a private module and head for each task."""

    record = Record(
        "acl",
        "Adversarial Continual Learning: a shared code that hides the task, private modules that are kept",
        paper="Ebrahimi et al., ECCV 2020",
        memory="O(T)",
        optimizer="SGD with momentum",
        own_networks=True,
    )

    adv: Annotated[float, "weight of the discriminator's verdict in the loss of the shared module"] = 0.05
    orth: Annotated[float, "weight of the orthogonality of shared and private codes"] = 0.1
    reverse: Annotated[bool, "train the shared module against the discriminator; false trains it to help"] = True
    s_step: Annotated[int, "steps of shared module, private module and head on each batch"] = 5
    d_lr_share: Annotated[float, "learning rate of the discriminator, as a share of the others' learning rate"] = 0.1
    d_scaled: Annotated[bool, "multiply the discriminator's own loss by adv too"] = False
    latent: Annotated[int, "length of a code"] = 64
    units: Annotated[int, "width of the discriminator and of the shared perceptron"] = 175
    head_units: Annotated[int, "width of a head's first layer"] = 28
    head_inner: Annotated[int, "width of a head's second layer"] = 14
    shared_width: Annotated[int, "width of the linear layers of the convolutional shared module"] = 512
    private_channels: Annotated[int, "channels of the convolutional private modules"] = 16
    momentum: Annotated[float, "momentum of SGD"] = 0.9
    weight_decay: Annotated[float, "weight decay of the optimizer"] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ("adv", "orth", "d_lr_share"), lambda x: x >= 0, "at least 0")
        require("method", self, ("s_step", *WIDTHS), lambda n: n >= 1, "at least 1")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        """ACL's own networks, for the inputs and classes of ``net``."""
        if net.shape is None:
            raise ValueError("net.shape must be the shape of one input, got None; acl makes its own networks from it")
        widths: dict[str, int] = {name: getattr(self, name) for name in WIDTHS}
        self.net: SharedPrivate = shared_private(net.shape, [task.classes for task in tasks], **widths)
        self.plain_bytes = sum(p.nbytes for p in net.parameters())
        self.judge: nn.Module | None = None  # the discriminator, while a task is learned
        self.learned = 0
        return self.net

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        """An optimizer of the shared module and the task's own modules, and one of the discriminator."""
        assert self.judge is not None
        return [
            SGD(self.trained(task), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay),
            SGD(self.judge.parameters(), lr=lr * self.d_lr_share, weight_decay=JUDGE_WEIGHT_DECAY),
        ]

    def begin_task(self, task: Task, data: TaskData) -> None:
        """Freeze the modules of other tasks. Make a discriminator unless a checkpoint brought one."""
        for other in range(len(self.net.privates)):
            for parameter in self.net.of_task(other):
                parameter.requires_grad_(other == task.index)
        if self.judge is None:
            self.judge = self._new_judge(sources=task.index + 2)

    def _new_judge(self, sources: int) -> nn.Module:
        device = next(self.net.parameters()).device
        return discriminator(self.latent, self.units, sources).to(device)

    def loss(self, batch: Batch) -> Tensor:
        """CE + adv CE(D(s), task) + orth mean of <s_i, p_j>^2. Each sample goes through its own task's modules."""
        assert self.judge is not None
        shared, private = self.net.codes(batch.x, batch.task.index)
        seen = reverse_gradient(shared) if self.reverse else shared
        verdict = F.cross_entropy(self.judge(seen), _source(batch))
        scores = self.net.classify(shared, private, batch.task.index)
        return F.cross_entropy(scores, batch.y) + self.adv * verdict + self.orth * overlap(shared, private)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        batches = [batch, *self.replayed(batch, progress)]
        own, judging = optimizers
        for _ in range(self.s_step):
            loss = self.step(batches, [own])
        self._train_judge(batches, judging)
        return loss

    def replayed(self, batch: Batch, progress: float) -> list[Batch]:
        """Batches of earlier tasks to train on beside this one."""
        return []

    def _train_judge(self, batches: list[Batch], optimizer: Optimizer) -> None:
        """Take a step of the discriminator on CE(D(s), task) + CE(D(z), 0), where z is standard normal."""
        assert self.judge is not None
        with torch.no_grad(), self.passes():
            codes = torch.cat([self.net.backbone(batch.x) for batch in batches]).float()
        sources = torch.cat([_source(batch) for batch in batches])
        loss = F.cross_entropy(self.judge(codes), sources)
        loss = loss + F.cross_entropy(self.judge(torch.randn_like(codes)), torch.zeros_like(sources))
        optimizer.zero_grad()
        (self.adv * loss if self.d_scaled else loss).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def end_task(self, task: Task, data: TaskData) -> None:
        self.judge = None
        self.learned = task.index + 1

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned, "judge": None if self.judge is None else self.judge.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = state["learned"]
        self.judge = None
        if state["judge"] is not None:
            self.judge = self._new_judge(sources=self.learned + 2)
            self.judge.load_state_dict(state["judge"])

    def extra_bytes(self) -> int:
        """Memory of ACL's modules for the learned tasks, less that of the plain network, which ACL does not use."""
        own = (p for task in range(self.learned) for p in self.net.of_task(task))
        return sum(p.nbytes for p in (*self.net.backbone.parameters(), *own)) - self.plain_bytes


def overlap(shared: Tensor, private: Tensor) -> Tensor:
    """Mean over all pairs of samples i, j of <s_i, p_j>^2, with rows scaled to length 1. Orthogonal codes give 0."""
    s, p = (code / (code.detach().norm(dim=1, keepdim=True) + 1e-6) for code in (shared, private))
    products: Tensor = s @ p.T
    return products.square().mean()


def _source(batch: Batch) -> Tensor:
    """The right answer of the discriminator for each sample: its task, counted from 1."""
    return torch.full_like(batch.y, batch.task.index + 1)
