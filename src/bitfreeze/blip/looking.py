"""Passes over the data of a task that ends."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from .. import fisher as fisher_information
from ..fisher import FisherEstimate
from ..fisher.arguments import require_arguments, warn_of_used_up
from ..fisher.estimation import call_model
from ..likelihoods.outputs import as_likelihood, warn_of_probabilities
from ..likelihoods.softening import soften


class Looker:
    """Estimates over the same data, as often as guards ask. ``seconds`` is the time that they took."""

    def __init__(
        self,
        model: nn.Module,
        data: Iterable[Any],
        forward: Callable[[Any], Any] | None,
        *,
        passes: int,
        samples: int | None,
        temperature: float,
        **options: Any,
    ) -> None:
        require_arguments(forward=forward, samples=samples, **options)
        self.model, self.samples, self.options = model, samples, options
        self.forward = forward if temperature == 1 else _softened(forward or call_model(model), temperature)
        self.data = data
        if passes > 1 and isinstance(data, Iterator):
            warn_of_used_up(data)
            self.data = _Remembered(data)
        self.seconds = 0.0

    def __call__(self, samples: int | None = None, **wanted: Any) -> FisherEstimate:
        """One pass over the data, or over the first ``samples`` of them."""
        limits = [limit for limit in (samples, self.samples) if limit is not None]
        found = fisher_information.estimate(
            self.model, self.data, self.forward, samples=min(limits, default=None), **self.options, **wanted
        )
        self.seconds += found.seconds
        return found


def _softened(forward: Callable[[Any], Any], temperature: float) -> Callable[[Any], Any]:
    seen = False

    def soft(x: Any) -> Any:
        nonlocal seen
        output = forward(x)
        if not seen:  # once, and not inside torch.func, which cannot look at values
            warn_of_probabilities(output)
            seen = True
        return soften(as_likelihood(output), temperature)

    return soft


class _Remembered:
    """Batches of an iterator, which can be gone through only once: kept, so that each pass finds them all."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches, self.kept = batches, []  # type: tuple[Iterator[Any], list[Any]]

    def __iter__(self) -> Iterator[Any]:
        yield from self.kept
        for batch in self.batches:
            self.kept.append(batch)
            yield batch
