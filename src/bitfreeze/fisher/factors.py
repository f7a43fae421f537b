"""Factors of a layer's gradient, for statistics of whole layers.

The layers here compute z = W x + b at each position, where x is the part of the input that the position sees. The
joined matrix [W b] has one more column than W, on a constant input 1. The gradient of sample n of this matrix is a sum
of products over positions:

    G_ngoi = sum_l delta_nglo x_ngli

``x`` and ``delta`` are the factors. Index letters: see registry.py. Axes that a layer does not have are of size 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..model.layers import CONV1D, full_name
from ..model.shards import layout_of
from .memory import row_chunks
from .patches import pad_input, patch_view
from .registry import CONVOLUTIONS, Kind, add_kind, why_not_as

CACHE = 4 * 2**20  # bytes of factors and per-sample gradients that stay in the processor's cache


@dataclass(frozen=True)
class Factors:
    """The factors of a batch. Inputs are laid out for a few samples at a time.

    Attributes:
        inputs: returns x [n, g, l, i] of a slice of samples. The last column is 1 if the layer has a bias.
        deltas: delta [n, g, l, o] of all samples.
        inputs_width: size of the axis i.
        score: number of the score whose gradient ``deltas`` is. There are several with ``labels="exact"``.
        last: whether this is the last score of these samples. Statistics of the inputs alone count this one only.
        numbers: number of each sample among the samples of all ranks.
        reached: which positions [n, g, l] the gradient of any score has reached. Default: those of ``deltas``.
        inputs_at: returns x [n, g, p, i] of a slice of samples at some positions [n, p] of each. Default: those of
            ``inputs``. A function of its own need not lay out the others.
    """

    inputs: Callable[[slice], Tensor]
    deltas: Tensor
    inputs_width: int
    score: int = 0
    last: bool = True
    numbers: range | None = None
    reached: Tensor | None = None
    inputs_at: Callable[[slice, Tensor], Tensor] | None = None

    @property
    def rows(self) -> int:
        """Number of samples."""
        return self.deltas.shape[0]

    @property
    def groups(self) -> int:
        return self.deltas.shape[1]

    @property
    def positions(self) -> int:
        return self.deltas.shape[2]

    @property
    def outputs_width(self) -> int:
        """Size of the axis o."""
        return self.deltas.shape[3]

    def slices(self, floats: int = 0, ceiling: int = CACHE) -> Iterator[slice]:
        """Slices of samples whose factors, with ``floats`` more numbers a sample, stay within the memory limit."""
        each = self.groups * self.positions * (self.inputs_width + self.outputs_width) + floats
        return row_chunks(self.rows, each * self.deltas.element_size(), ceiling)

    def chunks(self, floats: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, delta) of each slice of samples."""
        for rows in self.slices(floats):
            yield self.inputs(rows), self.deltas[rows]

    def some_inputs(self, rows: slice, places: Tensor) -> Tensor:
        """x [n, g, p, i] of a slice of samples at some positions [n, p] of each."""
        return _at(self.inputs(rows), places) if self.inputs_at is None else self.inputs_at(rows, places)

    def some_deltas(self, rows: slice, places: Tensor) -> Tensor:
        """The same for delta."""
        return _at(self.deltas[rows], places)

    def reached_by(self, rows: slice) -> Tensor:
        """Which positions [n, g, l] of these samples a gradient has reached. It does not reach masked tokens."""
        return (self.deltas[rows] != 0).any(-1) if self.reached is None else self.reached[rows]


def _at(values: Tensor, places: Tensor) -> Tensor:
    return values[_samples(places), :, places].transpose(1, 2)


def _samples(places: Tensor) -> Tensor:
    """The number of the sample of each of the positions [n, p], as an index."""
    return torch.arange(len(places), device=places.device).unsqueeze(1)


MakeFactors = Callable[[Any, Tensor, Tensor], Factors]


@dataclass(frozen=True)
class _Maker:
    make: MakeFactors
    weight: str
    bias: str
    groups: str
    inputs_first: bool


_makers: dict[Kind, _Maker] = {}


def register_factors(
    *layers: Kind, weight: str = "weight", bias: str = "bias", groups: str = "groups", inputs_first: bool = False
) -> Callable[[MakeFactors], MakeFactors]:
    """Decorator that registers the factors of these kinds of layer, which its statistics are computed from.

    Subclasses that keep ``forward`` use them too. Every estimate checks them on a few samples. Where they disagree with
    autograd, the layer gets no statistics.

    Args:
        layers: classes of modules, or their full names.
        weight: name of the parameter W, [g * o, ...]. Entries of ``weight[o].flatten()`` are in the order of x.
        bias: name of the parameter b, [g * o]. Layers may have none.
        groups: name of the attribute that has the number of groups. Layers without it have one.
        inputs_first: whether W is kept as [i, o], of layers without groups.

    Returns:
        A decorator that returns the function as it is. The function is called as ``factors(layer, a, delta)`` and
        returns ``Factors``. ``a`` is the layer's input, ``delta`` the gradient of the summed log-likelihood with
        respect to the layer's output; the first axis of both is the sample.

    Example:
        >>> import torch
        >>> from bitfreeze.fisher import estimate, register_factors
        >>> from bitfreeze.fisher.factors import Factors
        >>> from bitfreeze.fisher.statistics import MeanInputs
        >>> class Tenfold(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(3, 2))
        ...     def forward(self, x):
        ...         return 10 * x @ self.weight.T
        >>> @register_factors(Tenfold)
        ... def tenfold_factors(layer, a, delta):
        ...     return Factors(lambda rows: 10 * a[rows, None, None], delta[:, None, None], 2)
        >>> layer = Tenfold()
        >>> mean = MeanInputs(layer)
        >>> _ = estimate(layer, [torch.ones(4, 2)], statistics={layer: [mean]})
        >>> mean.mean()
        tensor([[10., 10.]])
    """

    def register(make: MakeFactors) -> MakeFactors:
        for layer in layers:
            _makers[layer] = _Maker(make, weight, bias, groups, inputs_first)
            add_kind(layer)
        return make

    return register


def find_factors(layer: nn.Module) -> tuple[MakeFactors | None, str]:
    """The function that makes a layer's factors, or None and the reason."""
    for kind in type(layer).__mro__:
        if maker := _made_by(kind):
            reason = why_not_as(layer, kind, "factors")
            return (None if reason else maker.make), reason
    return None, f"no factors for {type(layer).__name__}"


def _made_by(kind: type) -> _Maker | None:
    return _makers.get(kind) or _makers.get(full_name(kind))


def _maker_of(layer: nn.Module) -> _Maker:
    found = next((maker for kind in type(layer).__mro__ if (maker := _made_by(kind))), None)
    if found is None:
        raise TypeError(f"layer must have factors, got a {type(layer).__name__}; use bitfreeze.fisher.register_factors")
    return found


@register_factors(CONV1D, inputs_first=True)
@register_factors(nn.Linear)
def linear_factors(layer: Any, a: Tensor, delta: Tensor) -> Factors:
    a, delta = a.unsqueeze(1).flatten(1, -2), delta.unsqueeze(1).flatten(1, -2)
    has_bias = layer.bias is not None

    def inputs(rows: slice) -> Tensor:
        x = a[rows]
        return (torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1) if has_bias else x).unsqueeze(1)

    return Factors(inputs, delta.unsqueeze(1), a.shape[-1] + has_bias)


@register_factors(*CONVOLUTIONS)
def conv_factors(layer: Any, a: Tensor, delta: Tensor) -> Factors:
    groups, kernel, positions = layer.groups, layer.kernel_size, delta.shape[2:]
    channels, axes, has_bias = layer.in_channels // groups, len(kernel), layer.bias is not None
    width = channels * prod(kernel)

    def inputs(rows: slice) -> Tensor:
        """Patches, copied once into [g, i, n, l]: there both all positions and those of one sample form matrices."""
        padded = pad_input(layer, a[rows])
        x = a.new_empty(groups, width + has_bias, len(padded), prod(positions))
        x[:, width:] = 1
        view = patch_view(padded, kernel, layer.stride, layer.dilation, positions).movedim(0, 1 + axes)
        x[:, :width].view(groups, channels, *view.shape[1:]).copy_(view.view(groups, channels, *view.shape[1:]))
        return x.permute(2, 0, 3, 1)

    def inputs_at(rows: slice, places: Tensor) -> Tensor:
        view = patch_view(pad_input(layer, a[rows]), kernel, layer.stride, layer.dilation, positions)
        index: list[Any] = [_samples(places), *[slice(None)] * (1 + axes), *torch.unravel_index(places, positions)]
        x = view[tuple(index)].reshape(*places.shape, groups, width)  # from [n, p, channel, *kernel]
        return (torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1) if has_bias else x).transpose(1, 2)

    deltas = delta.reshape(len(delta), groups, layer.out_channels // groups, -1).mT
    return Factors(inputs, deltas, width + has_bias, inputs_at=inputs_at)


def joined_parameters(layer: nn.Module) -> list[str]:
    """Names of what forms the layer's joined matrix: the weight, and the bias if it has one."""
    kind = _maker_of(layer)
    return [name for name in (kind.weight, kind.bias) if getattr(layer, name, None) is not None]


def joined_shape(layer: nn.Module) -> tuple[int, int, int]:
    """Shape [g, o, i] of the layer's joined matrix."""
    kind = _maker_of(layer)
    shape, groups = getattr(layer, kind.weight).shape, getattr(layer, kind.groups, 1)
    shape = shape[::-1] if kind.inputs_first else shape
    has_bias = kind.bias in joined_parameters(layer)
    return groups, shape[0] // groups, shape[1:].numel() + has_bias


def joined_like(layer: nn.Module) -> dict[str, Any]:
    """Data type and device of the joined matrix, as options of torch.zeros."""
    weight = getattr(layer, _maker_of(layer).weight)
    return {"dtype": weight.dtype, "device": weight.device}


def joined(layer: nn.Module) -> Tensor:
    """Copy of the joined matrix [W b] of each group, [g, o, i]. For a sharded layer all ranks call this together."""
    groups, outputs, _ = joined_shape(layer)
    parts = []
    for name in joined_parameters(layer):
        parameter = layer.get_parameter(name)
        layout = layout_of(parameter)
        whole = layout.full(layout.local(parameter.detach()))
        parts.append(_outputs_first(layer, whole).reshape(groups, outputs, -1))
    return torch.cat(parts, -1)


def has_inputs_first(layer: nn.Module) -> bool:
    """Whether the layer keeps its weight as [i, o]."""
    return _maker_of(layer).inputs_first


def _outputs_first(layer: nn.Module, tensor: Tensor) -> Tensor:
    """A tensor like one of the layer's parameters, as [o, i]; or the way back."""
    return tensor.mT if tensor.ndim == 2 and has_inputs_first(layer) else tensor


def split_joined(layer: nn.Module, values: Tensor) -> dict[str, Tensor]:
    """Entries of a matrix like the joined one, by parameter name and in the parameter's shape."""
    shapes = {name: _outputs_first(layer, layer.get_parameter(name)).shape for name in joined_parameters(layer)}
    parts = torch.split(values, [shape[1:].numel() for shape in shapes.values()], -1)
    return {
        name: _outputs_first(layer, part.reshape(shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


@torch.no_grad()
def write_joined_(layer: nn.Module, values: Tensor) -> None:
    """Write a joined matrix [W b], [g, o, i], into the layer's parameters. Sends nothing if the layer is sharded."""
    for name, value in split_joined(layer, values).items():
        parameter = layer.get_parameter(name)
        layout = layout_of(parameter)
        layout.local(parameter).copy_(layout.part(value))
