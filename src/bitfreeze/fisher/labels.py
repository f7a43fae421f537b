"""Labels for the likelihood: drawn from the model, or those that came with the data."""

from math import prod
from typing import Any

import torch

from ..likelihoods import Likelihood

KINDS = ("sample", "exact", "true")
EXACT_LIMIT = 4096  # backward passes a batch


def draw(likelihood: Likelihood, generator: torch.Generator) -> Any:
    """Labels drawn from the model. A sample's draw depends on its place in the data, not on the batch size."""
    size = _outputs(likelihood.noise_shape)
    noise = torch.rand(likelihood.rows, size, dtype=torch.float64, generator=generator, device=generator.device)
    return likelihood.sample(_shaped(noise, likelihood.noise_shape))


def _outputs(shape: Any) -> int:
    """How many numbers a sample needs."""
    return prod(shape[1:]) if isinstance(shape, torch.Size) else sum(_outputs(part) for part in shape)


def _shaped(noise: torch.Tensor, shape: Any) -> Any:
    if isinstance(shape, torch.Size):
        return noise.reshape(shape)
    parts = torch.split(noise, [_outputs(part) for part in shape], dim=1)
    return tuple(_shaped(part, part_shape) for part, part_shape in zip(parts, shape, strict=True))


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"labels={kind!r} is not known: use 'sample', 'exact' or 'true'")


def require_exact_size(likelihood: Likelihood) -> None:
    if likelihood.support_size > EXACT_LIMIT:
        raise ValueError(
            f"labels='exact' would take {likelihood.support_size} backward passes a batch (at most {EXACT_LIMIT} are "
            "allowed): use labels='sample'"
        )
