"""The protocol of the paper's public code, written anew from its description, to be timed beside ours.

What it does otherwise: intervals are derived from centre and bit count after every step; the loss of the training set
is measured by a pass of its own, and as the validation set is the training set, by a second one; both in batches of
the training's size, with every task's head; the Fisher gives each sample of a batch a copy of the weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from bitfreeze.lab.nets import MultiHead

DEPTH = 20


@dataclass
class Frozen:
    """A tensor with its bits, centre and accumulated Fisher."""

    parameter: nn.Parameter
    bound: float
    prior: float
    bits: Tensor = field(init=False)
    centre: Tensor = field(init=False)
    fisher: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.bits = torch.zeros_like(self.parameter, dtype=torch.int64, requires_grad=False)
        self.centre = torch.zeros_like(self.parameter, requires_grad=False)
        self.fisher = torch.full_like(self.parameter, self.prior, requires_grad=False)

    @torch.no_grad()
    def clip_(self) -> None:
        reach = self.bound * 2.0**-self.bits
        self.parameter.copy_(self.parameter.maximum(self.centre - reach).minimum(self.centre + reach))
        edge = self.bound * (1 - 2.0**-DEPTH)
        self.parameter.clamp_(-edge, edge)

    @torch.no_grad()
    def freeze_(self, fisher: Tensor, task: int) -> None:
        """``task`` counts from 1."""
        gain = 0.5 * torch.log2((fisher + task * self.fisher) / ((task + 1) * self.fisher))
        self.bits = (self.bits + gain.ceil().long().clamp(min=0)).clamp(max=DEPTH)
        steps = 2.0**self.bits
        rounded = self.bound * (torch.round(self.parameter / self.bound * steps) / steps)
        self.centre = torch.where(self.bits == 0, 0.0, rounded)
        self.parameter.copy_(self.centre)
        self.fisher = (task * self.fisher + fisher) / (task + 1)


class Released:
    """The training of one network; ``prior`` is F0 on the released scale, that of the Fisher divided by B^2."""

    def __init__(self, net: MultiHead, prior: float, batch: int) -> None:
        self.net, self.batch = net, batch
        self.layers = [module for module in net.backbone.modules() if isinstance(module, nn.Linear)]
        self.frozen: list[tuple[Frozen, Frozen]] = []  # weight and bias of each layer
        for layer in self.layers:
            inputs = layer.in_features
            weight = Frozen(layer.weight, 6 / inputs**0.5, prior * inputs)
            self.frozen.append((weight, Frozen(layer.bias, 1.0, prior * inputs)))

    def logits(self, x: Tensor, task: int) -> Tensor:
        features = self.net.backbone(x)
        return [head(features) for head in self.net.heads][task]

    def train_epoch(self, x: Tensor, y: Tensor, task: int, optimizer: Optimizer, order: Tensor) -> None:
        self.net.train()
        for rows in order.split(self.batch):
            loss = F.cross_entropy(self.logits(x[rows], task), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for weight, bias in self.frozen:
                weight.clip_()
                bias.clip_()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor, task: int) -> tuple[float, float]:
        """Loss, and share of right answers."""
        self.net.eval()
        loss, right = torch.zeros(()), 0
        for rows in torch.arange(len(y)).split(self.batch):
            scores, labels = self.logits(x[rows], task), y[rows]
            loss += F.cross_entropy(scores, labels) * len(rows)
            right += int((scores.argmax(1) == labels).sum())
        return loss.item() / len(y), right / len(y)

    def end_task(self, x: Tensor, task: int, samples: int, batch: int) -> None:
        rows = torch.randperm(len(x))[:samples]
        for layer, found in zip(self.frozen, self.fisher(x[rows], task, batch), strict=True):
            for tensor, fisher in zip(layer, found, strict=True):
                tensor.freeze_(fisher, task + 1)

    def fisher(self, x: Tensor, task: int, batch: int, labels: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        """F / B^2 of each layer's weight and bias: the loss is a mean over the batch of B. Labels are drawn."""
        self.net.eval()
        sums = [(torch.zeros_like(layer.weight), torch.zeros_like(layer.bias)) for layer in self.layers]
        for start in range(0, len(x), batch):
            given = None if labels is None else labels[start : start + batch]
            passes = self._passes(x[start : start + batch], task, given)
            for (weight_sum, bias_sum), layer, (a, delta) in zip(sums, self.layers, passes, strict=True):
                weights = layer.weight.detach().repeat(len(a), 1, 1).requires_grad_()
                biases = layer.bias.detach().repeat(len(a), 1).requires_grad_()
                outputs = torch.bmm(weights, a.unsqueeze(2)).squeeze(2) + biases
                by_weight, by_bias = torch.autograd.grad((outputs * delta).sum(), (weights, biases))
                weight_sum += by_weight.square_().sum(0)
                bias_sum += by_bias.square_().sum(0)
        return [(weight.detach() / len(x), bias.detach() / len(x)) for weight, bias in sums]

    def _passes(self, x: Tensor, task: int, labels: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Each layer's input, and the gradient of the batch's mean loss at its output."""
        calls: list[tuple[Tensor, Tensor]] = []
        hooks = [layer.register_forward_hook(lambda _, a, out: calls.append((a[0], out))) for layer in self.layers]
        scores = self.logits(x, task)
        for hook in hooks:
            hook.remove()
        for _, output in calls:
            output.retain_grad()
        if labels is None:
            labels = torch.distributions.Categorical(logits=scores.detach()).sample()
        self.net.zero_grad()
        F.cross_entropy(scores, labels).backward()
        self.net.zero_grad()
        return ((a.detach(), output.grad) for a, output in calls)
