"""Networks by name, so that a preset can name one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import actor_critic
from .alexnet import alexnet
from .mlp import mlp
from .multihead import MultiHead
from .resnet import resnet18


@dataclass(frozen=True)
class Network:
    name: str
    description: str
    build: Callable[..., MultiHead]  # (shape, classes, **options)
    trainer: str = "supervised"  # what trains it: "supervised" or "reinforcement"


networks: dict[str, Network] = {}


def register_network(name: str, description: str, build: Callable[..., MultiHead], trainer: str = "supervised") -> None:
    networks[name] = Network(name, description, build, trainer)


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
register_network("resnet18", "ResNet-18 of the paper (width; statistics: first or per_task)", resnet18)
for _name, _text in (
    ("paper", "actor-critic of the paper for Atari: convolutions 32, 64, 128, linear 1024"),
    ("nature", "actor-critic for Atari: convolutions 32, 64, 64, linear 512"),
    ("small", "actor-critic for Atari: convolutions 16, 32, 32, linear 256"),
    ("policy_mlp", "actor-critic for vectors: linear layers with tanh (hidden: their widths)"),
):
    register_network(_name, _text, getattr(actor_critic, _name), trainer="reinforcement")
