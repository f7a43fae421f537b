"""ACL: codes that tasks share, made by playing against a discriminator, beside private ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..nets import MultiHead
from ..nets.adversarial import SharedPrivate, discriminator, require_kind, reverse_gradient, shared_private
from ..options import option
from ..streams import Task, TaskData
from .method import Batch, Method, Record
from .registry import register_method


@register_method
@dataclass
class Adversarial(Method):
    """A shared module whose code should not tell the task, and a private module and head for each task."""

    record = Record(
        "acl",
        "Adversarial Continual Learning: a shared code that hides the task, private modules that are kept",
        paper="Ebrahimi et al., ECCV 2020",
        memory="O(T)",
        optimizer="SGD with momentum",
        own_networks=True,
    )

    adv: float = option(0.05, "weight of the discriminator's verdict in the loss of the shared module")
    orth: float = option(0.1, "weight of the orthogonality of shared and private codes")
    reverse: bool = option(True, "the shared module works against the discriminator; else it helps it")
    s_step: int = option(5, "steps of shared module, private module and head on each batch")
    d_step: int = option(1, "steps of the discriminator after them")
    d_lr_share: float = option(0.1, "learning rate of the discriminator, as a share of that of the others")
    d_weight_decay: float = option(0.01, "weight decay of the discriminator")
    d_scaled: bool = option(False, "whether the discriminator's own loss is multiplied by adv too")
    networks: str = option("auto", "mlp, conv, or auto: convolutional for pictures in colour")
    latent: int = option(64, "length of a code")
    units: int = option(175, "width of the discriminator and of the shared perceptron")
    head_units: int = option(28, "width of a head's first layer")
    head_inner: int = option(14, "width of a head's second layer")
    shared_width: int = option(512, "fully connected layers of the convolutional shared module")
    private_channels: int = option(16, "channels of the convolutional private modules")
    momentum: float = option(0.9, "momentum of SGD", kw_only=True)
    weight_decay: float = option(0.01, "weight decay of the optimizer", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.s_step < 1 or self.d_step < 0:
            raise ValueError(f"s_step={self.s_step}, d_step={self.d_step}: give at least 1 and 0 steps for each batch")
        if not all(weight >= 0 for weight in (self.adv, self.orth, self.d_lr_share, self.d_weight_decay)):
            raise ValueError(
                "adv, orth, d_lr_share and d_weight_decay are weights and shares: give 0 or more "
                "(reverse turns adv around)"
            )
        require_kind(self.networks)
        for name in ("latent", "units", "head_units", "head_inner", "shared_width", "private_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} will not do: give at least 1")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        """ACL's own networks, for the inputs and classes of the plain one."""
        if net.shape is None:
            raise ValueError("acl makes networks of its own: set net.shape to the shape of one input")
        self.net: SharedPrivate = shared_private(
            net.shape, [task.classes for task in tasks], kind=self.networks, latent=self.latent, units=self.units,
            head_units=self.head_units, head_inner=self.head_inner, shared_width=self.shared_width,
            private_channels=self.private_channels,
        )  # fmt: skip
        self.plain_bytes = _bytes(net.parameters())
        self.judge: nn.Module | None = None  # the discriminator: there is one while a task is learned
        self.learned = 0
        return self.net

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        """Two: of the shared module and what is the task's own, and of the discriminator."""
        assert self.judge is not None
        return [
            SGD(self.trained(task), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay),
            SGD(self.judge.parameters(), lr=lr * self.d_lr_share, weight_decay=self.d_weight_decay),
        ]

    def begin_task(self, task: Task, data: TaskData) -> None:
        """Modules of other tasks are held. A discriminator that a checkpoint brought stays, else a new one is made."""
        for other in range(len(self.net.privates)):
            for parameter in self.net.of_task(other):
                parameter.requires_grad_(other == task.index)
        if self.judge is None:
            self.judge = discriminator(self.latent, self.units, sources=task.index + 2)

    def loss(self, batch: Batch) -> Tensor:
        """CE + adv CE(D(s), task) + orth mean of <s_i, p_j>^2; each sample goes through its own task's modules."""
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
        for _ in range(self.d_step):
            self._train_judge(batches, judging)
        return loss

    def replayed(self, batch: Batch, progress: float) -> list[Batch]:
        """Samples of earlier tasks that go with this batch."""
        return []

    def _train_judge(self, batches: list[Batch], optimizer: Optimizer) -> None:
        """CE(D(s), task) + CE(D(z), 0), z standard normal."""
        assert self.judge is not None
        with torch.no_grad():
            codes = torch.cat([self.net.backbone(batch.x) for batch in batches])
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
            self.judge = discriminator(self.latent, self.units, sources=self.learned + 2)
            self.judge.load_state_dict(state["judge"])

    def extra_bytes(self) -> int:
        """The modules of ACL as far as tasks have come, less the plain network, which it does without."""
        kept = [self.net.backbone.parameters(), *(self.net.of_task(task) for task in range(self.learned))]
        return sum(map(_bytes, kept)) - self.plain_bytes


def overlap(shared: Tensor, private: Tensor) -> Tensor:
    """Mean over all pairs of samples i, j of <s_i, p_j>^2, rows scaled to length 1: 0 where codes are orthogonal."""
    s, p = (code / (code.detach().norm(dim=1, keepdim=True) + 1e-6) for code in (shared, private))
    products: Tensor = s @ p.T
    return products.square().mean()


def _source(batch: Batch) -> Tensor:
    """What a discriminator should say of each sample: its task, counted from 1."""
    return torch.full_like(batch.y, batch.task.index + 1)


def _bytes(parameters: Iterable[Tensor]) -> int:
    return sum(p.nbytes for p in parameters)
