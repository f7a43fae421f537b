"""Networks: a backbone that all tasks share, and a head for each task."""

from .actor_critic import ActorCritic
from .bayesian import BayesianConv2d, BayesianLinear, BayesianMultiHead
from .hugging_face import transformers_llama
from .llama import pretrained_llama
from .multihead import MultiHead
from .registry import Network, build_network, networks, register_network

__all__ = [
    "ActorCritic",
    "BayesianConv2d",
    "BayesianLinear",
    "BayesianMultiHead",
    "MultiHead",
    "Network",
    "build_network",
    "networks",
    "pretrained_llama",
    "register_network",
    "transformers_llama",
]
