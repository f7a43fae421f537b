"""Networks: a backbone that all tasks share, and a head for each task."""

from .multihead import MultiHead
from .registry import Network, build_network, networks, register_network

__all__ = ["MultiHead", "Network", "build_network", "networks", "register_network"]
