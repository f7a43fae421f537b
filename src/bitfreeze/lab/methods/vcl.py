"""Variational continual learning: the posterior of one task is the prior of the next."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .method import ANY_SCENARIO, Record, adam
from .registry import register_method
from .variational import Variational

PRETRAIN_BATCH = 64
AT_ONCE = 10  # draws in one forward pass of a prediction, which bounds its memory


def deviation(log_variance: Tensor) -> Tensor:
    return torch.exp(0.5 * log_variance)


def kl_divergence(mean: Tensor, log_variance: Tensor, prior_mean: Tensor, prior_log_variance: Tensor) -> Tensor:
    """Sum of KL(q || p) = 0.5 (log s0^2 - log s^2 + (s^2 + (m0 - m)^2) / s0^2 - 1). It is exactly 0 where q = p."""
    shift, excess = mean - prior_mean, log_variance - prior_log_variance
    return 0.5 * (torch.expm1(excess) - excess + shift.square() * torch.exp(-prior_log_variance)).sum()


@register_method
@dataclass
class VCL(Variational):
    """Trains a Gaussian for each weight and penalises its divergence from the posterior of the task before."""

    record = Record(
        "vcl",
        "variational continual learning: the posterior of a task is the prior of the next",
        paper="Nguyen et al., ICLR 2018",
        memory="O(1)",
        optimizer="Adam",
        scenarios=ANY_SCENARIO,
    )

    prediction_samples: Annotated[int, "draws of the weights whose class probabilities are averaged"] = 100
    log_variance: Annotated[float, "initial log-variance of the posterior"] = -6.0
    pretrain_epochs: Annotated[int, "epochs of maximum likelihood on the first task, for its initial means"] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["prediction_samples"], lambda n: n >= 1, "at least 1")
        require("method", self, ["pretrain_epochs"], lambda n: n >= 0, "at least 0")
        require("method", self, ["momentum"], lambda m: m == 0, "0", "vcl trains with Adam, which does not take it")
        require("method", self, ["weight_decay"], lambda w: w == 0, "0", "vcl has a prior in its place")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        twin = self.build_twin(net, self.log_variance, deviation)
        self.pretrained = self.pretrain_epochs == 0
        # N(0, 1), also for the heads of later tasks
        self.prior = {name: (torch.zeros_like(m), torch.zeros_like(v)) for name, (m, v) in twin.gaussians().items()}
        return twin

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        return [adam(self.trained(task), lr=lr)]

    def begin_task(self, task: Task, data: TaskData) -> None:
        super().begin_task(task, data)
        if not self.pretrained:
            self._pretrain(task, data)
            self.pretrained = True

    def _pretrain(self, task: Task, data: TaskData) -> None:
        self.net.train()
        optimizer = adam([mean for mean, _ in self.net.gaussians(task.index).values()], lr=1e-3)
        for _ in range(self.pretrain_epochs):
            for rows in torch.split(torch.randperm(len(data.train)), PRETRAIN_BATCH):
                x, y = data.train.take(rows)
                optimizer.zero_grad()
                with self.passes():
                    loss = F.cross_entropy(self.net(x, task.index), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def penalty(self, task: Task) -> Tensor:
        """KL(q_t || q_{t-1}) / N_t over backbone and own head. Earlier heads stay at their prior and add exactly 0."""
        divergences = (kl_divergence(*q, *self.prior[name]) for name, q in self.net.gaussians(task.index).items())
        return sum(divergences, torch.zeros(())) / self.count

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        for name, (mean, log_variance) in self.net.gaussians(task.index).items():
            self.prior[name] = mean.clone(), log_variance.clone()

    def logits(self, x: Tensor, task: Task) -> Tensor:
        """Log of the mean class probability over draws of the weights. The draws are always the same."""
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
