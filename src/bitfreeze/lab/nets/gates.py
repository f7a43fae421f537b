"""HAT's attention: gates on the hidden units of a chain of layers, with an embedding for each task."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .convolutions import ChannelsLast
from .dropout import PoolReLU
from .multihead import MultiHead

WeightLayer = nn.Linear | nn.Conv2d

# Layers without weights that keep units apart. Past any other layer a closed unit could still have an effect.
UNIT_WISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Dropout2d, nn.MaxPool2d,
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity, PoolReLU, ChannelsLast,
)  # fmt: skip


class Gates(nn.Module):
    """Multiplies each hidden unit (or channel) of ``net`` by a = sigmoid(s e), where e is the task's embedding.

    A gate acts just before the next layer with weights, that is after ReLU, dropout and pooling. Hooks do this, so
    ``net`` itself does not change, and ``net(x, task)`` opens the gates of that task. s is ``annealed`` in training,
    else ``smax``.
    """

    def __init__(self, net: MultiHead, tasks: int, smax: float) -> None:
        super().__init__()
        self.smax = self.annealed = smax
        self.task = 0
        self.layers = _weight_layers(net.backbone)  # a plain list, so that they stay submodules of the network only
        self.units = [layer.weight.shape[0] for layer in self.layers]
        self.embeddings = nn.ParameterList(torch.randn(sum(self.units)) for _ in range(tasks))
        net.register_forward_pre_hook(self._note_task, with_kwargs=True)
        for below, layer in enumerate(self.layers[1:]):
            layer.register_forward_pre_hook(partial(self._gate_input, below))
        net.backbone.register_forward_hook(self._gate_output)

    @property
    def s(self) -> float:
        return self.annealed if self.training else self.smax

    def mask(self, task: int) -> Tensor:
        """Gates of all layers, concatenated."""
        return torch.sigmoid(self.s * self.embeddings[task])

    @torch.no_grad()
    def used(self, tasks: int) -> Tensor:
        """Largest gate of each unit over the first ``tasks`` tasks, at s = smax."""
        masks = [torch.sigmoid(self.smax * e) for e in self.embeddings[:tasks]]
        return torch.stack(masks).amax(0) if masks else torch.zeros_like(self.embeddings[0])

    def free_shares(self, used: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter and the factor of its gradient, 1 - min(used above, used below), which broadcasts to it."""
        below: Tensor | None = None
        for layer, above in zip(self.layers, torch.split(used, self.units), strict=True):
            taken = above[:, None]
            if below is not None:
                taken = torch.minimum(taken, _spread(below, layer.weight.shape[1]))
            yield layer.weight, _with_positions(1 - taken, layer.weight.ndim)
            if layer.bias is not None:
                yield layer.bias, 1 - above
            below = above

    def _note_task(self, net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task = kwargs["task"] if "task" in kwargs else args[1]

    def _gate_input(self, below: int, layer: nn.Module, args: tuple[Tensor]) -> Tensor:
        return self._gate(below, args[0])

    def _gate_output(self, backbone: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        return self._gate(len(self.layers) - 1, output)

    def _gate(self, layer: int, h: Tensor) -> Tensor:
        mask = torch.sigmoid(self.s * torch.split(self.embeddings[self.task], self.units)[layer])
        return h * _with_positions(_spread(mask, h.shape[1]), h.ndim - 1)


def _spread(mask: Tensor, features: int) -> Tensor:
    """The mask of each channel, repeated over its positions where a linear layer follows a convolution."""
    return mask if len(mask) == features else mask.repeat_interleave(features // len(mask))


def _with_positions(mask: Tensor, dimensions: int) -> Tensor:
    return mask.reshape(*mask.shape, *(1,) * (dimensions - mask.ndim))


def _weight_layers(backbone: nn.Module) -> list[WeightLayer]:
    """Layers whose units get a gate. Raises a ValueError for anything but a plain chain."""
    layers: list[WeightLayer] = []
    for module in _chain(backbone):
        if isinstance(module, WeightLayer):
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                raise ValueError("hat cannot gate a grouped convolution; use a network whose Conv2d have groups=1")
            if any(module.weight is other.weight for other in layers):
                raise ValueError("hat cannot gate a layer or a weight that is used twice; give each place its own")
            layers.append(module)
        elif not isinstance(module, UNIT_WISE):
            raise ValueError(
                f"hat cannot gate a network with a {type(module).__name__}, which does not keep units apart; "
                "use a chain of Linear and Conv2d with activations, dropout and pooling between them"
            )
    if not layers:
        raise ValueError("hat has nothing to gate; use a network with hidden Linear or Conv2d layers")
    return layers


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    # a subclass with its own forward may do anything, such as adding its input
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        raise ValueError(
            f"hat needs a backbone that is an nn.Sequential, got a {type(module).__name__}; use another network"
        )
    for part in module:
        if isinstance(part, nn.Sequential):
            yield from _chain(part)
        else:
            yield part
