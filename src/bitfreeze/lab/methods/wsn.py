"""Winning subnetworks: each task uses the weights with the best scores, and weights that a task used are frozen."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.optim import Optimizer

from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .mask_coding import huffman_bytes, packed, unpacked
from .method import Method, Record, adam
from .registry import register_method
from .unprotected import hold_statistics, without_unprotected

CODED_TOGETHER = 7  # masks that one Huffman code takes together, as in its code


def best(scores: Tensor, share: float) -> Tensor:
    """Mask of this share of the entries, those with the largest |score|, at least one."""
    size = scores.detach().abs()
    return size >= _of_rank(size.flatten(), round((1 - share) * (size.numel() - 1)))


def _of_rank(values: Tensor, rank: int) -> Tensor:
    """The value that stands at ``rank`` in ascending order. NumPy selects it some sixty times faster on a processor."""
    if values.device.type == "cpu":
        return torch.as_tensor(np.partition(values.numpy(), rank)[rank])
    return values.kthvalue(rank + 1).values


class Chosen(torch.autograd.Function):
    """w m, where the mask m has the best ``share`` of |s|. The gradient goes straight through to the scores.

    With g, the gradient of w m: that of w is g m, and that of s is g w sign(s), as if m were |s|.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scores: Tensor, share: float) -> Tensor:
        mask = best(scores, share)
        ctx.save_for_backward(weight, scores, mask)
        return weight.masked_fill(~mask, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, scores, mask = ctx.saved_tensors
        return outer.masked_fill(~mask, 0), outer * weight * scores.sign(), None


@register_method
@dataclass
class WinningSubnetworks(Method):
    """Learns a score for each weight of the backbone. A task's subnetwork is the best share of each tensor."""

    record = Record(
        "wsn",
        "Winning Subnetworks: a binary mask on the weights for each task, and weights in use are frozen",
        paper="Kang et al., ICML 2022",
        memory="O(T)",
        optimizer="Adam",
    )

    share: Annotated[float, "c: share of the weights of each layer that a task uses"] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["share"], lambda c: 0 < c <= 1, "in (0, 1]")
        require("method", self, ["momentum"], lambda m: m == 0, "0", "wsn trains with Adam, which does not take it")
        require("method", self, ["weight_decay"], lambda w: w == 0, "0", "it would move weights that are frozen")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        layers = [module for module in net.backbone.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        if not layers:
            raise ValueError("wsn has nothing to mask; use a network with hidden Linear or Conv2d layers")
        fan_in = {id(p): layer.weight[0].numel() for layer in layers for p in layer.parameters(recurse=False)}
        self.masked = {name: p for name, p in net.named_parameters() if id(p) in fan_in}
        bounds = [fan_in[id(p)] ** -0.5 for p in self.masked.values()]
        starts = [torch.empty_like(p).uniform_(-b, b) for p, b in zip(self.masked.values(), bounds, strict=True)]
        self.scores = net.mask_scores = nn.ParameterList(starts)
        self.masks: dict[int, list[Tensor]] = {}  # by task, packed; in the order of the scores
        return super().build(net, tasks)

    def optimizers(self, task: Task, lr: float) -> list[Optimizer]:
        return [adam(self.trained(task), lr)]

    def trained(self, task: Task) -> list[Tensor]:
        """Once the first task is learned, without parameters of the backbone that have no mask."""
        trained = super().trained(task)
        return without_unprotected(trained, self.net.backbone, self.masked.values()) if self.masks else trained

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.used = self._used()
        if self.masks:
            hold_statistics(self.net.backbone)

    def _used(self) -> list[Tensor]:
        """Entries that an earlier task uses."""
        used = [torch.zeros_like(p, dtype=torch.bool) for p in self.masked.values()]
        for task in self.masks:
            used = [a | b for a, b in zip(used, self._masks_of(task), strict=True)]
        return used

    def _masks_of(self, task: int) -> list[Tensor]:
        kept = zip(self.masks[task], self.masked.values(), strict=True)
        return [unpacked(mask, p.shape) for mask, p in kept]

    def before_step(self, task: Task) -> None:
        """A gradient of 0 where an earlier task uses a weight. Adam begins anew with each task, so it stays there."""
        for parameter, used in zip(self.masked.values(), self.used, strict=True):
            assert parameter.grad is not None
            parameter.grad.masked_fill_(used, 0)

    def logits(self, x: Tensor, task: Task) -> Tensor:
        """Scores of the task's own subnetwork: the one that was kept, or today's best while the task is learned."""
        scores: Tensor = functional_call(self.net, self._subnetwork(task), (x, task.index))
        return scores

    def _subnetwork(self, task: Task) -> dict[str, Tensor]:
        if task.index in self.masks:
            kept = zip(self.masked.items(), self._masks_of(task.index), strict=True)
            return {name: p.masked_fill(~mask, 0) for (name, p), mask in kept}
        pairs = zip(self.masked.items(), self.scores, strict=True)
        return {name: Chosen.apply(p, scores, self.share) for (name, p), scores in pairs}  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        self.masks[task.index] = [packed(best(scores, self.share)) for scores in self.scores]
        hold_statistics(self.net.backbone)

    def state_dict(self) -> dict[str, Any]:
        return {"masks": {str(task): masks for task, masks in self.masks.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        places = [p.device for p in self.masked.values()]
        self.masks = {
            int(task): [mask.to(place) for mask, place in zip(masks, places, strict=True)]
            for task, masks in state["masks"].items()
        }

    def extra_bytes(self) -> int:
        """Memory of the scores, four bytes a weight, and of the masks, a bit a weight for each task learned."""
        scores: int = sum(p.nbytes for p in self.scores)
        return scores + self._mask_bytes()

    def _mask_bytes(self) -> int:
        return sum(mask.nbytes for masks in self.masks.values() for mask in masks)

    def report(self) -> dict[str, float]:
        """Share of the weights in use, and memory of the masks as they are kept and in a Huffman code."""
        used, every = self._used(), sum(p.numel() for p in self.masked.values())
        return {
            "weights_used": sum(int(mask.sum()) for mask in used) / every,
            "mask_bytes": self._mask_bytes(),
            "huffman_bytes": self._huffman_bytes(),
        }

    def _huffman_bytes(self) -> int:
        """Memory of the masks of seven tasks at a time, each tensor with a Huffman code of its own."""
        every = [self._masks_of(task) for task in self.masks]
        groups = [every[start : start + CODED_TOGETHER] for start in range(0, len(every), CODED_TOGETHER)]
        return sum(huffman_bytes(masks) for group in groups for masks in zip(*group, strict=True))
