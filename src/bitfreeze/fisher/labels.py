"""Labels for the likelihood: drawn from the model, or those that came with the data."""

from typing import Any

import torch
from torch import Tensor

from ..likelihoods import Likelihood

KINDS = ("sample", "exact", "true")
EXACT_LIMIT = 4096  # backward passes a batch


def draw(likelihood: Likelihood, generator: torch.Generator) -> Any:
    """Labels drawn from the model. A sample's draw depends on its place in the data, not on the batch size."""
    return likelihood.sample(_uniform(likelihood.noise_shape, generator, _device(likelihood)))


def _uniform(shape: Any, generator: torch.Generator, device: torch.device) -> Any:
    if isinstance(shape, torch.Size):
        return torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device).to(device)
    return tuple(_uniform(part, generator, device) for part in shape)


def _device(likelihood: Likelihood) -> torch.device:
    """Of the first tensor that the likelihood, or its first part, holds."""
    parts = getattr(likelihood, "parts", None)
    return _device(parts[0]) if parts else next(v.device for v in vars(likelihood).values() if isinstance(v, Tensor))


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"labels={kind!r} is not known: use 'sample', 'exact' or 'true'")


def require_exact_size(likelihood: Likelihood) -> None:
    if likelihood.support_size > EXACT_LIMIT:
        raise ValueError(
            f"labels='exact' would take {likelihood.support_size} backward passes a batch (at most {EXACT_LIMIT} are "
            "allowed): use labels='sample'"
        )
