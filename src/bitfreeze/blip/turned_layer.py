"""A layer that is held along directions: its weight and bias as one matrix, clamped in turned coordinates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .held_tensor import AT_EDGE, HeldTensor, radius_of
from .row_blocks import RowBlock, row_blocks
from .turning import Turning


@dataclass
class Leading:
    """The strongest directions of a layer, and where its centre lies along them."""

    turning: Turning
    radius: Tensor
    centre: Tensor  # [g, k, j]


@dataclass
class TurnedLayer:
    """The states of a layer's weight and bias, and the coordinates that the two are held in together."""

    weight: HeldTensor
    bias: HeldTensor | None
    turning: Turning
    prior: float
    pace: int = 1  # steps between two clamps along all directions
    since: int = 0  # steps since the last of them
    spent: float = 0.0  # nats a sample that the layer costs, as of the last clamp that was read
    unread: Tensor | None = None  # nats before and after the last clamp, until the host reads them
    radius: Tensor = field(init=False)
    leading: Leading | None = None

    def __post_init__(self) -> None:
        self._follow()

    def _follow(self) -> None:
        """Bring the coordinates to the device and the precision of the weight."""
        self.turning = self.turning.to(self.weight.local)
        self.radius = radius_of(self.turning.fisher, self.prior)
        self.leading = None

    def follow(self) -> None:
        """Bring the coordinates to where the weight is now, if it has moved."""
        if self.radius.dtype != self.weight.local.dtype or self.radius.device != self.weight.local.device:
            self._follow()

    @property
    def width(self) -> float:
        return self.weight.width

    @property
    def parts(self) -> list[HeldTensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def joined(self, tensors: list[Tensor]) -> Tensor:
        """Tensors like the weight and the bias as one matrix [g, o, i] of each group."""
        return torch.cat([self.turning.matrix(tensor.detach()) for tensor in tensors], -1)

    def _split(self, matrix: Tensor, axis: int) -> tuple[Tensor, ...]:
        """The parts of a joined matrix that belong to the weight and to the bias."""
        return torch.split(matrix, [self.turning.by_rows(part.local)[0].numel() for part in self.parts], axis)

    def change(self) -> Tensor:
        """How far weight and bias are from their centres, [g, o, i]."""
        return self.joined([part.change() for part in self.parts])

    def along_inputs(self) -> Tensor:
        """How far the outputs are from their centres along the input directions, [g, o, j]."""
        return self._along_inputs((block.change() for block in self._blocks(part)) for part in self.parts)

    def turned(self) -> Tensor:
        """How far weight and bias are from their centres along the directions of both sides, [g, k, j]."""
        return self.turning.outputs.mT @ self.along_inputs()

    def _blocks(self, part: HeldTensor) -> Iterator[RowBlock]:
        return row_blocks(part, self.turning)

    def _sides(self) -> tuple[Tensor, ...]:
        """Directions of the inputs, [g, i, j], of the weight and of the bias."""
        return self._split(self.turning.inputs, 1)

    # after a step

    def after_step_(self, leading: int, leading_every: int) -> None:
        """Clamp if it is time to: after ``pace`` steps, and along the leading directions in between."""
        self.since += 1
        if self.since >= self.pace:
            self.unread = self._hold_()
        elif leading and self.since % leading_every == 0:
            self.hold_leading_(leading)

    def settle(self, before: float, after: float, most: int) -> None:
        """Take in the nats before and after the last clamp, which were ``unread``.

        The pace follows training. It is halved where a clamp undoes steps that would cost the earlier tasks more than
        this layer's share of the tolerance, and doubled, to at most ``most``, where the clamp undoes little.
        """
        self.spent, self.unread = after, None
        undone = before - after
        allowed = 0.5 * self.prior * self.width**2 * sum(part.local.numel() for part in self.parts)
        if undone > allowed:
            self.pace = max(1, self.pace // 2)
        elif undone < allowed / 4:
            self.pace = min(2 * self.pace, most)

    def hold_(self) -> float:
        """Clamp along all directions, and what the directions leave out.

        Returns the nats a sample that the clamp has given back to the earlier tasks.
        """
        before, self.spent = self._hold_().tolist()
        self.unread = None
        return float(before - self.spent)

    @torch.no_grad()
    def _hold_(self) -> Tensor:
        """Clamp; returns the nats a sample before and after it, on the device."""
        self.since = 0
        self.follow()
        along = self.along_inputs()
        self.weight.note_health(along)  # an infinite weight or bias reaches the directions
        inside, costs, outside = self._clamp_along(along)
        rests: list[list[Tensor]] = []
        if not self.turning.all_inputs:
            rests, of_rest, moved = self._clamp_rest(along)
            costs, outside = costs + of_rest, outside | moved
            if not _is_known_false(moved):
                inside -= self._along_inputs(rests)  # what is left of the rest would leak into directions
        if not _is_known_false(outside):
            self._write_(inside, rests, outside)
        return costs

    def _clamp_along(self, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Clamp a change [g, o, j] along both sides, and by output what the output directions leave out.

        Returns the clamped change, the nats a sample before and after, and whether a coordinate was outside.
        """
        turning, outputs = self.turning, self.turning.outputs
        turned = outputs.mT @ along
        left = torch.baddbmm(along, outputs, turned, alpha=-1)
        costs, outside = _clamp_(turned, turning.fisher, self.radius * self.width)
        if turning.by_output is None:
            return outputs @ turned, costs, outside
        fisher = turning.by_output.to(left)
        of_left, moved = _clamp_(left, fisher, self._radius_of(fisher))
        turned -= outputs.mT @ left  # what is left by output would leak into directions too
        return left.baddbmm_(outputs, turned), costs + of_left, outside | moved

    def _clamp_rest(self, along: Tensor) -> tuple[list[list[Tensor]], Tensor, Tensor]:
        """Clamp what the input directions leave out, entry by entry.

        Returns the rest of each block, the nats a sample before and after, and whether an entry was outside.
        """
        rests: list[list[Tensor]] = []
        costs, moved = along.new_zeros(2), torch.zeros((), dtype=torch.bool, device=along.device)
        for part, side in zip(self.parts, self._sides(), strict=True):
            rests.append([])
            for block in self._blocks(part):
                rest, fisher = block.rest(along, side), block.fisher()
                of_block, outside = _clamp_(rest, fisher, self._radius_of(fisher))
                costs, moved = costs + of_block, moved | outside
                rests[-1].append(rest)
        return rests, costs, moved

    def _radius_of(self, fisher: Tensor) -> Tensor:
        return radius_of(fisher, self.prior * self.width**2)

    def _along_inputs(self, changes: Iterable[Iterable[Tensor]]) -> Tensor:
        """What the blocks of each part have along the input directions, [g, o, j]."""
        each = [
            torch.cat([change @ side for change in blocks], 1)
            for side, blocks in zip(self._sides(), changes, strict=True)
        ]
        return torch.stack(each).sum(0) if len(each) > 1 else each[0]

    def _write_(self, along: Tensor, rests: list[list[Tensor]], moved: Tensor) -> None:
        """Move the layer to this change along the input directions and this rest, if ``moved``."""
        for number, (part, side) in enumerate(zip(self.parts, self._sides(), strict=True)):
            for at, block in enumerate(self._blocks(part)):
                rest = rests[number][at] if rests else None
                block.write_(_plus_product(rest, block.of(along), side.mT), moved)

    @torch.no_grad()
    def hold_leading_(self, count: int) -> None:
        """Clamp along the ``count`` strongest directions of each side only, which takes a small part of the time."""
        if self.leading is None or self.radius.dtype != self.weight.local.dtype:
            self._follow()
            self.leading = self._make_leading(count)
        leading = self.leading
        outputs, inputs = leading.turning.outputs, leading.turning.inputs
        matrices = [self.turning.matrix(part.local) for part in self.parts]  # views, where strides allow
        sides = self._split(inputs, 1)
        turned = -leading.centre
        for matrix, side in zip(matrices, sides, strict=True):
            turned = turned + (outputs.mT @ matrix) @ side
        radius = leading.radius * self.width
        excess = turned - turned.clamp(-radius, radius)
        if _is_known_false(excess.any()):
            return
        for part, matrix, side in zip(self.parts, matrices, sides, strict=True):
            matrix.baddbmm_(outputs, excess @ side.mT, alpha=-1)
            if matrix.data_ptr() != part.local.data_ptr():
                part.local.copy_(self.turning.like(matrix, part.local))

    def _make_leading(self, count: int) -> Leading:
        whole = self.turning
        turning = Turning(
            whole.inputs[..., :count].contiguous(), whole.outputs[..., :count].contiguous(),
            whole.input_energy[..., :count], whole.output_energy[..., :count], whole.fisher[:, :count, :count],
        )  # fmt: skip
        centre = self.joined([part.centre.to(part.local) for part in self.parts if part.centre is not None])
        return Leading(turning, radius_of(turning.fisher, self.prior), turning.turn(centre))

    # what was lost, and what is at an edge

    def cost(self) -> Tensor:
        """Nats a sample that earlier tasks have lost by the change of the layer."""
        along, turning = self.along_inputs(), self.turning
        turned = turning.outputs.mT @ along
        cost = _cost(turning.fisher, turned)
        if turning.by_output is not None:
            cost = cost + _cost(turning.by_output.to(along), torch.baddbmm(along, turning.outputs, turned, alpha=-1))
        if not turning.all_inputs:
            for part, side in zip(self.parts, self._sides(), strict=True):
                for block in self._blocks(part):
                    cost = cost + _cost(block.fisher(), block.rest(along, side))
        return cost.cpu()

    def at_edge(self) -> int:
        """Number of turned coordinates at the edge of their interval."""
        return int((self.turned().abs() >= AT_EDGE * self.width * self.radius).sum())

    def _rest_fisher(self) -> Tensor:
        return self.joined([part.fisher.to(part.local) for part in self.parts if part.fisher is not None])

    def cache_bytes(self) -> int:
        leading = 0 if self.leading is None else sum(t.nbytes for t in self.leading.turning.tensors().values())
        return self.radius.nbytes + leading

    def fisher_of_entries(self) -> list[Tensor]:
        """Fisher of each entry of the weight and of the bias, if it moves alone."""
        whole = self.turning.spread()
        if not self.turning.all_inputs:
            whole = whole + self._rest_fisher()
        return self.turning.split(whole, [part.local for part in self.parts])


def _plus_product(rest: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """Rest (overwritten) plus a product."""
    return left @ right if rest is None else rest.baddbmm_(left, right)


def _is_known_false(flag: Tensor) -> bool:
    """Whether a flag is false, as far as that can be told without waiting for a device that works on its own."""
    return flag.device.type == "cpu" and not flag


def _clamp_(change: Tensor, fisher: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Clamp a change in place. Returns the nats a sample before and after, and whether any of it was outside."""
    outside = (change.abs() > radius).any()
    before = _cost(fisher, change)
    return torch.stack([before, _cost(fisher, change.clamp_(-radius, radius))]), outside


def _cost(fisher: Tensor, change: Tensor) -> Tensor:
    """Nats a sample that a change of coordinates with this Fisher costs."""
    return 0.5 * (fisher * change).mul_(change).sum()
