"""Per-sample gradients of parameters that no rule covers: by torch.func where it works, else one sample at a time.

Both are exact. torch.func needs batches that can be split into samples. Without a split, one sample at a time means
one row of the whole batch's output at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..likelihoods import Likelihood
from ..likelihoods.outputs import as_likelihood
from ..model.parameters import Slot
from .batches import Places, row_places, row_tensors, take_rows
from .memory import row_chunks

Score = Callable[[Likelihood, Any], Tensor]  # likelihood, labels -> one number for each sample


@dataclass
class Work:
    """A batch, and the score whose squared gradients are summed over its first ``rows`` samples."""

    forward: Callable[[Any], Any]
    x: Any
    labels: Any
    score: Score
    rows: int
    places: Places | None  # which tensors of x have a row for each sample; None if x cannot be split


@torch.no_grad()  # torch.func records gradients by itself
def add_by_torch_func(totals: dict[str, Tensor], slots: Sequence[Slot], work: Work) -> None:
    """totals += sum over samples of the squared gradient, by vmap(grad) on chunks of samples."""
    assert work.places is not None
    parameters = {slot.name: slot.parameter.detach() for slot in slots}
    inputs, rebuild_input = row_tensors(work.x, work.places)
    targets, rebuild_labels = row_tensors(work.labels, _all_places(work.labels))

    def one(values: dict[str, Tensor], input_row: list[Tensor], target_row: list[Tensor]) -> Tensor:
        x_1 = rebuild_input([t.unsqueeze(0) for t in input_row])
        y_1 = rebuild_labels([t.unsqueeze(0) for t in target_row])
        with _replaced(slots, values):
            return work.score(as_likelihood(work.forward(x_1)), y_1).sum()

    per_sample = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))
    row_bytes = 2 * sum(value.numel() * value.element_size() for value in parameters.values())
    for chunk in row_chunks(work.rows, row_bytes):
        with sdpa_kernel(SDPBackend.MATH):  # vmap cannot vectorise fused attention
            gradients = per_sample(parameters, [t[chunk] for t in inputs], [t[chunk] for t in targets])
        for slot in slots:
            totals[slot.name] += gradients[slot.name].square().sum(0)


@contextmanager
def _replaced(slots: Sequence[Slot], values: dict[str, Tensor]) -> Iterator[None]:
    """Put other tensors in place of the parameters, inside the context.

    torch.func.functional_call does not restore all of a module that is registered in two places.
    """
    originals = [slot.parameter for slot in slots]

    def put(tensors: Iterable[Tensor]) -> None:
        for slot, tensor in zip(slots, tensors, strict=True):
            for module, attribute in slot.owners:
                module._parameters[attribute] = tensor  # type: ignore[assignment]

    put(values[slot.name] for slot in slots)
    try:
        yield
    finally:
        put(originals)


def add_one_by_one(totals: dict[str, Tensor], slots: Sequence[Slot], work: Work) -> None:
    """totals += sum over samples of the squared gradient, by a backward pass for each sample."""
    parameters = [slot.parameter for slot in slots]
    for number in _single_scores(work):
        for slot, gradient in zip(slots, single_gradients(number, parameters), strict=True):
            if gradient is not None:
                totals[slot.name].addcmul_(gradient, gradient)


def _single_scores(work: Work) -> Iterator[Tensor]:
    """The score of each sample."""
    if work.places is None:
        yield from work.score(as_likelihood(work.forward(work.x)), work.labels)[: work.rows]
        return
    for row in range(work.rows):
        one = slice(row, row + 1)
        likelihood = as_likelihood(work.forward(take_rows(work.x, one, work.places)))
        yield work.score(likelihood, take_rows(work.labels, one, _all_places(work.labels))).sum()


def _all_places(labels: Any) -> Places:
    """Places of labels: every tensor has a row for each sample."""
    return dict.fromkeys(row_places(labels, 0), True)


def single_gradients(score: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Dense gradient of one number with respect to each parameter, None where it does not depend on the parameter."""
    if not parameters or not score.requires_grad:
        return [None] * len(parameters)
    gradients = torch.autograd.grad(score, parameters, retain_graph=True, allow_unused=True)
    return [g.to_dense() if g is not None and g.is_sparse else g for g in gradients]
