"""GPM: each step is orthogonal to the inputs that earlier tasks gave each layer."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .input_space import Inputs, empty_basis, find_layers, joined_basis, missing_directions, watched_inputs
from .method import ANY_SCENARIO, Method, Record
from .projection import Held, learn_projected, project_
from .pull import Named, nbytes
from .registry import register_method
from .task_fisher import fisher_batches


@register_method
@dataclass
class GradientProjectionMemory(Method):
    """Keeps a basis of the inputs of each layer, and removes from each gradient what lies along it."""

    record = Record(
        "gpm",
        "Gradient Projection Memory: steps are orthogonal to the inputs of earlier tasks, layer by layer",
        paper="Saha et al., ICLR 2021",
        memory="O(T), bounded",
        scenarios=ANY_SCENARIO,
    )

    threshold: Annotated[float, "share of the energy of a task's inputs that the basis of a layer must hold"] = 0.97
    increment: Annotated[float, "added to the threshold with each task"] = 0.003
    first_threshold: Annotated[float | None, "threshold of the first layer; none takes that of the others"] = None
    samples: Annotated[int, "training samples of a task whose inputs are looked at, in one pass"] = 125

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.record.name
        plain = f"{name} projects gradients, and weight decay would move weights along what it holds"
        require("method", self, ["weight_decay"], lambda w: w == 0, "0", plain)
        require("method", self, ["threshold"], lambda s: 0 < s <= 1, "greater than 0 and at most 1")
        require("method", self, ["first_threshold"], lambda s: s is None or 0 < s <= 1, "none, or in (0, 1]")
        require("method", self, ["increment"], lambda s: 0 <= s <= 1, "in [0, 1]", "0 keeps the threshold")
        require("method", self, ["samples"], lambda n: n >= 1, "at least 1")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.layers, self.others = find_layers(net, self.record.name)
        self.bases: Named = {}  # M [width, k] of each layer
        for name, layer in self.layers.items():
            if isinstance(layer, nn.Linear):
                learn_projected(layer, partial(self._held, name))
        return super().build(net, tasks)

    def before_step(self, task: Task) -> None:
        if task.index == 0:
            return
        for name in self.bases:
            if isinstance(self.layers[name], nn.Conv2d):  # has projected gradients already if it is linear
                project_(self.layers[name], (self.bases[name], self.shares(name)))
        for parameter in self.others:
            parameter.grad = None  # SGD then leaves it alone

    def _held(self, name: str) -> Held | None:
        return (self.bases[name], self.shares(name)) if name in self.bases else None

    def shares(self, name: str) -> Tensor | None:
        """Share of the gradient along each direction of a layer's basis that is removed. None removes all of it."""
        return None

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        self.net.eval()
        x, _ = next(fisher_batches(data.train, self.samples, self.samples))
        with watched_inputs(self.layers) as inputs:
            self.net(x, task.index)
        for number, (name, layer) in enumerate(self.layers.items()):
            basis = self.bases.get(name, empty_basis(layer))
            self.extend(name, basis, inputs.pop(name), self._threshold_of(number, task))

    def _threshold_of(self, layer: int, task: Task) -> float:
        start = self.threshold if self.first_threshold is None or layer else self.first_threshold
        return min(start + task.index * self.increment, 1.0)

    def extend(self, name: str, basis: Tensor, inputs: Inputs, threshold: float) -> Tensor:
        """Add to a layer's basis the directions that it lacks, and return the singular value of each."""
        new, values = missing_directions(inputs, basis, threshold)
        self.bases[name] = joined_basis(basis, new)
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"bases": dict(self.bases)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bases = dict(state["bases"])

    def extra_bytes(self) -> int:
        return nbytes(self.bases)

    def report(self) -> dict[str, float]:
        """Mean over layers of the share of directions in the basis. A layer that has all of them learns no more."""
        shares = [basis.shape[1] / basis.shape[0] for basis in self.bases.values()]
        return {"directions_held": sum(shares) / len(shares)} if shares else {}
