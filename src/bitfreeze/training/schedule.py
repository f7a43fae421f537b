"""The schedule of the paper (that of HAT's code): divide the learning rate when validation stops improving."""

from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from torch import Tensor

from ..options import option


@dataclass(frozen=True)
class Settings:
    """How each task is trained."""

    lr: float = option(0.05, "learning rate at a task's start")
    batch: int = option(32, "samples in a step")
    epochs: int = option(200, "the most epochs that a task is trained for")
    patience: int = option(5, "epochs without improvement before the learning rate drops")
    factor: float = option(3.0, "what the learning rate is then divided by")
    lr_min: float = option(1e-4, "a task ends when the learning rate falls below")
    evaluation_batch: int = option(2000, "samples at a time in validation and tests")

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "patience", "evaluation_batch"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"training.{name} must be a whole number of at least 1, got {getattr(self, name)}")
        for name, least in (("lr", 0), ("factor", 1), ("lr_min", 0)):
            if not least < getattr(self, name) < inf:
                raise ValueError(f"training.{name} must be finite and greater than {least}, got {getattr(self, name)}")


@dataclass
class Plateau:
    """Where the schedule stands within a task. Weights are not rolled back when the learning rate drops."""

    lr: float
    patience: int
    epoch: int = 0
    best_loss: float = float("inf")
    best: dict[str, Tensor] = field(default_factory=dict)
    done: bool = False

    def update(self, loss: float, weights: dict[str, Tensor], settings: Settings) -> bool:
        """Take note of an epoch; returns whether the learning rate dropped, so that optimizers are made anew."""
        self.epoch += 1
        self.done = self.epoch >= settings.epochs
        if loss < self.best_loss:
            self.best_loss = loss
            self.best = {name: value.detach().clone() for name, value in weights.items()}
            self.patience = settings.patience
            return False
        self.patience -= 1
        if self.patience > 0:
            return False
        self.lr /= settings.factor
        self.patience = settings.patience
        self.done = self.done or self.lr < settings.lr_min
        return not self.done

    def state_dict(self) -> dict[str, Any]:
        return {**asdict(self), "best": self.best}
