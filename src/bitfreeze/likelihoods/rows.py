"""Tensors of outputs, labels and masks, which have one row for each sample."""

import torch
from torch import Tensor


def sum_per_sample(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1) if x.ndim > 1 else x


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask.bool(), x, 0.0)


def fitted(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels in the shape and dtype of the outputs. The shapes [n] and [n, 1] are interchangeable."""
    if len(labels) != len(outputs) or labels.numel() != outputs.numel():
        raise ValueError(f"labels must have the shape {list(outputs.shape)} of the outputs, got {list(labels.shape)}")
    return labels.to(outputs.dtype).reshape(outputs.shape)


def column(x: Tensor, k: int) -> Tensor:
    """The k-th output of each sample."""
    return x.reshape(len(x), -1)[:, k]


def require_sample_axis(values: Tensor) -> None:
    if values.ndim < 1:
        raise ValueError("a likelihood must have one row for each sample, got a tensor with no sample axis")


def require_mask(mask: Tensor | None, shape: torch.Size) -> None:
    if mask is not None and mask.shape != shape:
        raise ValueError(f"the mask must have the shape {list(shape)}, got {list(mask.shape)}")
