"""What a network's output says about its labels: p(y|x) for classes, yes/no labels, real targets, or several at once.

The Fisher information is the mean over samples of the squared gradient of log p(y|x). For that a likelihood offers

* ``sample(noise)``: labels drawn from the model itself, a pure function of uniform noise of shape ``noise_shape``, so
  that a draw does not depend on how samples are batched;
* ``log_prob(labels)``: log p(y|x) of each sample, summed over the sample's positions and outputs;
* ``unlikely()``: labels against the model's expectation, for trying out rules;
* ``support(k)`` for k < ``support_size``: scores whose squared gradients add up to the expectation over all labels.

The first axis of every tensor is the sample (n); class scores lie on the last (c).
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution, OneHotCategorical


class Likelihood(ABC):
    """p(y|x) for a batch of ``rows`` samples."""

    rows: int
    noise_shape: Any  # a shape, or (for a Product) a tuple of them
    support_size: int

    @abstractmethod
    def sample(self, noise: Any) -> Any:
        """Labels drawn from the model, from uniform noise on [0, 1)."""

    @abstractmethod
    def log_prob(self, labels: Any) -> Tensor:
        """log p(y|x), one number a sample; gradients flow to the network."""

    def require_labels(self, labels: Any) -> None:  # noqa: B027 - most likelihoods take any label
        """Refuse labels that this likelihood cannot have."""

    @abstractmethod
    def unlikely(self) -> Any:
        """Labels that the model does not expect: with them no gradient vanishes, however sure the model is."""

    @abstractmethod
    def support(self, k: int) -> Tensor:
        """The k-th score, one number a sample. Summed over k, its squared gradient is the exact Fisher."""


class Categorical(Likelihood):
    """One class out of C for each sample, ``[n, C]``, or for each of its positions, ``[n, ..., C]``.

    ``mask`` (``[n, ...]``, true where a position counts) keeps padding out of the likelihood. A label below 0 is
    ignored too, as is usual for padded targets.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if logits.ndim < 2 or logits.shape[-1] < 2:
            raise ValueError(
                f"class logits need the shape [n, C] or [n, positions, C] with C >= 2, got {list(logits.shape)}: for "
                "one yes/no logit return Bernoulli(logits), for a real-valued output Gaussian(mean)"
            )
        if mask is not None and mask.shape != logits.shape[:-1]:
            raise ValueError(f"the mask must have the shape {list(logits.shape[:-1])}, got {list(mask.shape)}")
        self.log_p = F.log_softmax(logits, dim=-1)
        self.mask = mask
        self.rows = logits.shape[0]
        self.noise_shape = logits.shape[:-1]
        self.support_size = prod(logits.shape[1:])

    def sample(self, noise: Tensor) -> Tensor:
        """The first class at which the cumulated probability passes the noise."""
        below = self.log_p.detach().double().exp().cumsum(-1)
        # the last entry may be 1 - rounding: scaling the noise by it keeps every draw inside the classes
        return (noise.to(below.device).unsqueeze(-1) * below[..., -1:] >= below).sum(-1).clamp_(max=below.shape[-1] - 1)

    def log_prob(self, labels: Tensor) -> Tensor:
        if labels.shape != self.log_p.shape[:-1]:
            raise ValueError(
                f"labels of shape {list(labels.shape)} do not fit logits of shape {list(self.log_p.shape)}: one class "
                "number is needed for each sample and position"
            )
        counts = labels >= 0
        if self.mask is not None:
            counts = counts & self.mask.bool()
        chosen = self.log_p.gather(-1, labels.clamp(min=0).long().unsqueeze(-1)).squeeze(-1)
        return _sum_per_sample(torch.where(counts, chosen, 0.0))

    def require_labels(self, labels: Tensor) -> None:
        classes = self.log_p.shape[-1]
        if labels.numel() and int(labels.max()) >= classes:
            raise ValueError(f"there is a label {int(labels.max())} but only {classes} classes: labels start at 0")

    def unlikely(self) -> Tensor:
        log_p = self.log_p.detach()
        return log_p.masked_fill(log_p == -torch.inf, torch.inf).argmin(-1)  # not a class that is ruled out

    def support(self, k: int) -> Tensor:
        """sqrt(p) log p of one class at one position: positions are independent, so cross terms vanish."""
        log_p = _column(self.log_p, k)
        log_p = torch.where(log_p == -torch.inf, 0.0, log_p)  # a class that is ruled out has nothing to tell
        weight = (0.5 * _column(self.log_p, k).detach()).exp()
        if self.mask is not None:
            weight = weight * _column(self.mask, k // self.log_p.shape[-1])
        return weight * log_p


class Bernoulli(Likelihood):
    """Independent yes/no labels: one logit a sample, ``[n]``, or several, ``[n, ...]``. ``mask`` as in Categorical."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        _require_matching_mask(logits, mask)
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

    def unlikely(self) -> Tensor:
        return (self.logits.detach() < 0).to(self.logits.dtype)

    def support(self, k: int) -> Tensor:
        """sqrt(p (1 - p)) z: the score of label y is (y - p) dz, whose mean square is p (1 - p) dz^2."""
        z = _column(self.logits, k)
        variance = torch.sigmoid(z.detach()) * torch.sigmoid(-z.detach())  # p (1 - p), which rounds to 0 for a p near 1
        return _masked(variance.sqrt() * z, None if self.mask is None else _column(self.mask, k))


class Gaussian(Likelihood):
    """Real targets around ``mean`` (``[n]`` or ``[n, ...]``) with a standard deviation that may itself be learned."""

    def __init__(self, mean: Tensor, scale: float | Tensor = 1.0, mask: Tensor | None = None) -> None:
        _require_matching_mask(mean, mask)
        self.mean = mean
        self.scale = torch.as_tensor(scale, dtype=mean.dtype, device=mean.device).expand_as(mean)
        self.mask = mask
        self.rows = mean.shape[0]
        self.noise_shape = mean.shape
        self.outputs = prod(mean.shape[1:])
        self.support_size = self.outputs * (2 if self.scale.requires_grad else 1)

    def sample(self, noise: Tensor) -> Tensor:
        # uniform noise can be 0, where the normal quantile is -inf
        normal: Tensor = torch.special.ndtri(noise.to(self.mean.device).clamp(min=2.0**-54))
        return (self.mean.detach() + self.scale.detach() * normal).to(self.mean.dtype)

    def log_prob(self, labels: Tensor) -> Tensor:
        targets = _fitted(labels, self.mean)
        each: Tensor = -0.5 * ((targets - self.mean) / self.scale).square() - self.scale.log()
        return _sum_per_sample(_masked(each, self.mask))

    def unlikely(self) -> Tensor:
        return self.mean.detach() + 2 * self.scale.detach()

    def support(self, k: int) -> Tensor:
        """mu / sigma for each mean, then sqrt(2) log sigma for each deviation: the Fisher of a normal distribution."""
        output = k % self.outputs
        sigma = _column(self.scale, output)
        mask = None if self.mask is None else _column(self.mask, output)
        score = _column(self.mean, output) / sigma.detach() if k < self.outputs else sigma.log() * 2**0.5
        return _masked(score, mask)


class Product(Likelihood):
    """Several independent outputs of one network, each a likelihood: their log-probabilities add."""

    def __init__(self, parts: Sequence[Likelihood]) -> None:
        if len({part.rows for part in parts}) != 1:
            raise ValueError("a Product needs at least one likelihood, and all of them for the same samples")
        self.parts = tuple(parts)
        self.rows = parts[0].rows
        self.noise_shape = tuple(part.noise_shape for part in parts)
        self.support_size = sum(part.support_size for part in parts)

    def sample(self, noise: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(part.sample(u) for part, u in zip(self.parts, noise, strict=True))

    def log_prob(self, labels: Sequence[Any]) -> Tensor:
        if not isinstance(labels, tuple | list) or len(labels) != len(self.parts):
            raise ValueError(f"a Product of {len(self.parts)} likelihoods needs a tuple of as many labels")
        terms = [part.log_prob(y) for part, y in zip(self.parts, labels, strict=True)]
        return torch.stack(terms).sum(0)

    def require_labels(self, labels: Sequence[Any]) -> None:
        for part, y in zip(self.parts, labels, strict=False):
            part.require_labels(y)

    def unlikely(self) -> tuple[Any, ...]:
        return tuple(part.unlikely() for part in self.parts)

    def support(self, k: int) -> Tensor:
        for part in self.parts:
            if k < part.support_size:
                return part.support(k)
            k -= part.support_size
        raise IndexError(k)


def as_likelihood(output: Any) -> Likelihood:
    """What ``forward`` returned, as a likelihood: class logits, an object with ``.logits``, or a likelihood."""
    if isinstance(output, Likelihood):
        return output
    logits = getattr(output, "logits", output)
    other = isinstance(output, Distribution) and not isinstance(output, OneHotCategorical | TorchCategorical)
    if not isinstance(logits, Tensor) or other:
        raise TypeError(
            f"forward returned {type(output).__name__}: return class logits [n, C] or [n, positions, C], an object "
            "with .logits, or one of bitfreeze.likelihoods"
        )
    if logits.ndim not in (2, 3):
        raise ValueError(
            f"forward returned a tensor of shape {list(logits.shape)}: logits need [n, C] or [n, positions, C]; for "
            "any other layout return Categorical(logits) with the classes last"
        )
    return Categorical(logits)


def warn_of_probabilities(output: Any) -> None:
    """A softmax too many leaves a Fisher that looks well and is wrong; no logits are all shares that add up to 1."""
    logits = getattr(output, "logits", output)
    if isinstance(output, Likelihood) or not isinstance(logits, Tensor) or not logits.numel() or (logits < 0).any():
        return
    if bool(((logits.sum(-1) - 1).abs() < 1e-4).all()):
        warnings.warn(
            "forward returned numbers that look like probabilities (none below 0, each row adds up to 1), where class "
            "logits are expected: leave the softmax out of forward",
            stacklevel=2,
        )


def _sum_per_sample(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1) if x.ndim > 1 else x


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask.bool(), x, 0.0)


def _fitted(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels in the shape and type of the outputs: [n] and [n, 1] are the same."""
    if len(labels) != len(outputs) or labels.numel() != outputs.numel():
        raise ValueError(f"labels of shape {list(labels.shape)} do not fit outputs of shape {list(outputs.shape)}")
    return labels.to(outputs.dtype).reshape(outputs.shape)


def _column(x: Tensor, k: int) -> Tensor:
    """The k-th output of each sample."""
    return x.reshape(len(x), -1)[:, k]


def _require_matching_mask(values: Tensor, mask: Tensor | None) -> None:
    if values.ndim < 1:
        raise ValueError("a likelihood needs one row a sample; the tensor given has no sample axis")
    if mask is not None and mask.shape != values.shape:
        raise ValueError(f"the mask must have the shape {list(values.shape)}, got {list(mask.shape)}")
