"""Networks by name, so that a preset can name one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .alexnet import alexnet
from .mlp import mlp
from .multihead import MultiHead


@dataclass(frozen=True)
class Network:
    name: str
    description: str
    build: Callable[..., MultiHead]  # (shape, classes, **options)


networks: dict[str, Network] = {}


def register_network(name: str, description: str, build: Callable[..., MultiHead]) -> None:
    networks[name] = Network(name, description, build)


def build_network(settings: Mapping[str, Any], shape: Sequence[int], classes: Sequence[int]) -> MultiHead:
    """The network that ``settings`` describe: its ``kind``, and options of that kind."""
    options = dict(settings)
    kind = options.pop("kind")
    if kind not in networks:
        raise ValueError(f"there is no network {kind!r}: known are {', '.join(sorted(networks))}")
    net = networks[kind].build(shape, classes, **options)
    net.shape = tuple(shape)
    return net


register_network("mlp", "linear layers with ReLU (hidden: their widths)", mlp)
register_network("alexnet", "the AlexNet of HAT (channels, units, dropout, init)", alexnet)
