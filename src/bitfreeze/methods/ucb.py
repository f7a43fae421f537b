"""Uncertainty-guided continual learning with Bayesian networks: what is certain learns slowly."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import option
from ..streams import Task, TaskData
from .method import Record
from .registry import register_method
from .variational import Variational


def log_mixture(w: Tensor, share: float, wide: float, narrow: float) -> Tensor:
    """log(share N(w; 0, wide^2) + (1 - share) N(w; 0, narrow^2)), each weight for itself."""
    square = w.square()
    log_wide = math.log(share / wide) - 0.5 * math.log(2 * math.pi) - square / (2 * wide**2)
    log_odds = math.log((1 - share) / share * wide / narrow) if share < 1 else -math.inf
    return log_wide + F.softplus(log_odds + square * (0.5 / wide**2 - 0.5 / narrow**2))


def mean_log_density(sigma: Tensor) -> Tensor:
    """E log q(w) of w ~ q = N(mean, sigma^2). Its gradient is that of log q(w) at any draw w = mean + sigma * noise."""
    return -sigma.log() - 0.5 * math.log(2 * math.pi * math.e)


@register_method
@dataclass
class UCB(Variational):
    """Bayes by backprop; after the first task the learning rate of each mean is scaled by its standard deviation."""

    record = Record(
        "ucb",
        "uncertainty-guided continual Bayesian networks: the surer a weight, the smaller its learning rate",
        paper="Ebrahimi et al., ICLR 2020",
        memory="O(1)",
    )

    prior_share: float = option(0.25, "share of the wide part of the prior, a mixture of two Gaussians around 0")
    prior_wide: float = option(1.0, "standard deviation of the wide part")
    prior_narrow: float = option(math.exp(-6), "standard deviation of the narrow part")
    log_q: float = option(1e-3, "weight of log q(w); all three are divided by nll, so only their ratios matter")
    log_p: float = option(1e-3, "weight of log p(w)")
    nll: float = option(0.05, "weight of the negative log-likelihood")
    rho: float = option(-3.0, "initial rho is N(rho, rho_noise^2), where sigma = log(1 + exp(rho))")
    rho_noise: float = option(0.1, "see rho")
    mean_noise: float | None = option(0.1, "initial means are N(0, mean_noise^2); none: the plain network's weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior_share <= 1:
            raise ValueError(f"prior_share={self.prior_share} will not do: it must lie above 0 and be 1 at most")
        if not self.prior_wide > self.prior_narrow > 0:
            raise ValueError("prior_narrow must be greater than 0, and prior_wide greater than it")
        if not self.nll > 0:
            raise ValueError(f"nll={self.nll} will not do: the weight of the likelihood must be greater than 0")
        for name in ("log_q", "log_p", "rho_noise", "mean_noise"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}={getattr(self, name)} will not do: give 0 or more")
        if self.weight_decay:
            raise ValueError("ucb has a prior in place of weight_decay: leave that at 0, or raise log_p")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        twin = self.build_twin(net, self.rho, F.softplus)
        with torch.no_grad():
            for mean, rho in twin.gaussians().values():
                rho.add_(self.rho_noise * torch.randn_like(rho))
                if self.mean_noise is not None:
                    mean.normal_(0, self.mean_noise)
        self.begun = -1  # the task at whose start these standard deviations were taken
        self.sigma: dict[str, Tensor] = {}
        return twin

    def begin_task(self, task: Task, data: TaskData) -> None:
        super().begin_task(task, data)
        if task.index > 0 and self.begun != task.index:
            shared = {name: rho for name, (_, rho) in self.net.gaussians().items() if name.startswith("backbone.")}
            self.sigma = {name: F.softplus(rho.detach()) for name, rho in shared.items()}
            self.begun = task.index

    def penalty(self, task: Task) -> Tensor | None:
        """(E log q(w) - log p(w)) / N_t with its weights, at one draw of w: the sum over all weights evens it out."""
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
        """lr * sigma for the backbone's means, as scaled gradients; heads and rho keep lr."""
        for name, (mean, _) in self.net.gaussians(task.index).items():
            if name in self.sigma and mean.grad is not None:
                mean.grad.mul_(self.sigma[name])

    def end_task(self, task: Task, data: TaskData) -> None:
        self.sigma = {}

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self.begun, "sigma": self.sigma}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begun, self.sigma = state["begun"], dict(state["sigma"])
