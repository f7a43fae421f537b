"""A backbone that all tasks share, and linear heads: one for each task, one for all, or one that grows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..precision import in_full
from ..scenario import Scenario


class MultiHead(nn.Module):
    """A network of a shared backbone and linear heads. All heads exist from the start.

    ``net(x, task)`` returns class scores. In the scenario "task" they are those of the task's own head [n, classes], in
    "domain" those of the only head. In "class" the head of each task is a part of one head that grows: the scores are
    those of all tasks so far, side by side, whichever task is given.

    Args:
        backbone: maps inputs [n, ...] to features [n, features].
        features: number of features.
        classes: number of classes of each head.
        bias: heads have biases.

    Attributes:
        shape: shape of one input. ``build_network`` sets it.
        scenario: the meaning of heads. ``build_network`` sets it.
        seen: number of tasks so far, with the one that is trained. ``Training`` sets it. Only "class" looks at it.
        goes_by_task: the backbone's features depend on the task. Set it where they do.
    """

    shape: tuple[int, ...] | None = None
    scenario: Scenario = "task"
    seen = 0
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
        """Class scores. Heads compute in float32 even where the backbone has less, because scores compare."""
        parts = [in_full(self.heads[k], features) for k in self.heads_of(task)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def heads_of(self, task: int) -> Sequence[int]:
        """Numbers of the heads whose scores, side by side, are the scores for this task."""
        if self.scenario == "task":
            return [task]
        return [0] if self.scenario == "domain" else range(self.seen)

    def of_task(self, task: int) -> list[nn.Parameter]:
        """Parameters that no earlier task has trained: those of the task's own head, none where one head serves all."""
        return [] if self.scenario == "domain" else list(self.heads[task].parameters())

    def unused(self, task: int) -> list[nn.Parameter]:
        """Parameters of the heads that have no part in the scores for this task."""
        used = self.heads_of(task)
        return [parameter for k in range(len(self.heads)) if k not in used for parameter in self.of_task(k)]

    def shared(self) -> list[nn.Module]:
        """The modules that tasks share, and that a later task can therefore spoil for an earlier one."""
        return [self.backbone] if self.scenario == "task" else [self.backbone, self.heads]

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.scores(self.features(x, task), task)
