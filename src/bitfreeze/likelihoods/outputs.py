"""What ``forward`` returned becomes a likelihood, with a warning where it looks wrong."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution, OneHotCategorical

from .._messages import warn_caller
from .categorical import Categorical
from .likelihood import Likelihood
from .softening import Softened


def as_likelihood(output: Any) -> Likelihood:
    """Likelihood from what ``forward`` returned: class logits, an object with ``.logits``, or a likelihood."""
    if isinstance(output, Likelihood):
        return output
    logits = getattr(output, "logits", output)
    other = isinstance(output, Distribution) and not isinstance(output, OneHotCategorical | TorchCategorical)
    if not isinstance(logits, Tensor) or other:
        raise TypeError(
            "forward must return class logits [n, C] or [n, positions, C], an object with .logits, or one of "
            f"bitfreeze.likelihoods, got {type(output).__name__}"
        )
    if logits.ndim not in (2, 3):
        raise ValueError(
            f"logits must have the shape [n, C] or [n, positions, C], got {list(logits.shape)}; for any other layout "
            "return Categorical(logits) with the classes last"
        )
    return Categorical(logits)


def warn_of_probabilities(output: Any) -> None:
    """Warn if ``forward`` returned probabilities: as logits they give a Fisher that looks right and is wrong."""
    logits = getattr(output, "logits", output)
    if isinstance(output, Likelihood) or not isinstance(logits, Tensor) or not logits.numel() or (logits < 0).any():
        return
    if bool(((logits.sum(-1) - 1).abs() < 1e-4).all()):
        warn_caller(
            "forward must return class logits, got numbers that look like probabilities (none below 0, each row adds "
            "up to 1); leave the softmax out of forward"
        )


def look_at_labels(likelihood: Likelihood, labels: Any) -> None:
    """Warn if the data's labels are no classes, though ``forward`` returned class logits.

    Raises:
        ValueError: the labels fit logits with classes on the second axis, as torch's cross-entropy has them.
    """
    inner = likelihood.inner if isinstance(likelihood, Softened) else likelihood
    if not isinstance(inner, Categorical) or not isinstance(labels, Tensor):
        return
    shape = inner.log_p.shape
    if labels.is_floating_point():
        if _are_real(labels, shape):
            warn_caller(
                f"forward returns class logits {list(shape)}, but the data's labels are real numbers "
                f"{list(labels.shape)}; return bitfreeze.likelihoods.Gaussian(mean) for a regression, "
                "Bernoulli(logits) for several yes/no labels"
            )
    elif len(shape) == 3 and labels.shape != shape[:-1] and labels.shape == shape[::2]:
        raise ValueError(
            f"logits must have the shape [n, positions, C], got {list(shape)} with labels {list(labels.shape)}; put "
            "the classes last, with logits.transpose(1, 2)"
        )


def _are_real(labels: Tensor, shape: torch.Size) -> bool:
    """Whether labels are neither class numbers nor probabilities of classes."""
    if labels.numel() == shape[0]:
        return bool((labels != labels.round()).any())
    return labels.shape == shape and not bool((labels >= 0).all() and ((labels.sum(-1) - 1).abs() < 1e-3).all())
