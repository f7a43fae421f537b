"""Networks with a Gaussian for each weight: the Bayesian twin of a plain network, as variational methods train it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..statistics import with_running_statistics
from .multihead import MultiHead

Deviation = Callable[[Tensor], Tensor]  # the standard deviation, from the parameter called "spread"
Gaussian = tuple[nn.Parameter, nn.Parameter]  # mean and spread


@dataclass
class Draw:
    """What the layers of one network share in a forward pass."""

    local: bool = False  # linear layers draw what they give out, rather than weights
    samples: int = 0  # draws of the weights; with 0 the means are the weights
    batch: int = 0  # rows that the network was given
    generator: torch.Generator | None = None


class BayesianLayer(nn.Module):
    """Independent Gaussians N(mean, deviation(spread)^2) in place of the weights and biases of a layer.

    With K samples what comes out has K blocks of rows, one for each draw of the weights, which its rows share. What
    comes in has K blocks too, or is the one batch that the network was given.
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
        """The layer's function, with these weights."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.draw.samples == 0:
            return self.plain(x, self.weight, self.bias)
        blocks = [x] * self.draw.samples if self._is_first(x) else x.chunk(self.draw.samples)
        sigma = self.deviation(self.weight_spread)
        bias_sigma = None if self.bias_spread is None else self.deviation(self.bias_spread)
        # a loop: on one CPU thread it takes a third of the time of stacked weights, which no cache holds
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
        """Local reparameterisation: what comes out is Gaussian with these moments, and each row has a draw of its own.

        The law of a row is as with drawn weights, and so is the expectation of a sum over rows.
        """
        mean = F.linear(x, self.weight, self.bias)
        bias_variance = None if self.bias_spread is None else self.deviation(self.bias_spread).square()
        variance = F.linear(x.square(), self.deviation(self.weight_spread).square(), bias_variance)
        deviation = variance.clamp_min(1e-16).sqrt()  # the root has no derivative at 0
        blocks = self.draw.samples if self._is_first(x) else 1
        return torch.addcmul(mean, deviation, self._noise(torch.Size([blocks, *mean.shape]), mean)).flatten(0, 1)


class BayesianConv2d(BayesianLayer):
    """Draws weights always: positions share them, so that what comes out is not independent from place to place."""

    def __init__(self, layer: nn.Conv2d, spread: float, deviation: Deviation, draw: Draw) -> None:
        if layer.padding_mode != "zeros":
            raise ValueError(
                f"a Bayesian convolution pads with zeros only: padding_mode={layer.padding_mode!r} will not do"
            )
        super().__init__(layer, spread, deviation, draw)
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


TWINS: dict[type[nn.Module], Callable[..., BayesianLayer]] = {nn.Linear: BayesianLinear, nn.Conv2d: BayesianConv2d}


def require_sampling(sampling: str) -> None:
    if sampling not in ("weights", "local"):
        raise ValueError(f"sampling={sampling!r} is not known: use 'weights' or 'local'")


class BayesianMultiHead(MultiHead):
    """The twin of a network: its means are that network's weights under the same names, and every spread is the same.

    ``sampling`` is "weights", or "local" for the local reparameterisation of linear layers, which takes far less time.
    """

    def __init__(self, net: MultiHead, spread: float, deviation: Deviation, sampling: str = "weights") -> None:
        require_sampling(sampling)
        nn.Module.__init__(self)
        self.draw = Draw(local=sampling == "local")
        parts = nn.ModuleDict({"backbone": copy.deepcopy(net.backbone), "heads": copy.deepcopy(net.heads)})
        twins: dict[nn.Module, BayesianLayer] = {}  # a layer that is used twice has one
        for path, module in list(parts.named_modules(remove_duplicate=False)):
            if type(module) in TWINS:
                if module not in twins:
                    twins[module] = TWINS[type(module)](module, spread, deviation, self.draw)
                parts.set_submodule(path, twins[module])
            elif with_running_statistics([module]) or any(True for _ in module.parameters(recurse=False)):
                raise ValueError(
                    f"there is no Bayesian layer for '{path}', which is a {type(module).__name__}: "
                    "use a network whose parameters are those of Linear and Conv2d layers"
                )
        self.backbone, self.heads = parts["backbone"], parts["heads"]  # type: ignore[assignment]

    def forward(self, x: Tensor, task: int, samples: int = 0, generator: torch.Generator | None = None) -> Tensor:
        """Scores [n, class] with the means as weights, or [sample, n, class] for so many draws of the weights."""
        self.draw.samples, self.draw.batch, self.draw.generator = samples, len(x), generator
        scores = super().forward(x, task)
        self.draw.generator = None  # a network that holds one cannot be copied
        return scores.view(samples, len(x), -1) if samples else scores

    def gaussians(self, task: int | None = None) -> dict[str, Gaussian]:
        """Mean and spread by the mean's name: of the backbone and a task's head, or of all."""
        named = dict(self.named_parameters())
        parts = ("backbone.", "heads.") if task is None else ("backbone.", f"heads.{task}.")
        means = [name for name in named if name.startswith(parts) and not name.endswith("_spread")]
        return {name: (named[name], named[f"{name}_spread"]) for name in means}
