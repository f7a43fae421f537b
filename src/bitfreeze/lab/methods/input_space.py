"""The space that a layer's inputs span, for methods that project gradients.

A layer computes z = W x + b at each position, where x is what the position sees: a sample, or a patch of a convolution.
The bias is a weight on a constant input 1, so the joined matrix [W b] acts on (x, 1). The inputs of a task are the
columns of the papers' matrix R. A change of [W b] that is orthogonal to R leaves every output of the layer as it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...fisher.factors import find_factors, joined_like, joined_shape
from ..nets import MultiHead

Layer = nn.Linear | nn.Conv2d

MOST_INPUTS = 20_000  # of a layer that are looked at; GPM's code takes at most 20,184, those of 24 samples
ROUNDING = 1e-12  # share of the energy of R below which a direction is rounding, because a basis is kept in float32


class Inputs:
    """The inputs of a layer, R, as far as its left singular vectors and singular values go. All is float64.

    Few inputs are kept as they are. Many are added up to the second moment R R^T: its eigenvectors are the left
    singular vectors of R, and its eigenvalues the squares of the singular values.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.rows = torch.zeros(0, width, dtype=torch.float64, device=device)  # transposed R
        self.moment: Tensor | None = None  # takes the place of the rows once there are too many

    def add(self, rows: Tensor) -> None:
        """Add inputs [n, width]."""
        self.rows = torch.cat([self.rows, rows.double()])
        if self.moment is None and 2 * len(self.rows) > self.width:
            self.moment = self.rows.new_zeros(self.width, self.width)
        if self.moment is not None:
            self.moment.addmm_(self.rows.T, self.rows)
            self.rows = self.rows[:0]

    def energy(self) -> float:
        """|R|^2, the sum of the squared singular values."""
        return (self.rows.square().sum() if self.moment is None else self.moment.trace()).item()

    def energy_along(self, basis: Tensor) -> Tensor:
        """|m^T R|^2 of each column m of ``basis`` [width, k]."""
        m = basis.double()
        if self.moment is None:
            return (self.rows @ m).square().sum(0)
        return (m * (self.moment @ m)).sum(0).clamp_(min=0)

    def beyond(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Left singular vectors [width, n] of R - M M^T R, and the squares of its singular values, largest first."""
        m = basis.double()
        if self.moment is None:
            _, values, vectors = torch.linalg.svd(self.rows - (self.rows @ m) @ m.T, full_matrices=False)
            return vectors.T, values.square()
        left = self.moment - m @ (m.T @ self.moment)
        values, vectors = torch.linalg.eigh(left - (left @ m) @ m.T)
        return vectors.flip(-1), values.flip(-1).clamp_(min=0)


def missing_directions(inputs: Inputs, basis: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The fewest directions that a basis lacks to hold the share ``threshold`` of the energy of the inputs.

    Args:
        inputs: R.
        basis: M [width, k], with orthonormal columns.
        threshold: share of |R|^2, in (0, 1].

    Returns:
        Directions [width, r], orthogonal to the basis, and the singular value of each.
    """
    total = inputs.energy()
    vectors, squares = inputs.beyond(basis)
    held = total - squares.sum()  # the rest of R is in the basis
    count = 0
    if held < threshold * total:
        count = 1 + int((held + squares.cumsum(0) < threshold * total).sum())
    count = min(count, int((squares > ROUNDING * total).sum()), inputs.width - basis.shape[1])
    return vectors[:, :count], squares[:count].sqrt()


def joined_basis(basis: Tensor, new: Tensor) -> Tensor:
    """The columns of both, orthonormal to the rounding of the basis's own data type, however many tasks there were."""
    columns: Tensor = torch.linalg.qr(torch.cat([basis.double(), new], 1)).Q
    return columns.to(basis.dtype)


def empty_basis(layer: Layer) -> Tensor:
    """A basis [width, 0] for the inputs of a layer."""
    return torch.zeros(joined_shape(layer)[-1], 0, **joined_like(layer))


@contextmanager
def watched_inputs(layers: Mapping[str, Layer]) -> Iterator[dict[str, Inputs]]:
    """The inputs that layers get in forward passes inside the context, by name."""
    inputs = {name: Inputs(joined_shape(layer)[-1], layer.weight.device) for name, layer in layers.items()}
    hooks = [layer.register_forward_hook(partial(_add, inputs[name])) for name, layer in layers.items()]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def _add(inputs: Inputs, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
    make, _ = find_factors(layer)
    assert make is not None
    factors = make(layer, args[0], output)  # the output only says which positions there are
    few = -(-MOST_INPUTS // factors.positions)  # samples; there is no order among them
    for rows in factors.slices():
        inputs.add(factors.inputs(slice(min(rows.start, few), min(rows.stop, few))).reshape(-1, inputs.width))


def find_layers(net: MultiHead, method: str) -> tuple[dict[str, Layer], list[nn.Parameter]]:
    """The layers that tasks share, by name, and all shared parameters of no such layer: scales of norms.

    Raises:
        ValueError: a later task could change what earlier ones computed in spite of the projection.
    """
    layers: dict[str, Layer] = {}
    shared = {id(module) for part in net.shared() for module in part.modules()}
    for name, module in ((name, module) for name, module in net.named_modules() if id(module) in shared):
        if isinstance(module, Layer):
            _require_plain(module, name, layers, method)
            layers[name] = module
        elif getattr(module, "running_mean", None) is not None:
            raise ValueError(
                f"{method} needs norms whose statistics no later task changes, got running ones in {name}; "
                "use track_running_stats=False, or the norms of network.kind=resnet18"
            )
    if not layers:
        raise ValueError(f"{method} has nothing to project; use a network with hidden Linear or Conv2d layers")
    projected = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    owned = {id(parameter) for part in net.shared() for parameter in part.parameters()} - projected
    others = {name: parameter for name, parameter in net.named_parameters() if id(parameter) in owned}
    for name, parameter in others.items():
        if parameter.ndim > 1:
            raise ValueError(
                f"{method} projects gradients of Linear and Conv2d layers, and freezes vectors such as scales of norms "
                f"after the first task, got {name} of shape {tuple(parameter.shape)}; use another network"
            )
    return layers, list(others.values())


def _require_plain(layer: Layer, name: str, earlier: Mapping[str, Any], method: str) -> None:
    if type(layer).forward not in (nn.Linear.forward, nn.Conv2d.forward):
        raise ValueError(
            f"{method} must know what a layer computes, got {type(layer).__name__} with its own forward in "
            f"{name}; use nn.Linear or nn.Conv2d"
        )
    if isinstance(layer, nn.Conv2d) and layer.groups > 1:
        raise ValueError(f"{method} cannot project a grouped convolution, got {name}; use groups=1")
    if any(layer.weight is other.weight for other in earlier.values()):
        raise ValueError(f"{method} needs a weight of its own in each layer, got a shared one in {name}")
