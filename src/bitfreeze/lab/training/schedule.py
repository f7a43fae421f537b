"""The schedule of the paper and of HAT's code: divide the learning rate when validation stops improving."""

from dataclasses import asdict, dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from torch import Tensor

from ..options import require
from ..precision import PRECISIONS, Precision


@dataclass(frozen=True)
class Settings:
    """Settings of the training of each task."""

    lr: Annotated[float, "learning rate at a task's start"] = 0.05
    optimizer: Annotated[Literal["sgd", "adamw"], "optimizer, for methods that have none of their own"] = "sgd"
    batch: Annotated[int, "samples in a step"] = 32
    epochs: Annotated[int, "the most epochs that a task is trained for"] = 200
    patience: Annotated[int, "epochs without improvement before the learning rate drops"] = 5
    factor: Annotated[float, "number that the learning rate is divided by when it drops"] = 3.0
    lr_min: Annotated[float, "a task ends when the learning rate falls below this"] = 1e-4
    evaluation_batch: Annotated[int, "samples at a time in validation and tests"] = 2000
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        counts = ("batch", "epochs", "patience", "evaluation_batch")
        require("training", self, counts, lambda n: isinstance(n, int) and n >= 1, "a whole number of at least 1")
        require("training", self, ("lr", "lr_min"), lambda x: 0 < x < inf, "finite and greater than 0")
        require("training", self, ["factor"], lambda x: 1 < x < inf, "finite and greater than 1")
        require("training", self, ["precision"], PRECISIONS.__contains__, "float32 or bf16")


@dataclass
class Plateau:
    """State of the schedule within a task. Weights are not rolled back when the learning rate drops."""

    lr: float
    patience: int
    epoch: int = 0
    best_loss: float = inf
    best: dict[str, Tensor] = field(default_factory=dict)
    done: bool = False

    def update(self, loss: float, weights: dict[str, Tensor], settings: Settings) -> bool:
        """Take in an epoch's validation loss. Returns whether the learning rate dropped and new optimizers are due."""
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
