"""Uncertainty-guided continual learning with Bayesian networks: weights that are certain learn slowly."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .method import ANY_SCENARIO, Record
from .registry import register_method
from .variational import Variational

RHO_NOISE = 0.1  # standard deviation of the initial rho


def log_mixture(w: Tensor, share: float, wide: float, narrow: float) -> Tensor:
    """log(share N(w; 0, wide^2) + (1 - share) N(w; 0, narrow^2)) of each weight."""
    square = w.square()
    log_wide = math.log(share / wide) - 0.5 * math.log(2 * math.pi) - square / (2 * wide**2)
    log_odds = math.log((1 - share) / share * wide / narrow) if share < 1 else -math.inf
    return log_wide + F.softplus(log_odds + square * (0.5 / wide**2 - 0.5 / narrow**2))


def mean_log_density(sigma: Tensor) -> Tensor:
    """E log q(w) for w ~ q = N(mean, sigma^2). Its gradient equals that of log q(w) at any w = mean + sigma * noise."""
    return -sigma.log() - 0.5 * math.log(2 * math.pi * math.e)


@register_method
@dataclass
class UCB(Variational):
    """Bayes by backprop. After the first task the learning rate of each mean is scaled by its standard deviation."""

    record = Record(
        "ucb",
        "uncertainty-guided continual Bayesian networks: the surer a weight, the smaller its learning rate",
        paper="Ebrahimi et al., ICLR 2020",
        memory="O(1)",
        scenarios=ANY_SCENARIO,
    )

    prior_share: Annotated[float, "share of the wide part of the prior, a mixture of two Gaussians around 0"] = 0.25
    prior_wide: Annotated[float, "standard deviation of the wide part"] = 1.0
    prior_narrow: Annotated[float, "standard deviation of the narrow part"] = math.exp(-6)
    log_q: Annotated[float, "weight of log q(w); only the ratios of log_q, log_p and nll matter"] = 1e-3
    log_p: Annotated[float, "weight of log p(w)"] = 1e-3
    nll: Annotated[float, "weight of the negative log-likelihood"] = 0.05
    rho: Annotated[float, "initial rho is N(rho, 0.1^2), where sigma = log(1 + exp(rho))"] = -3.0
    mean_noise: Annotated[float | None, "initial means are N(0, mean_noise^2); none keeps the network's weights"] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["prior_share"], lambda s: 0 < s <= 1, "in (0, 1]")
        require("method", self, ["prior_narrow", "nll"], lambda x: x > 0, "greater than 0")
        wanted = f"greater than prior_narrow={self.prior_narrow}"
        require("method", self, ["prior_wide"], lambda wide: wide > self.prior_narrow, wanted)
        require("method", self, ["log_q", "log_p", "mean_noise"], lambda x: x is None or x >= 0, "at least 0")
        require("method", self, ["weight_decay"], lambda w: w == 0, "0", "ucb has a prior in its place: raise log_p")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        twin = self.build_twin(net, self.rho, F.softplus)
        with torch.no_grad():
            for mean, rho in twin.gaussians().values():
                rho.add_(RHO_NOISE * torch.randn_like(rho))
                if self.mean_noise is not None:
                    mean.normal_(0, self.mean_noise)
        self.begun = -1  # the task at whose start sigma was taken
        self.sigma: dict[str, Tensor] = {}
        return twin

    def begin_task(self, task: Task, data: TaskData) -> None:
        super().begin_task(task, data)
        if task.index > 0 and self.begun != task.index:
            new = {id(parameter) for parameter in self.net.of_task(task.index)}
            shared = {name: rho for name, (_, rho) in self.net.gaussians(task.index).items() if id(rho) not in new}
            self.sigma = {name: F.softplus(rho.detach()) for name, rho in shared.items()}
            self.begun = task.index

    def penalty(self, task: Task) -> Tensor | None:
        """(log_q E log q(w) - log_p log p(w)) / (nll N_t) at one draw of w. The sum over weights evens it out."""
        if not (self.log_q or self.log_p):
            return None
        total = torch.zeros(())
        for mean, rho in self.net.gaussians(task.index).values():
            sigma = F.softplus(rho)
            w = torch.addcmul(mean, sigma, torch.empty_like(mean).normal_(generator=self.generator))
            log_p = log_mixture(w, self.prior_share, self.prior_wide, self.prior_narrow).sum()
            total = total + self.log_q * mean_log_density(sigma).sum() - self.log_p * log_p
        return total / (self.nll * self.count)

    def before_step(self, task: Task) -> None:
        """Scale the gradients of means that earlier tasks trained by sigma: their rate is lr * sigma, others' is lr."""
        for name, (mean, _) in self.net.gaussians(task.index).items():
            if name in self.sigma and mean.grad is not None:
                mean.grad.mul_(self.sigma[name])

    def end_task(self, task: Task, data: TaskData) -> None:
        self.sigma = {}

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self.begun, "sigma": self.sigma}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begun, self.sigma = state["begun"], dict(state["sigma"])
