"""Labels for the likelihood: drawn from the model, or those that came with the data."""

from typing import Any

import torch

from ..likelihoods import Likelihood

KINDS = ("sample", "exact", "true")
EXACT_LIMIT = 4096  # backward passes a batch


def draw(likelihood: Likelihood, generator: torch.Generator) -> Any:
    """Labels drawn from the model. A sample's draw depends on its place in the data, not on the batch size."""
    return likelihood.sample(_uniform(likelihood.noise_shape, generator))


def _uniform(shape: Any, generator: torch.Generator) -> Any:
    if isinstance(shape, torch.Size):
        return torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
    return tuple(_uniform(part, generator) for part in shape)


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"labels={kind!r} is not known: use 'sample', 'exact' or 'true'")


def require_exact_size(likelihood: Likelihood) -> None:
    if likelihood.support_size > EXACT_LIMIT:
        raise ValueError(
            f"labels='exact' would take {likelihood.support_size} backward passes a batch (at most {EXACT_LIMIT} are "
            "allowed): use labels='sample'"
        )
