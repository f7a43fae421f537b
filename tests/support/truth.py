"""The ground truth of these tests, found without the library: autograd in float64, one sample at a time."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze.fisher import estimate

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of a tensor's largest entry


def double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def squares(parameters: dict[str, Tensor], score: Tensor) -> dict[str, Tensor]:
    """The squared gradient of one number; zero where it does not depend on a parameter."""
    gradients = torch.autograd.grad(score, list(parameters.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(p) if g is None else g.to_dense().square()
        for (name, p), g in zip(parameters.items(), gradients, strict=True)
    }


def mean_over(samples: Iterable[Any], of: Callable[[Any], dict[str, Tensor]]) -> dict[str, Tensor]:
    rows = [of(sample) for sample in samples]
    return {name: torch.stack([row[name] for row in rows]).mean(0) for name in rows[0]}


def reference(model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy in float64 and eval mode, and its parameters by name, tied ones once."""
    twin = copy.deepcopy(model).double().eval().requires_grad_(True)
    return twin, dict(twin.named_parameters())


def cross_entropy_score(model: nn.Module, x: Any, y: Tensor) -> Tensor:
    """log p(y|x) of one sample, summed over positions."""
    return -F.cross_entropy(model(x).flatten(0, -2), y.flatten(), reduction="sum")


def empirical_fisher(
    model: nn.Module, x: Tensor, y: Tensor, score: Callable[[nn.Module, Any, Any], Tensor] = cross_entropy_score
) -> dict[str, Tensor]:
    """Mean over samples of the squared gradient of log p of the given labels."""
    twin, parameters = reference(model)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return mean_over(range(len(x)), lambda i: squares(parameters, score(twin, double(x[i : i + 1]), y[i : i + 1])))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def assert_matches(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float | None = None) -> None:
    """Every tensor agrees up to a share of its largest entry, and says something: it is not all zero."""
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        assert found[name].shape == truth.shape
        largest = truth.abs().max()
        assert largest > 0, f"the test is empty: '{name}' has no gradient"
        error = (found[name].double() - truth.double()).abs().max() / largest
        limit = TOLERANCE[found[name].dtype] if tolerance is None else tolerance
        assert error <= limit, f"'{name}' is off by {error:.2e} of its largest entry"


def check_batches(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], without_gradient: Sequence[str] = ()
) -> dict[str, str]:
    """The estimate over batches of (input, class) equals the truth over their samples; returns the report."""
    result = estimate(model, batches, labels="true")
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    expected = empirical_fisher(model, x, y)
    for name in without_gradient:
        assert not result.values.pop(name).any()
        assert not expected.pop(name).any()
    assert_matches(result.values, expected)
    return result.ways


def randomise(model: nn.Module) -> nn.Module:
    """Weights and running statistics that are not those of a fresh layer."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.4)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.3, 3.0)
    return model


class Readout(nn.Module):
    """Class logits from any layer: a fixed random map of the squashed output, so that every position counts."""

    def __init__(self, layer: nn.Module, example: Tensor, classes: int = 3) -> None:
        super().__init__()
        self.layer = layer
        width = self.layer(example).flatten(1).shape[1]
        self.register_buffer("projection", torch.randn(width, classes) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).flatten(1) @ self.projection


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Modes, gradients, hooks, parameters and random states are the same after as before, whatever happens."""

    def state() -> dict[str, Any]:
        return {
            "torch": torch.get_rng_state().tolist(),
            "numpy": str(np.random.get_state()),  # noqa: NPY002 - the global state is the one to be left alone
            "python": random.getstate(),
            "modes": [module.training for module in model.modules()],
            "learns": [p.requires_grad for p in model.parameters()],
            "objects": [id(p) for p in model.parameters()],
            "values": [p.detach().clone().nan_to_num(7.0).tolist() for p in model.parameters()],
            "buffers": [b.clone().tolist() for b in model.buffers()],
            "grads": [p.grad for p in model.parameters()],
            "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
            "attention": torch.backends.mha.get_fastpath_enabled(),
            "grad mode": torch.is_grad_enabled(),
        }

    before = state()
    try:
        yield
    finally:
        after = state()
        assert [key for key in before if before[key] != after[key]] == []
