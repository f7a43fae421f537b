"""What is known of the kinds of layers of torch.nn, and of one of Transformers."""

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

CONV1D = "transformers.pytorch_utils.Conv1D"  # of GPT-2: a linear layer whose weight is [inputs, outputs]

_FAN_IN: list[tuple[type[nn.Module], str, Callable[[Any], int]]] = [
    (nn.Linear, "weight", lambda m: m.in_features),
    (nn.Bilinear, "weight", lambda m: m.in1_features * m.in2_features),
    (_ConvNd, "weight", lambda m: m.in_channels // m.groups * prod(m.kernel_size)),
    (nn.MultiheadAttention, "in_proj_weight", lambda m: m.embed_dim),
    (nn.MultiheadAttention, "q_proj_weight", lambda m: m.embed_dim),
    (nn.MultiheadAttention, "k_proj_weight", lambda m: m.kdim),
    (nn.MultiheadAttention, "v_proj_weight", lambda m: m.vdim),
]


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def fan_in(module: nn.Module, attribute: str) -> int | None:
    """Number of inputs that each output of this weight sums over. Its module tells; a shape alone does not."""
    for kind, name, count in _FAN_IN:
        if isinstance(module, kind) and attribute == name:
            return count(module)
    return None


def has_rows(module: nn.Module, attribute: str) -> bool:
    """Whether each row (axis 0) of this parameter belongs to one output or token alone, so that rows can be added."""
    if attribute not in ("weight", "bias"):
        return False
    if isinstance(module, _ConvNd):
        return not module.transposed and module.groups == 1
    return isinstance(module, nn.Linear | nn.Bilinear | nn.Embedding | nn.EmbeddingBag)


def rows(weight: Tensor) -> Tensor:
    """The weights of each unit as one row: a view of [out, in] without gradients."""
    return weight.detach().view(len(weight), -1)
