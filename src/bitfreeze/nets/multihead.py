"""A backbone that all tasks share, and one linear head for each task."""

from collections.abc import Sequence

from torch import Tensor, nn


class MultiHead(nn.Module):
    """``net(x, task)`` gives the class scores of that task. All heads exist from the start, as in the paper."""

    shape: tuple[int, ...] | None = None  # of one input, as build_network was told
    goes_by_task = False  # whether the backbone makes other features of the same x for another task

    def __init__(self, backbone: nn.Module, features: int, classes: Sequence[int]) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(nn.Linear(features, count) for count in classes)

    def features(self, x: Tensor, task: int) -> Tensor:
        """What the backbone makes of samples of this task; it is told which, for layers that go by it."""
        self.backbone.task = task  # type: ignore[assignment]
        features: Tensor = self.backbone(x)
        return features

    def of_task(self, task: int) -> list[nn.Parameter]:
        """What belongs to one task alone."""
        return list(self.heads[task].parameters())

    def forward(self, x: Tensor, task: int) -> Tensor:
        scores: Tensor = self.heads[task](self.features(x, task))
        return scores
