"""Networks by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..options import checked, options_of
from ..registry import Registry
from ..scenario import Scenario
from . import actor_critic
from .alexnet import alexnet
from .efficientnet import efficientnet_lite0
from .llama import stories15m
from .mlp import mlp
from .multihead import MultiHead
from .resnet import resnet18


@dataclass(frozen=True)
class Network:
    """A registered network. ``register_network`` explains the fields."""

    description: str
    build: Callable[..., MultiHead]
    trainer: str = "supervised"
    quick: bool = False


networks = Registry[Network]("network")


def register_network(
    name: str,
    description: str,
    build: Callable[..., MultiHead],
    trainer: str = "supervised",
    quick: bool = False,
) -> None:
    """Make a network known to every command and preset.

    Args:
        name: the value of ``network.kind``.
        description: one line for ``bitfreeze list``.
        build: called as ``build(shape, classes, **options)`` with the shape of one input and the number of classes of
            each task. Its parameters with a default are the network's options.
        trainer: the kind of training, ``"supervised"``, ``"language"`` or ``"reinforcement"``, which needs an
            ``ActorCritic``.
        quick: a step takes so little time that threads cost more than they give: ``--threads auto`` takes one.
    """
    networks.register(name, Network(description, build, trainer, quick))


def build_network(
    settings: Mapping[str, Any], shape: Sequence[int], classes: Sequence[int], scenario: Scenario = "task"
) -> MultiHead:
    """The network of kind ``settings["kind"]``. The other settings are its options.

    ``classes`` are those of each task. In the scenario "domain" all tasks have the head of the first.
    """
    options = dict(settings)
    build = networks[options.pop("kind")].build
    heads = classes[:1] if scenario == "domain" else classes
    net = build(shape, heads, **checked("network", options_of(build), options))
    if net.goes_by_task and scenario != "task":
        raise ValueError(
            f"features must be the same for every task with stream.scenario={scenario}, and those of this network "
            "differ; use network.statistics=first"
        )
    net.shape, net.scenario = tuple(shape), scenario
    return net


register_network("mlp", "linear layers with ReLU", mlp, quick=True)
register_network("alexnet", "the AlexNet of HAT", alexnet)
register_network("resnet18", "ResNet-18 of the paper", resnet18)
register_network("efficientnet_lite0", "EfficientNet-Lite0 with weights of ImageNet", efficientnet_lite0)
register_network("stories15m", "stories15M, a Llama with its weights", stories15m, trainer="language")
for _name, _text in (
    ("paper", "actor-critic of the paper for Atari: convolutions 32, 64, 128, linear 1024"),
    ("nature", "actor-critic for Atari: convolutions 32, 64, 64, linear 512"),
    ("small", "actor-critic for Atari: convolutions 16, 32, 32, linear 256"),
    ("policy_mlp", "actor-critic for vectors: linear layers with tanh"),
):
    register_network(_name, _text, getattr(actor_critic, _name), trainer="reinforcement", quick=_name == "policy_mlp")
