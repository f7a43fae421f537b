"""The base class of methods with a Gaussian for each weight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nets import BayesianMultiHead, MultiHead
from ..nets.bayesian import Deviation, Sampling
from ..options import require
from ..tasks import Batch, Split, Task, TaskData
from .method import Method


@dataclass
class Variational(Method):
    """Trains the Bayesian twin of the network on the expected log-likelihood. Each method adds its own penalty.

    Only the backbone and the heads of the task are trained.
    """

    samples: Annotated[int, "draws of the weights in a step"] = 10
    sampling: Annotated[Sampling, "draw weights, or outputs of linear layers, which takes less time"] = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["samples"], lambda n: n >= 1, "at least 1")

    def build_twin(self, net: MultiHead, spread: float, deviation: Deviation) -> BayesianMultiHead:
        """The Bayesian twin of ``net``, kept as ``self.net``. ``spread`` is the initial value of every spread."""
        self.net: BayesianMultiHead = BayesianMultiHead(net, spread, deviation, self.sampling)
        self.count = 0  # training samples of the task
        self.generator: torch.Generator | None = None  # None stands for torch's own
        return self.net

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.count = len(data.train)

    def trained(self, task: Task) -> list[Tensor]:
        return [parameter for gaussian in self.net.gaussians(task.index).values() for parameter in gaussian]

    def loss(self, batch: Batch) -> Tensor:
        """Mean over samples and draws of the weights. Outside of training there is one draw."""
        draws = self.samples if self.net.training else 1
        scores = self.net(batch.x, batch.task.index, draws, self.generator)
        return F.cross_entropy(scores.flatten(0, 1), batch.y.repeat(draws))

    def validation_loss(self, splits: Iterable[tuple[Task, Split]], task: Task, batch_size: int) -> float:
        """Mean loss plus penalty. The noise is the same in every epoch, so that epochs can be compared."""
        self.generator = self.same_noise()
        try:
            return super().validation_loss(splits, task, batch_size)
        finally:
            self.generator = None

    def same_noise(self) -> torch.Generator:
        """A generator that always draws the same noise."""
        return torch.Generator(next(self.net.parameters()).device).manual_seed(0)

    def logits_of_all(self, x: Tensor, task: Task, learned: Sequence[Task]) -> Tensor | None:
        """Scores side by side only where there is one head, because draws of the weights take a pass for each head."""
        return super().logits_of_all(x, task, learned) if self.net.scenario == "class" else None

    def extra_bytes(self) -> int:
        """Memory of the spreads. The means take the place of the plain network's weights."""
        return sum(spread.nbytes for _, spread in self.net.gaussians().values())
