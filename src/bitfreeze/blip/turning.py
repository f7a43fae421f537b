"""Turned coordinates of a layer: its weights along the directions that its inputs and its output gradients use.

A layer z = W a + b is one matrix W = [W b] of each group, with a constant 1 behind the inputs. Index letters: g group,
o output, i input, j input direction, k output direction. With U [g, i, j] and V [g, o, k] the weights are V^T W U, and
their Fisher is the expectation of (v . delta)^2 (u . a)^2. Everything here is a pure function of tensors.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Turning:
    """Directions of a layer's inputs and output gradients, strongest first, and the Fisher along them."""

    inputs: Tensor  # U [g, i, j], orthonormal columns
    outputs: Tensor  # V [g, o, k], orthonormal columns
    input_energy: Tensor  # [g, j]: second moment of the inputs along each direction, summed over tasks
    output_energy: Tensor  # [g, k]: the same for output gradients
    fisher: Tensor  # [g, k, j]: Fisher of the turned weights, accumulated over tasks
    positions: int = 1  # at which the layer works for each sample

    TENSORS = ("inputs", "outputs", "input_energy", "output_energy", "fisher")

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.TENSORS}

    def state_dict(self) -> dict[str, Any]:
        return {"positions": self.positions, **{name: tensor.clone() for name, tensor in self.tensors().items()}}

    @classmethod
    def loaded(cls, saved: Mapping[str, Any]) -> "Turning":
        values: dict[str, Any] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in saved.items()}
        return cls(**values)

    def to(self, like: Tensor) -> "Turning":
        """The same on the device and in the precision of a tensor."""
        moved: dict[str, Any] = {name: tensor.to(like) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    def packed(self) -> "Turning":
        """The same in contiguous memory, as a saved state has it: other strides change the last bits of products."""
        packed: dict[str, Any] = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        return replace(self, **packed)

    def on(self, device: torch.device) -> "Turning":
        """The same on a device."""
        moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    @property
    def is_complete(self) -> bool:
        """Whether the directions span all weights, so that nothing is left to hold entry by entry."""
        return self.inputs.shape[1] == self.inputs.shape[2] and self.outputs.shape[1] == self.outputs.shape[2]

    def fits(self, parts: Collection[Tensor]) -> bool:
        """Whether these are coordinates of a layer with such a weight, and such a bias if it has one."""
        groups, outputs, _ = self.outputs.shape
        rows, inputs = {len(part) for part in parts}, sum(part[0].numel() for part in parts)
        return rows == {groups * outputs} and inputs == self.inputs.shape[1]

    def with_outputs(self, count: int) -> "Turning":
        """The same with more outputs, which no earlier task has: their coordinates have no Fisher, so they are free.

        New outputs are directions of their own. Where there are fewer directions than outputs, they belong to the rest.
        """
        groups, before, directions = self.outputs.shape
        more = count - before
        if more <= 0 or groups > 1:
            return self
        along = more if before == directions else 0
        outputs = pad(self.outputs, (0, along, 0, more))
        outputs[:, before:, directions:] = torch.eye(more, along).to(outputs)
        return replace(
            self,
            outputs=outputs,
            output_energy=pad(self.output_energy, (0, along)),
            fisher=pad(self.fisher, (0, 0, 0, along)),
        )

    def turn(self, change: Tensor) -> Tensor:
        """Weights [g, o, i] in turned coordinates [g, k, j]."""
        return self.outputs.mT @ change @ self.inputs

    def turn_back(self, turned: Tensor) -> Tensor:
        """Turned coordinates [g, k, j] as weights [g, o, i]."""
        return self.outputs @ turned @ self.inputs.mT

    def carried(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The Fisher in other coordinates: the diagonal of the turned diagonal matrix, exactly."""
        return (self.outputs.mT @ outputs).square().mT @ self.fisher @ (self.inputs.mT @ inputs).square()

    def spread(self) -> Tensor:
        """The Fisher over the entries [g, o, i] of the weights: the diagonal of the matrix turned back."""
        return _spread(self.fisher, self.inputs, self.outputs)


def _spread(fisher: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    return outputs.square() @ fisher @ inputs.square().mT


@dataclass(frozen=True)
class Task:
    """What a task's data told about a layer, in new coordinates."""

    inputs: Tensor  # new directions U
    outputs: Tensor  # new directions V
    turned: Tensor  # Fisher along them
    rest: Tensor | None  # Fisher of each entry of what the directions leave out; None where they are complete


def damped(task: Task, damping: float) -> Task:
    """The Fisher of a task, with a share ``damping`` of its mean over all outputs added to each output.

    That a direction of the outputs has no gradient holds only nearby: a large step along it bends the network. (A
    direction of the inputs that no sample uses is free however far a step goes.) In any coordinates of the outputs the
    share is the same.
    """
    outputs = task.outputs.shape[1]
    along = task.turned.sum(1, keepdim=True) / outputs  # [g, 1, j]
    if task.rest is None:
        return replace(task, turned=task.turned + damping * along)
    of_rest = task.rest.sum(1, keepdim=True) / outputs  # [g, 1, i]
    # share [g, o, 1] of each output outside the directions; rounding may leave it below 0
    outside = (1 - task.outputs.square().sum(-1, keepdim=True)).clamp_(min=0)
    turned = task.turned + damping * (along + of_rest @ task.inputs.square())
    rest = task.rest + damping * (of_rest + outside * (along @ task.inputs.square().mT))
    return replace(task, turned=turned, rest=rest)


def carry_over(before: Turning | None, rest_before: Tensor | None, task: Task) -> tuple[Tensor, Tensor | None]:
    """The Fisher of earlier tasks in a new task's coordinates, and that of what these coordinates leave out.

    Args:
        before: coordinates of earlier tasks, None where the layer was held entry by entry.
        rest_before: Fisher of each entry of what those coordinates leave out, None where there is none.
        task: the new coordinates.

    Returns:
        The Fisher along the new directions, and the Fisher of each entry, None where the directions are complete.
    """
    carried = torch.zeros_like(task.turned)
    new = torch.ones_like(carried)  # share of each new coordinate that lies outside the earlier ones
    if before is not None:
        carried = before.carried(task.inputs, task.outputs)
        new = 1 - replace(before, fisher=torch.ones_like(before.fisher)).carried(task.inputs, task.outputs)
    if rest_before is not None:
        carried = carried + new.clamp(min=0) * (task.outputs.square().mT @ rest_before @ task.inputs.square())
    if task.rest is None:
        return carried, None
    rest = -_spread(carried, task.inputs, task.outputs)  # what the new directions have is not left to the rest
    rest = rest if before is None else rest + before.spread()
    rest = rest if rest_before is None else rest + rest_before
    return carried, rest.clamp_(min=0)
