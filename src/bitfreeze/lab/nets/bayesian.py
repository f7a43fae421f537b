"""The Bayesian twin of a plain network, with a Gaussian for each weight, for variational methods."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...blip.running_statistics import with_running_statistics
from .multihead import MultiHead

Deviation = Callable[[Tensor], Tensor]  # maps the parameter "spread" to a standard deviation
Sampling = Literal["weights", "local"]
Gaussian = tuple[nn.Parameter, nn.Parameter]  # mean and spread


@dataclass
class Draw:
    """Settings of a forward pass that all layers of a network share."""

    local: bool = False  # linear layers draw their outputs instead of their weights
    samples: int = 0  # draws of the weights; 0 takes the means as weights
    batch: int = 0  # rows of the network's input
    generator: torch.Generator | None = None


class BayesianLayer(nn.Module):
    """Independent Gaussians N(mean, deviation(spread)^2) in place of the weights and biases of a layer.

    With K samples the output has K blocks of rows, one for each draw of the weights. The input has K blocks too, or is
    the one batch that the network was given.
    """

    bias: nn.Parameter | None
    bias_spread: nn.Parameter | None

    def __init__(self, layer: nn.Linear | nn.Conv2d, spread: float, deviation: Deviation, draw: Draw) -> None:
        super().__init__()
        self.deviation, self.draw = deviation, draw
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.weight_spread = nn.Parameter(torch.full_like(self.weight, spread))
        bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        self.register_parameter("bias", bias)
        self.register_parameter("bias_spread", None if bias is None else nn.Parameter(torch.full_like(bias, spread)))

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output with these weights."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.draw.samples == 0:
            return self.plain(x, self.weight, self.bias)
        blocks = [x] * self.draw.samples if self._is_first(x) else x.chunk(self.draw.samples)
        sigma = self.deviation(self.weight_spread)
        bias_sigma = None if self.bias_spread is None else self.deviation(self.bias_spread)
        # a loop takes a third of the time of stacked weights on one CPU thread, because no cache holds those
        return torch.cat([self.plain(b, self._drawn(self.weight, sigma), self._drawn_bias(bias_sigma)) for b in blocks])

    def _is_first(self, x: Tensor) -> bool:
        return len(x) == self.draw.batch

    def _drawn(self, mean: Tensor, sigma: Tensor) -> Tensor:
        return torch.addcmul(mean, sigma, self._noise(mean.shape, mean))

    def _drawn_bias(self, sigma: Tensor | None) -> Tensor | None:
        return None if self.bias is None or sigma is None else self._drawn(self.bias, sigma)

    def _noise(self, shape: torch.Size, like: Tensor) -> Tensor:
        return torch.empty(shape, dtype=like.dtype, device=like.device).normal_(generator=self.draw.generator)


class BayesianLinear(BayesianLayer):
    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._locally(x) if self.draw.local and self.draw.samples else super().forward(x)

    def _locally(self, x: Tensor) -> Tensor:
        """Local reparameterisation: the output is drawn from a Gaussian with these moments, for each row on its own.

        A row has the same distribution as with drawn weights, and a sum over rows the same expectation.
        """
        mean = F.linear(x, self.weight, self.bias)
        bias_variance = None if self.bias_spread is None else self.deviation(self.bias_spread).square()
        variance = F.linear(x.square(), self.deviation(self.weight_spread).square(), bias_variance)
        deviation = variance.clamp_min(1e-16).sqrt()  # the root has no derivative at 0
        blocks = self.draw.samples if self._is_first(x) else 1
        return torch.addcmul(mean, deviation, self._noise(torch.Size([blocks, *mean.shape]), mean)).flatten(0, 1)


class BayesianConv2d(BayesianLayer):
    """Always draws weights, because positions share them and outputs at different positions are not independent."""

    def __init__(self, layer: nn.Conv2d, spread: float, deviation: Deviation, draw: Draw) -> None:
        if layer.padding_mode != "zeros":
            raise ValueError(
                f"padding_mode of a Bayesian convolution must be 'zeros', got {layer.padding_mode!r}; "
                "use a network that pads with zeros"
            )
        super().__init__(layer, spread, deviation, draw)
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


TWINS: dict[type[nn.Module], Callable[..., BayesianLayer]] = {nn.Linear: BayesianLinear, nn.Conv2d: BayesianConv2d}


class BayesianMultiHead(MultiHead):
    """The twin of ``net``. Its means are the weights of ``net`` under the same names, and all spreads are equal.

    ``sampling`` is "weights", or "local" for the local reparameterisation of linear layers, which takes far less time.
    """

    def __init__(self, net: MultiHead, spread: float, deviation: Deviation, sampling: Sampling = "weights") -> None:
        nn.Module.__init__(self)
        self.scenario = net.scenario
        self.draw = Draw(local=sampling == "local")
        parts = nn.ModuleDict({"backbone": copy.deepcopy(net.backbone), "heads": copy.deepcopy(net.heads)})
        twins: dict[nn.Module, BayesianLayer] = {}  # a layer that is used twice has one twin
        for path, module in list(parts.named_modules(remove_duplicate=False)):
            if type(module) in TWINS:
                if module not in twins:
                    twins[module] = TWINS[type(module)](module, spread, deviation, self.draw)
                parts.set_submodule(path, twins[module])
            elif with_running_statistics([module]) or any(True for _ in module.parameters(recurse=False)):
                raise ValueError(
                    "layers of a Bayesian network with parameters or statistics must be Linear or Conv2d, got a "
                    f"{type(module).__name__} at '{path}'; use another network"
                )
        self.backbone, self.heads = parts["backbone"], parts["heads"]  # type: ignore[assignment]

    def forward(self, x: Tensor, task: int, samples: int = 0, generator: torch.Generator | None = None) -> Tensor:
        """Scores [n, class] with the means as weights, or [sample, n, class] for ``samples`` draws of the weights."""
        self.draw.samples, self.draw.batch, self.draw.generator = samples, len(x), generator
        scores = super().forward(x, task)
        self.draw.generator = None  # a network that holds a generator cannot be copied
        return scores.view(samples, len(x), -1) if samples else scores

    def gaussians(self, task: int | None = None) -> dict[str, Gaussian]:
        """Mean and spread by the mean's name, of the backbone and a task's heads, or of the whole network."""
        named = dict(self.named_parameters())
        heads = ["heads."] if task is None else [f"heads.{k}." for k in self.heads_of(task)]
        parts = ("backbone.", *heads)
        means = [name for name in named if name.startswith(parts) and not name.endswith("_spread")]
        return {name: (named[name], named[f"{name}_spread"]) for name in means}
