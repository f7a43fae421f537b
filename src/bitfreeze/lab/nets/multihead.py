"""A backbone that all tasks share, and one linear head for each task."""

from collections.abc import Sequence

from torch import Tensor, nn

from ..precision import in_full


class MultiHead(nn.Module):
    """A network of a shared backbone and a linear head for each task. All heads exist from the start.

    ``net(x, task)`` returns the class scores [n, classes] of task number ``task``.

    Args:
        backbone: maps inputs [n, ...] to features [n, features].
        features: number of features.
        classes: number of classes of each task.
        bias: heads have biases.

    Attributes:
        shape: shape of one input. ``build_network`` sets it.
        goes_by_task: the backbone's features depend on the task. Set it where they do.
    """

    shape: tuple[int, ...] | None = None
    goes_by_task = False

    def __init__(self, backbone: nn.Module, features: int, classes: Sequence[int], bias: bool = True) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(nn.Linear(features, count, bias=bias) for count in classes)

    def features(self, x: Tensor, task: int) -> Tensor:
        """Features of ``x``. ``backbone.task`` is set first, for layers that depend on the task."""
        self.backbone.task = task  # type: ignore[assignment]
        features: Tensor = self.backbone(x)
        return features

    def scores(self, features: Tensor, task: int) -> Tensor:
        """Class scores of a head. Heads compute in float32 even where the backbone has less, because scores compare."""
        return in_full(self.heads[task], features)

    def of_task(self, task: int) -> list[nn.Parameter]:
        """Parameters that belong to this task alone."""
        return list(self.heads[task].parameters())

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.scores(self.features(x, task), task)
