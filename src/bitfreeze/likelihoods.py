"""Likelihoods p(y|x) of a network's output: classes, yes/no labels, real targets, or several outputs at once.

The Fisher information is the mean over samples of the squared gradient of log p(y|x). To compute it, a likelihood has

* ``sample(noise)``: labels drawn from the model. Uniform noise of shape ``noise_shape`` determines them, so a draw does
  not depend on the batch size;
* ``log_prob(labels)``: log p(y|x) of each sample, summed over the sample's positions and outputs;
* ``unlikely()``: labels that the model does not expect, to check rules with;
* ``support(k)`` for k < ``support_size``: scores whose squared gradients add up to the expectation over all labels.

The first axis of every tensor is the sample (n). Class scores lie on the last axis (c).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution, OneHotCategorical

from ._messages import warn_caller

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "Product"]


class Likelihood(ABC):
    """p(y|x) for a batch of samples: the base of a likelihood of your own.

    Attributes:
        rows: number of samples.
        noise_shape: shape of the noise that ``sample`` takes; for a Product a tuple with the shape of each part.
        support_size: number of scores that ``support`` has.

    Example:
        >>> isinstance(Categorical(torch.zeros(1, 2)), Likelihood)
        True
    """

    rows: int
    noise_shape: Any
    support_size: int

    @abstractmethod
    def sample(self, noise: Any) -> Any:
        """Draw labels from the model.

        Args:
            noise: uniform numbers on [0, 1) of the shape ``noise_shape``.

        Returns:
            Labels, as ``log_prob`` takes them.
        """

    @abstractmethod
    def log_prob(self, labels: Any) -> Tensor:
        """Compute log p(y|x), with gradients to the network.

        Args:
            labels: labels of all samples.

        Returns:
            One number a sample.
        """

    def require_labels(self, labels: Any) -> None:  # noqa: B027 - most likelihoods take any label
        """Refuse labels that this likelihood cannot have.

        Args:
            labels: labels of all samples.

        Raises:
            ValueError: a label is impossible.
        """

    def predictions(self, rows: int) -> int:
        """Number of predicted positions in the first samples. A sample without positions counts as one.

        Args:
            rows: number of samples.

        Returns:
            The number of positions that count.
        """
        return rows

    def correct(self, labels: Any, rows: int) -> tuple[int, int] | None:
        """Count the positions of the first samples where the likeliest class is the label.

        Args:
            labels: labels of all samples.
            rows: number of samples.

        Returns:
            Correct positions and positions that count; None where there are no classes, or labels of another shape.
        """
        return None

    @abstractmethod
    def unlikely(self) -> Any:
        """Labels that the model does not expect: their gradients do not vanish, however sure the model is."""

    @abstractmethod
    def support(self, k: int) -> Tensor:
        """Compute a score whose squared gradient, summed over k, is the exact Fisher.

        Args:
            k: number of the score, below ``support_size``.

        Returns:
            One number a sample.
        """


class Categorical(Likelihood):
    """One class out of C for each sample, or for each position of a sample.

    Labels are class numbers from 0. A label below 0 does not count, as is usual for padded targets.

    Args:
        logits: class scores, ``[n, C]`` or ``[n, ..., C]``, with C >= 2.
        mask: ``[n, ...]``, true where a position counts, false at padding. By default all positions count.

    Raises:
        ValueError: ``logits`` or ``mask`` has another shape.

    Example:
        >>> output = Categorical(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
        >>> output.log_prob(torch.tensor([0, 1]))
        tensor([-0.1269, -0.6931])
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if logits.ndim < 2 or logits.shape[-1] < 2:
            raise ValueError(
                f"class logits must have the shape [n, C] or [n, positions, C] with C >= 2, got {list(logits.shape)}; "
                "for one yes/no logit return Bernoulli(logits), for a real-valued output Gaussian(mean)"
            )
        _require_mask(mask, logits.shape[:-1])
        self.log_p = F.log_softmax(logits, dim=-1)
        self.mask = mask
        self.rows = logits.shape[0]
        self.noise_shape = logits.shape[:-1]
        self.support_size = prod(logits.shape[1:])

    def sample(self, noise: Tensor) -> Tensor:
        """The first class at which the cumulative probability exceeds the noise."""
        below = self.log_p.detach().double().exp().cumsum(-1)
        # Rounding may leave the last entry below 1. The noise is scaled by it, so every draw is a class.
        return (noise.to(below.device).unsqueeze(-1) * below[..., -1:] >= below).sum(-1).clamp_(max=below.shape[-1] - 1)

    def predictions(self, rows: int) -> int:
        return self.log_p[:rows, ..., 0].numel() if self.mask is None else int(self.mask[:rows].sum())

    def correct(self, labels: Any, rows: int) -> tuple[int, int] | None:
        if not isinstance(labels, Tensor) or labels.shape != self.log_p.shape[:-1] or labels.is_floating_point():
            return None
        labels = labels[:rows].to(self.log_p.device)
        counts = labels >= 0 if self.mask is None else (labels >= 0) & self.mask[:rows].bool()
        hits = (self.log_p[:rows].argmax(-1) == labels) & counts
        return int(hits.sum()), int(counts.sum())

    def log_prob(self, labels: Tensor) -> Tensor:
        if labels.shape != self.log_p.shape[:-1]:
            raise ValueError(
                f"labels must have the shape {list(self.log_p.shape[:-1])}, a class number for each sample and "
                f"position, got {list(labels.shape)}"
            )
        counts = labels >= 0
        if self.mask is not None:
            counts = counts & self.mask.bool()
        chosen = self.log_p.gather(-1, labels.clamp(min=0).long().unsqueeze(-1)).squeeze(-1)
        return _sum_per_sample(torch.where(counts, chosen, 0.0))

    def require_labels(self, labels: Tensor) -> None:
        classes = self.log_p.shape[-1]
        if labels.numel() and int(labels.max()) >= classes:
            raise ValueError(f"labels must be class numbers from 0 to {classes - 1}, got {int(labels.max())}")

    def unlikely(self) -> Tensor:
        log_p = self.log_p.detach()
        return log_p.masked_fill(log_p == -torch.inf, torch.inf).argmin(-1)  # a class of probability 0 has no gradient

    def support(self, k: int) -> Tensor:
        """sqrt(p) log p of one class at one position. Positions are independent, so cross terms vanish."""
        log_p = _column(self.log_p, k)
        log_p = torch.where(log_p == -torch.inf, 0.0, log_p)  # a class of probability 0 adds nothing
        weight = (0.5 * _column(self.log_p, k).detach()).exp()
        if self.mask is not None:
            weight = weight * _column(self.mask, k // self.log_p.shape[-1])
        return weight * log_p


class Bernoulli(Likelihood):
    """Independent yes/no labels, one or several for each sample.

    Labels are 0 or 1, in the shape of ``logits``.

    Args:
        logits: ``[n]`` or ``[n, ...]``.
        mask: true where a label counts, in the shape of ``logits``. By default all labels count.

    Raises:
        ValueError: ``logits`` has no sample axis, or ``mask`` has another shape.

    Example:
        >>> output = Bernoulli(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
        >>> output.log_prob(torch.tensor([[1, 0], [1, 1]]))
        tensor([-0.8201, -1.3863])
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        _require_sample_axis(logits)
        _require_mask(mask, logits.shape)
        self.logits = logits
        self.mask = mask
        self.rows = logits.shape[0]
        self.noise_shape = logits.shape
        self.support_size = prod(logits.shape[1:])

    def sample(self, noise: Tensor) -> Tensor:
        p = torch.sigmoid(self.logits.detach().double())
        return (noise.to(p.device) < p).to(self.logits.dtype)

    def log_prob(self, labels: Tensor) -> Tensor:
        targets = _fitted(labels, self.logits)
        each = -F.binary_cross_entropy_with_logits(self.logits, targets, reduction="none")
        return _sum_per_sample(_masked(each, self.mask))

    def require_labels(self, labels: Tensor) -> None:
        counted = _masked(
            _fitted(labels.to(self.logits.device), self.logits), self.mask
        )  # what stands at padding is no label
        wrong = counted[(counted != 0) & (counted != 1)]
        if len(wrong):
            raise ValueError(f"labels must be 0 or 1, got {wrong[0].item():g}; give padding a mask")

    def unlikely(self) -> Tensor:
        return (self.logits.detach() < 0).to(self.logits.dtype)

    def support(self, k: int) -> Tensor:
        """sqrt(p (1 - p)) z: the gradient for label y is (y - p) dz, whose mean square is p (1 - p) dz^2."""
        z = _column(self.logits, k)
        variance = torch.sigmoid(z.detach()) * torch.sigmoid(-z.detach())  # 1 - p would round to 0 for p near 1
        return _masked(variance.sqrt() * z, None if self.mask is None else _column(self.mask, k))


class Gaussian(Likelihood):
    """Independent real targets, normally distributed, one or several for each sample.

    ``log_prob`` leaves out the constant -log(2 pi) / 2 of each target: it has no gradient.

    Args:
        mean: ``[n]`` or ``[n, ...]``.
        scale: the standard deviation, a number or a tensor that expands to the shape of ``mean``. It may be learned.
        mask: true where a target counts, in the shape of ``mean``. By default all targets count.

    Raises:
        ValueError: ``mean`` has no sample axis, or ``mask`` has another shape.

    Example:
        >>> output = Gaussian(torch.tensor([0.0, 1.0]), scale=2.0)
        >>> output.log_prob(torch.tensor([0.0, 3.0]))
        tensor([-0.6931, -1.1931])
    """

    def __init__(self, mean: Tensor, scale: float | Tensor = 1.0, mask: Tensor | None = None) -> None:
        _require_sample_axis(mean)
        _require_mask(mask, mean.shape)
        self.mean = mean
        self.scale = torch.as_tensor(scale, dtype=mean.dtype, device=mean.device).expand_as(mean)
        self.mask = mask
        self.rows = mean.shape[0]
        self.noise_shape = mean.shape
        self.outputs = prod(mean.shape[1:])
        self.support_size = self.outputs * (2 if self.scale.requires_grad else 1)

    def sample(self, noise: Tensor) -> Tensor:
        # The noise can be 0, where the normal quantile is -inf.
        normal: Tensor = torch.special.ndtri(noise.to(self.mean.device).clamp(min=2.0**-54))
        return (self.mean.detach() + self.scale.detach() * normal).to(self.mean.dtype)

    def log_prob(self, labels: Tensor) -> Tensor:
        targets = _fitted(labels, self.mean)
        each: Tensor = -0.5 * ((targets - self.mean) / self.scale).square() - self.scale.log()
        return _sum_per_sample(_masked(each, self.mask))

    def unlikely(self) -> Tensor:
        return self.mean.detach() + 2 * self.scale.detach()

    def support(self, k: int) -> Tensor:
        """mu / sigma for each mean, then sqrt(2) log sigma for each standard deviation that is learned."""
        output = k % self.outputs
        sigma = _column(self.scale, output)
        mask = None if self.mask is None else _column(self.mask, output)
        score = _column(self.mean, output) / sigma.detach() if k < self.outputs else sigma.log() * 2**0.5
        return _masked(score, mask)


class Product(Likelihood):
    """Several independent outputs of one network. Their log-probabilities add.

    Labels are a tuple or list with the labels of each part.

    Args:
        parts: one likelihood for each output, all of the same samples.

    Raises:
        ValueError: there are no parts, or their numbers of samples differ.

    Example:
        >>> output = Product([Bernoulli(torch.zeros(2)), Gaussian(torch.zeros(2))])
        >>> output.log_prob((torch.tensor([1, 0]), torch.tensor([0.0, 1.0])))
        tensor([-0.6931, -1.1931])
    """

    def __init__(self, parts: Sequence[Likelihood]) -> None:
        samples = [part.rows for part in parts]
        if len(set(samples)) != 1:
            raise ValueError(f"parts must be at least one likelihood, all of the same samples, got {samples} samples")
        self.parts = tuple(parts)
        self.rows = parts[0].rows
        self.noise_shape = tuple(part.noise_shape for part in parts)
        self.support_size = sum(part.support_size for part in parts)

    def sample(self, noise: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(part.sample(u) for part, u in zip(self.parts, noise, strict=True))

    def log_prob(self, labels: Sequence[Any]) -> Tensor:
        self._require_a_label_for_each(labels)
        terms = [part.log_prob(y) for part, y in zip(self.parts, labels, strict=True)]
        return torch.stack(terms).sum(0)

    def require_labels(self, labels: Sequence[Any]) -> None:
        self._require_a_label_for_each(labels)
        for part, y in zip(self.parts, labels, strict=True):
            part.require_labels(y)

    def _require_a_label_for_each(self, labels: Sequence[Any]) -> None:
        if not isinstance(labels, tuple | list) or len(labels) != len(self.parts):
            raise ValueError(f"labels must be a tuple or list of {len(self.parts)} items, one for each likelihood")

    def unlikely(self) -> tuple[Any, ...]:
        return tuple(part.unlikely() for part in self.parts)

    def support(self, k: int) -> Tensor:
        for part in self.parts:
            if k < part.support_size:
                return part.support(k)
            k -= part.support_size
        raise IndexError(k)


class _Softened(Likelihood):
    """A likelihood at a higher temperature, with gradients scaled back by it."""

    def __init__(self, inner: Likelihood, temperature: float) -> None:
        self.inner, self.temperature = inner, temperature
        self.rows, self.noise_shape, self.support_size = inner.rows, inner.noise_shape, inner.support_size

    def sample(self, noise: Any) -> Any:
        return self.inner.sample(noise)

    def log_prob(self, labels: Any) -> Tensor:
        return self.temperature * self.inner.log_prob(labels)

    def require_labels(self, labels: Any) -> None:
        self.inner.require_labels(labels)

    def predictions(self, rows: int) -> int:
        return self.inner.predictions(rows)

    def correct(self, labels: Any, rows: int) -> tuple[int, int] | None:
        return self.inner.correct(labels, rows)

    def unlikely(self) -> Any:
        return self.inner.unlikely()

    def support(self, k: int) -> Tensor:
        return self.temperature * self.inner.support(k)


def soften(likelihood: Likelihood, temperature: float) -> Likelihood:
    """The likelihood with logits divided by a temperature. Gradients with respect to the logits keep their scale.

    A network that is sure of its answers has a Fisher of almost 0, however much a larger change of its logits would
    cost. Softened probabilities see that cost. Outputs without logits stay as they are.
    """
    if temperature == 1:
        return likelihood
    if isinstance(likelihood, Product):
        return Product([soften(part, temperature) for part in likelihood.parts])
    if isinstance(likelihood, Categorical):
        return _Softened(Categorical(likelihood.log_p / temperature, likelihood.mask), temperature)
    if isinstance(likelihood, Bernoulli):
        return _Softened(Bernoulli(likelihood.logits / temperature, likelihood.mask), temperature)
    return likelihood


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


def warn_of_real_targets(likelihood: Likelihood, labels: Any) -> None:
    """Warn if the data hold one real number for each sample and ``forward`` returns class logits."""
    inner = likelihood.inner if isinstance(likelihood, _Softened) else likelihood
    if not isinstance(inner, Categorical) or not isinstance(labels, Tensor) or not labels.is_floating_point():
        return
    if labels.numel() == inner.rows and bool((labels != labels.round()).any()):
        warn_caller(
            "forward returns class logits, but the data's labels are real numbers; return "
            "bitfreeze.likelihoods.Gaussian(mean) for a regression"
        )


def _sum_per_sample(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1) if x.ndim > 1 else x


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask.bool(), x, 0.0)


def _fitted(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels in the shape and dtype of the outputs. The shapes [n] and [n, 1] are interchangeable."""
    if len(labels) != len(outputs) or labels.numel() != outputs.numel():
        raise ValueError(f"labels must have the shape {list(outputs.shape)} of the outputs, got {list(labels.shape)}")
    return labels.to(outputs.dtype).reshape(outputs.shape)


def _column(x: Tensor, k: int) -> Tensor:
    """The k-th output of each sample."""
    return x.reshape(len(x), -1)[:, k]


def _require_sample_axis(values: Tensor) -> None:
    if values.ndim < 1:
        raise ValueError("a likelihood must have one row for each sample, got a tensor with no sample axis")


def _require_mask(mask: Tensor | None, shape: torch.Size) -> None:
    if mask is not None and mask.shape != shape:
        raise ValueError(f"the mask must have the shape {list(shape)}, got {list(mask.shape)}")
