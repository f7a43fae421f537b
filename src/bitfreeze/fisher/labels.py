"""Kinds of labels, and labels drawn from the model."""

from math import prod
from typing import Any

import torch

from ..likelihoods import Likelihood
from ..model.ranks import Ranks

KINDS = ("sample", "exact", "true")
EXACT_LIMIT = 4096  # backward passes per batch


def draw(likelihood: Likelihood, generator: torch.Generator, ranks: Ranks) -> Any:
    """Labels drawn from the model.

    A sample's draw depends on its place in the data, not on the batch size or the number of ranks: samples are dealt to
    ranks in turn, and each rank draws for all ranks and takes its own rows.
    """
    rows, size = likelihood.rows * ranks.count, _outputs(likelihood.noise_shape)
    noise = torch.rand(rows, size, dtype=torch.float64, generator=generator, device=generator.device)
    return likelihood.sample(_shaped(noise[ranks.index :: ranks.count], likelihood.noise_shape))


def common_generator(given: torch.Generator | None, ranks: Ranks) -> torch.Generator:
    """The user's generator, or one seeded from torch's random state. Rank 0's state is copied to all ranks."""
    generator = (
        given if given is not None else torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
    )
    if ranks.count > 1:
        generator.set_state(torch.tensor(ranks.gather(generator.get_state().tolist())[0], dtype=torch.uint8))
    return generator


def _outputs(shape: Any) -> int:
    """Number of random numbers that a sample needs."""
    return prod(shape[1:]) if isinstance(shape, torch.Size) else sum(_outputs(part) for part in shape)


def _shaped(noise: torch.Tensor, shape: Any) -> Any:
    if isinstance(shape, torch.Size):
        return noise.reshape(shape)
    parts = torch.split(noise, [_outputs(part) for part in shape], dim=1)
    return tuple(_shaped(part, part_shape) for part, part_shape in zip(parts, shape, strict=True))


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"labels must be 'sample', 'exact' or 'true', got {kind!r}")


def require_exact_size(likelihood: Likelihood) -> None:
    if likelihood.support_size > EXACT_LIMIT:
        raise ValueError(
            f"labels='exact' must take at most {EXACT_LIMIT} backward passes per batch, got {likelihood.support_size}; "
            "use labels='sample'"
        )
