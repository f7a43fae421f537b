"""Variational continual learning: the posterior of one task is the prior of the next."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ..nets import MultiHead
from ..options import option
from ..streams import Task, TaskData
from .method import Record
from .registry import register_method
from .variational import Variational

AT_ONCE = 10  # draws in one forward pass of a prediction, for the sake of memory


def deviation(log_variance: Tensor) -> Tensor:
    return torch.exp(0.5 * log_variance)


def kl_divergence(mean: Tensor, log_variance: Tensor, prior_mean: Tensor, prior_log_variance: Tensor) -> Tensor:
    """Sum of KL(q || p) = 0.5 (log s0^2 - log s^2 + (s^2 + (m0 - m)^2) / s0^2 - 1), exactly 0 where q is p."""
    shift, excess = mean - prior_mean, log_variance - prior_log_variance
    return 0.5 * (torch.expm1(excess) - excess + shift.square() * torch.exp(-prior_log_variance)).sum()


@register_method
@dataclass
class VCL(Variational):
    """A Gaussian for each weight, held to the posterior of the task before by its divergence from it."""

    record = Record(
        "vcl",
        "variational continual learning: the posterior of a task is the prior of the next",
        paper="Nguyen et al., ICLR 2018",
        memory="O(1)",
        optimizer="Adam",
    )

    prediction_samples: int = option(100, "draws of the weights whose class probabilities are averaged")
    log_variance: float = option(-6.0, "log of the posterior's variance, to begin with")
    pretrain_epochs: int = option(0, "epochs of maximum likelihood on the first task, for its initial means")
    pretrain_batch: int = option(64, "samples at a time in these epochs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prediction_samples < 1:
            raise ValueError(f"prediction_samples={self.prediction_samples} will not do: use at least one")
        if self.pretrain_epochs < 0 or self.pretrain_batch < 1:
            raise ValueError("pretrain_epochs must be at least 0, and pretrain_batch at least 1")
        if self.momentum:
            raise ValueError("vcl is trained with Adam, which has no option momentum: leave it at 0")
        if self.weight_decay:
            raise ValueError("vcl has a prior in place of weight_decay: leave that at 0")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        twin = self.build_twin(net, self.log_variance, deviation)
        self.pretrained = self.pretrain_epochs == 0
        # N(0, 1), for the head of a later task too
        self.prior = {name: (torch.zeros_like(m), torch.zeros_like(v)) for name, (m, v) in twin.gaussians().items()}
        return twin

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        return [Adam(self.trained(task), lr=lr, fused=True)]

    def begin_task(self, task: Task, data: TaskData) -> None:
        super().begin_task(task, data)
        if not self.pretrained:
            self._pretrain(task, data)
            self.pretrained = True

    def _pretrain(self, task: Task, data: TaskData) -> None:
        self.net.train()
        optimizer = Adam([mean for mean, _ in self.net.gaussians(task.index).values()], lr=1e-3, fused=True)
        for _ in range(self.pretrain_epochs):
            for rows in torch.split(torch.randperm(len(data.train)), self.pretrain_batch):
                x, y = data.train.take(rows)
                optimizer.zero_grad()
                F.cross_entropy(self.net(x, task.index), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def penalty(self, task: Task) -> Tensor:
        """KL(q_t || q_{t-1}) / N_t over backbone and own head; earlier heads stay at their prior and add exactly 0."""
        posterior = self.net.gaussians(task.index)
        return (
            sum((kl_divergence(*q, *self.prior[name]) for name, q in posterior.items()), torch.zeros(())) / self.count
        )

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        for name, (mean, log_variance) in self.net.gaussians(task.index).items():
            self.prior[name] = mean.clone(), log_variance.clone()

    def logits(self, x: Tensor, task: Task) -> Tensor:
        """The log of the mean class probability over draws of the weights, the same draws whenever asked."""
        generator, total = self.same_noise(), torch.zeros(())
        for start in range(0, self.prediction_samples, AT_ONCE):
            draws = min(AT_ONCE, self.prediction_samples - start)
            total = total + self.net(x, task.index, draws, generator).softmax(-1).sum(0)
        return (total / self.prediction_samples).clamp_min(1e-30).log()

    def state_dict(self) -> dict[str, Any]:
        return {"prior": {name: list(gaussian) for name, gaussian in self.prior.items()}, "pretrained": self.pretrained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.prior = {name: (mean, log_variance) for name, (mean, log_variance) in state["prior"].items()}
        self.pretrained = state["pretrained"]

    def extra_bytes(self) -> int:
        prior = (tensor for gaussian in self.prior.values() for tensor in gaussian)
        return super().extra_bytes() + sum(tensor.nbytes for tensor in prior)
