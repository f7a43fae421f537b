"""Turned coordinates of a layer: its weights along the directions that its inputs and its output gradients use.

A layer z = W a + b is one matrix W = [W b] of each group, with a constant 1 behind the inputs. Index letters: g group,
o output, i input, j input direction, k output direction. With directions U [g, i, j] and V [g, o, k] the weights have
three parts, each with a diagonal Fisher of its own:

    V^T W U [g, k, j]              along both sides: the expectation of (v . delta)^2 (u . a)^2
    (W - V V^T W) U [g, o, j]      by output: what the output directions leave out, along the input directions
    W - W U U^T [g, o, i]          the rest, entry by entry: what the input directions leave out

Everything here is a pure function of tensors.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def by_rows(part: Tensor, inputs_first: bool) -> Tensor:
    """A tensor like a weight or a bias with a row for each output: a view. Or the way back."""
    return part.mT if inputs_first and part.ndim == 2 else part


@dataclass(frozen=True)
class Turning:
    """Directions of a layer's inputs and output gradients, strongest first, and the Fisher along them."""

    inputs: Tensor  # U [g, i, j], orthonormal columns
    outputs: Tensor  # V [g, o, k], orthonormal columns
    input_energy: Tensor  # [g, j]: second moment of the inputs along each direction, summed over tasks
    output_energy: Tensor  # [g, k]: the same for output gradients
    fisher: Tensor  # [g, k, j]: Fisher along both sides, accumulated over tasks
    by_output: Tensor | None = None  # [g, o, j]: Fisher of the part by output; None where V is complete
    positions: int = 1  # at which the layer works for each sample
    inputs_first: bool = False  # whether the layer keeps its weight as [i, o]

    TENSORS = ("inputs", "outputs", "input_energy", "output_energy", "fisher")

    def tensors(self) -> dict[str, Tensor]:
        own = {name: getattr(self, name) for name in self.TENSORS}
        return own if self.by_output is None else {**own, "by_output": self.by_output}

    def state_dict(self) -> dict[str, Any]:
        more = {"inputs_first": True} if self.inputs_first else {}
        return {"positions": self.positions, **more, **{name: t.clone() for name, t in self.tensors().items()}}

    @classmethod
    def loaded(cls, saved: Mapping[str, Any]) -> "Turning":
        values: dict[str, Any] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in saved.items()}
        return cls(**values)

    def to(self, like: Tensor) -> "Turning":
        """The same on the device and in the precision of a tensor. The Fisher by output keeps its precision."""
        moved: dict[str, Any] = {name: getattr(self, name).to(like) for name in self.TENSORS}
        by_output = None if self.by_output is None else self.by_output.to(like.device)
        return replace(self, **moved, by_output=by_output)

    def packed(self) -> "Turning":
        """The same in contiguous memory, as a saved state has it: other strides change the last bits of products."""
        packed: dict[str, Any] = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        return replace(self, **packed)

    def on(self, device: torch.device) -> "Turning":
        """The same on a device."""
        moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    @property
    def all_inputs(self) -> bool:
        """Whether the input directions span everything, so that there is no rest."""
        return self.inputs.shape[1] == self.inputs.shape[2]

    @property
    def all_outputs(self) -> bool:
        """Whether the output directions span everything, so that there is no part by output."""
        return self.outputs.shape[1] == self.outputs.shape[2]

    def shares(self) -> dict[str, float]:
        """Of the coordinates of each part, the share that is no combination of the other parts."""
        (_, outputs, k), (_, inputs, j) = self.outputs.shape, self.inputs.shape
        return {"turned": 1.0, "by_output": 1 - k / outputs, "rest": 1 - j / inputs}

    def fits(self, parts: Collection[Tensor]) -> bool:
        """Whether these are coordinates of a layer with such a weight, and such a bias if it has one."""
        groups, outputs, _ = self.outputs.shape
        parts = [self.by_rows(part) for part in parts]
        rows, inputs = {len(part) for part in parts}, sum(part[0].numel() for part in parts)
        return rows == {groups * outputs} and inputs == self.inputs.shape[1]

    def by_rows(self, part: Tensor) -> Tensor:
        """A tensor like the weight or the bias with a row for each output, [g * o, ...]: a view. Or the way back."""
        return by_rows(part, self.inputs_first)

    def shape_by_rows(self, shape: torch.Size) -> torch.Size:
        return torch.Size(reversed(shape)) if self.inputs_first and len(shape) == 2 else shape

    def matrix(self, part: Tensor) -> Tensor:
        """A tensor like the weight or the bias as [g, o, i]."""
        return self.by_rows(part).reshape(*self.outputs.shape[:2], -1)

    def like(self, matrix: Tensor, part: Tensor) -> Tensor:
        """Numbers [g, o, i] in the shape of a tensor like the weight or the bias."""
        return self.by_rows(matrix.reshape(self.shape_by_rows(part.shape)))

    def split(self, matrix: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
        """Numbers [g, o, i] of the joined matrix in the shapes of its weight and bias."""
        widths = [self.by_rows(part)[0].numel() for part in parts]
        return [self.like(own, part) for own, part in zip(torch.split(matrix, widths, -1), parts, strict=True)]

    def with_outputs(self, count: int) -> "Turning":
        """The same with more outputs, which no earlier task has: their coordinates have no Fisher, so they are free.

        New outputs are directions of their own. Where there are fewer directions than outputs, they are held by output.
        """
        groups, before, directions = self.outputs.shape
        more = count - before
        if more <= 0 or groups > 1:
            return self
        along = more if self.by_output is None else 0
        outputs = pad(self.outputs, (0, along, 0, more))
        outputs[:, before:, directions:] = torch.eye(more, along).to(outputs)
        return replace(
            self,
            outputs=outputs,
            output_energy=pad(self.output_energy, (0, along)),
            fisher=pad(self.fisher, (0, 0, 0, along)),
            by_output=None if self.by_output is None else pad(self.by_output, (0, 0, 0, more)),
        )

    def turn(self, change: Tensor) -> Tensor:
        """Weights [g, o, i] along both sides, [g, k, j]."""
        return self.outputs.mT @ change @ self.inputs

    def turn_back(self, turned: Tensor) -> Tensor:
        """Coordinates along both sides, [g, k, j], as weights [g, o, i]."""
        return self.outputs @ turned @ self.inputs.mT

    def carried(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The Fisher along other directions of both sides, without what the rest has there.

        It is the diagonal of the turned diagonal matrix, exactly.
        """
        within = self.outputs.mT @ outputs
        fisher = within.square().mT @ self.fisher
        if self.by_output is not None:
            fisher = fisher + (outputs - self.outputs @ within).square().mT @ self.by_output.to(fisher)
        return fisher @ (self.inputs.mT @ inputs).square()

    def along_inputs(self) -> Tensor:
        """The Fisher of each output along the input directions, [g, o, j]."""
        along = self.outputs.square() @ self.fisher
        return along if self.by_output is None else along + self.by_output.to(along)

    def spread(self) -> Tensor:
        """The Fisher over the entries [g, o, i] of the weights, without the rest."""
        return self.along_inputs() @ self.inputs.square().mT


Parts = dict[str, Tensor]  # Fisher of each part that there is: ``turned`` along both sides, ``by_output``, ``rest``


@dataclass(frozen=True)
class Task:
    """What a task's data told about a layer, in new coordinates."""

    inputs: Tensor  # new directions U
    outputs: Tensor  # new directions V
    parts: Parts


def damped(task: Task, damping: float) -> Task:
    """The Fisher of a task, with a share ``damping`` of its mean over all outputs added to each output.

    That a direction of the outputs has no gradient holds only nearby: a large step along it bends the network. (A
    direction of the inputs that no sample uses is free however far a step goes.) In any coordinates of the outputs the
    share is the same.
    """
    parts, share = dict(task.parts), damping / task.outputs.shape[1]
    along = sum(parts[name].sum(1, keepdim=True) for name in ("turned", "by_output") if name in parts)  # [g, 1, j]
    parts["turned"] = parts["turned"] + share * along
    if "by_output" in parts:
        # share [g, o, 1] of each output outside the directions; rounding may leave it below 0
        outside = (1 - task.outputs.square().sum(-1, keepdim=True)).clamp_(min=0)
        parts["by_output"] = parts["by_output"] + share * outside * along
    if "rest" in parts:
        parts["rest"] = parts["rest"] + share * parts["rest"].sum(1, keepdim=True)
    return replace(task, parts=parts)


def carry_over(before: Turning | None, rest_before: Tensor | None, task: Task) -> Parts:
    """The Fisher of earlier tasks in a new task's coordinates.

    What the new directions have of it is not left to the other parts.

    Args:
        before: coordinates of earlier tasks, None where the layer was held entry by entry.
        rest_before: Fisher of each entry of the rest, None where there is none.
        task: the new coordinates.

    Returns:
        The Fisher of the parts that the new coordinates have.
    """
    u, v = task.inputs, task.outputs
    turned = torch.zeros_like(task.parts["turned"])
    along = turned.new_zeros(*v.shape[:2], u.shape[2])  # Fisher of each output along the new input directions
    outside = u  # what of the new input directions the earlier ones leave out
    if before is not None:
        within = before.inputs.mT @ u
        turned, along = before.carried(u, v), before.along_inputs() @ within.square()
        outside = u - before.inputs @ within
    if rest_before is not None:
        of_rest = rest_before @ outside.square()
        turned, along = turned + v.square().mT @ of_rest, along + of_rest
    parts = {"turned": turned}
    has = v.square() @ turned  # what the new coordinates have of each output along the new input directions
    if "by_output" in task.parts:
        parts["by_output"] = (along - has).clamp_(min=0)
        has = has + parts["by_output"]
    if "rest" in task.parts:
        entries = torch.zeros_like(task.parts["rest"]) if before is None else before.spread()
        entries = entries if rest_before is None else entries + rest_before
        parts["rest"] = (entries - has @ u.square().mT).clamp_(min=0)
    return parts
