"""What methods with a Gaussian for each weight have in common."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nets import BayesianMultiHead, MultiHead
from ..nets.bayesian import Deviation, require_sampling
from ..options import option
from ..streams import Split, Task, TaskData
from .method import Batch, Method


@dataclass
class Variational(Method):
    """Trains the Bayesian twin of the network on the expected log-likelihood; what is added to it is each method's own.

    Only the backbone and the head of the task at hand are trained.
    """

    samples: int = option(10, "draws of the weights in a step")
    sampling: str = option("weights", "weights, or local: linear layers draw their outputs, which takes less time")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1:
            raise ValueError(f"samples={self.samples} will not do: a step needs at least one draw of the weights")
        require_sampling(self.sampling)

    def build_twin(self, net: MultiHead, spread: float, deviation: Deviation) -> BayesianMultiHead:
        self.net: BayesianMultiHead = BayesianMultiHead(net, spread, deviation, self.sampling)
        self.count = 0  # training samples of the task at hand
        self.generator: torch.Generator | None = None  # None: torch's own
        return self.net

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.count = len(data.train)

    def trained(self, task: Task) -> list[Tensor]:
        return [parameter for gaussian in self.net.gaussians(task.index).values() for parameter in gaussian]

    def loss(self, batch: Batch) -> Tensor:
        """Mean over samples and draws of the weights; outside of training one draw."""
        draws = self.samples if self.net.training else 1
        scores = self.net(batch.x, batch.task.index, draws, self.generator)
        return F.cross_entropy(scores.flatten(0, 1), batch.y.repeat(draws))

    def validation_loss(self, splits: Iterable[tuple[Task, Split]], task: Task, batch_size: int) -> float:
        """The full criterion, under noise that is the same in every epoch, so that epochs can be compared."""
        self.generator = self.same_noise()
        try:
            return super().validation_loss(splits, task, batch_size)
        finally:
            self.generator = None

    def same_noise(self) -> torch.Generator:
        return torch.Generator(next(self.net.parameters()).device).manual_seed(0)

    def extra_bytes(self) -> int:
        """The spreads; the means are in place of the plain network's weights."""
        return sum(spread.nbytes for _, spread in self.net.gaussians().values())
