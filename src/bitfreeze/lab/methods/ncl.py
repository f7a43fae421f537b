"""Natural continual learning: steps along the natural gradient of a posterior whose precision is Kronecker-factored."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ...fisher import estimate
from ...fisher.factors import joined, joined_parameters, joined_shape, split_joined
from ...fisher.measuring import NOT_USED
from ...fisher.moments import SquareMoment
from ...fisher.statistics import ReachedPositions, SecondMoments
from ...model.parameters import find_parameters
from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Task, TaskData
from .kronecker import Kronecker, sum_by_traces
from .method import Record
from .pull import Named, nbytes
from .registry import register_method
from .task_fisher import FisherMethod, fisher_batches
from .thin_gradients import ThinGradients
from .unprotected import hold_statistics, without_unprotected

WIDEST = 4096  # inputs or outputs of a layer: its factors are squares of them, and an inverse takes their cube


@register_method
@dataclass
class NaturalContinualLearning(FisherMethod):
    """W <- W - lr / N * precision^-1 [gradient + strength * precision (W - W0)], for each Linear and Conv2d.

    W0 are the weights after the last task. The precision is that of the prior, 1 / N, and of all tasks so far.
    """

    record = Record(
        "ncl",
        "Natural Continual Learning: natural gradients of a Kronecker-factored posterior",
        paper="Kao et al., NeurIPS 2021",
        memory="O(1)",
        optimizer="SGD with natural gradients",
    )

    strength: Annotated[float, "lambda: weight of the pull towards the last weights"] = 1.0
    data_size: Annotated[int | None, "N: the prior counts as one of N samples; none takes the first task's size"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["strength"], lambda s: s >= 0, "at least 0", "0 turns the pull off")
        require("method", self, ["data_size"], lambda n: n is None or n >= 1, "at least 1, or none")
        require("method", self, ["weight_decay"], lambda w: w == 0, "0", "ncl has a prior in its place")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        heads = {id(p) for task in range(len(net.heads)) for p in net.of_task(task)}
        self.layers = {
            name: module
            for name, module in net.named_modules()
            if isinstance(module, nn.Linear | nn.Conv2d) and id(module.weight) not in heads
        }
        for name, layer in self.layers.items():
            _, outputs, inputs = joined_shape(layer)
            if max(outputs, inputs) > WIDEST:
                raise ValueError(
                    f"layers of ncl must have at most {WIDEST} inputs and outputs, got {inputs} inputs (a bias counts "
                    f"as one) and {outputs} outputs of '{name}'; use a narrower network"
                )
        self.size = 0  # N, once it is known
        self.precision: dict[str, Kronecker] = {}
        self.anchor: Named = {}  # W0, joined
        self.thin = ThinGradients()
        return super().build(net, tasks)

    def trained(self, task: Task) -> list[Tensor]:
        """Once the first task is learned, without parameters of the backbone that have no precision."""
        trained, layers = super().trained(task), self.layers.values()
        protected = [p for layer in layers for p in layer.parameters(recurse=False)]
        return without_unprotected(trained, self.net.backbone, protected) if self.precision else trained

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.size = self.size or self.data_size or len(data.train)
        self.inverse = {name: precision.inverse() for name, precision in self.precision.items()}
        if self.precision:
            hold_statistics(self.net.backbone)

    def objective(self, batches: list[Batch]) -> Tensor:
        """Mean loss without the penalty, whose natural gradient is known: ``before_step`` adds it."""
        with self.thin.recorded(self.layers[name] for name in self.inverse):
            return self._mean_loss(batches)

    def penalty(self, task: Task) -> Tensor | None:
        """strength / 2 * sum of (W - W0) precision (W - W0), for the validation criterion."""
        terms = []
        for name, layer in self.layers.items():
            apart = self._apart(name, layer)
            pulled = self.precision[name].times(apart) if name in self.precision else apart / self.size
            terms.append((apart * pulled).sum())
        return self.strength / 2 * torch.stack(terms).sum() if terms else None

    def _apart(self, name: str, layer: nn.Module) -> Tensor:
        """W - W0, joined. In the first task W0 is 0, the mean of the prior."""
        return joined(layer) - self.anchor[name] if name in self.anchor else joined(layer)

    @torch.no_grad()
    def before_step(self, task: Task) -> None:
        """Make gradients natural: (precision^-1 gradient + strength (W - W0)) / N. The prior's precision is 1 / N."""
        for name, layer in self.layers.items():
            found = [layer.get_parameter(part).grad for part in joined_parameters(layer)]
            gradients = [gradient for gradient in found if gradient is not None]
            if not gradients:
                continue
            groups, outputs, _ = joined_shape(layer)
            natural = torch.cat([gradient.reshape(groups, outputs, -1) for gradient in gradients], -1)
            if name in self.inverse:
                inverse = self.inverse[name]
                thin = self.thin.between(layer, inverse.outputs[0], inverse.inputs[0])
                natural = (inverse.times(natural) if thin is None else thin[None]) / self.size
            natural += self.strength / self.size * self._apart(name, layer)
            for gradient, value in zip(gradients, split_joined(layer, natural).values(), strict=True):
                gradient.copy_(value)

    def end_task(self, task: Task, data: TaskData) -> None:
        new = self._task_precision(task, data)
        self.precision = {**self.precision, **{name: self._added(name, factors) for name, factors in new.items()}}
        self.anchor = {**self.anchor, **{name: joined(self.layers[name]) for name in new}}
        hold_statistics(self.net.backbone)

    def _added(self, name: str, new: Kronecker) -> Kronecker:
        """The precision of a layer so far, at first that of the prior, and of the new task."""
        prior = Kronecker.identity(joined_shape(self.layers[name]), 1 / self.size, new.inputs)
        return sum_by_traces(self.precision.get(name, prior), new)

    def _task_precision(self, task: Task, data: TaskData) -> dict[str, Kronecker]:
        """Factors of the Fisher of each layer that the task uses, from its inputs and output gradients."""
        layers = self.layers.items()
        measured = {name: (SecondMoments(layer, WIDEST), ReachedPositions(layer)) for name, layer in layers}
        with self.independent_samples(task, data):
            found = estimate(
                self.net,
                fisher_batches(data.train, self.samples, self.fisher_batch),
                lambda x: self.likelihood(x, task),
                labels=self.labels,
                statistics={self.layers[name]: statistics for name, statistics in measured.items()},
                skip=[slot.name for slot in find_parameters(self.net)],
            )
        reasons = {name: found.statistics[layer] for name, layer in layers}
        refused = next((name for name, reason in reasons.items() if reason not in ("", NOT_USED)), None)
        if refused is not None:
            raise ValueError(f"ncl cannot take the factors of '{refused}': {reasons[refused]}; use another network")
        return {name: _factors(*statistics) for name, statistics in measured.items() if not reasons[name]}

    def state_dict(self) -> dict[str, Any]:
        sides = {name: {"outputs": p.outputs, "inputs": p.inputs} for name, p in self.precision.items()}
        return {"size": self.size, "precision": sides, "anchor": self.anchor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.size, self.anchor = state["size"], state["anchor"]
        self.precision = {name: Kronecker(**sides) for name, sides in state["precision"].items()}

    def extra_bytes(self) -> int:
        """Memory of the factors and of W0."""
        return sum(precision.nbytes for precision in self.precision.values()) + nbytes(self.anchor)


def _factors(moments: SecondMoments, reached: ReachedPositions) -> Kronecker:
    """Mean of both moments: of inputs over positions that a gradient reaches, of output gradients over samples.

    A sample whose gradient does not reach a layer says nothing about what the layer's inputs may be.
    """
    assert isinstance(moments.inputs, SquareMoment)
    assert isinstance(moments.outputs, SquareMoment)
    positions = reached.totals["reached"].clamp(min=1).to(moments.inputs.total.dtype)[:, None, None]
    return Kronecker(moments.outputs.total / moments.samples, moments.inputs.total / positions)
