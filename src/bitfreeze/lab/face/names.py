"""Everything that has a name, and what can be set of it: `registries` and `describe`."""

from typing import TYPE_CHECKING, Any

from .. import data

if TYPE_CHECKING:
    from ..registry import Registry
    from ..runs.description import Description


def registries() -> "dict[str, Registry[Any]]":
    """Everything that has a name.

    Returns:
        Records by name: of `streams`, `methods`, `networks`, `datasets`, `engines` and `figures`.

    Example:
        >>> registries()["streams"]["digits5"].description
        'UCI 8x8 digits in five two-class tasks, carried by the package'
    """
    from ..methods import methods
    from ..nets import networks
    from ..results.figures import figures
    from ..streams import streams
    from ..sweeps import engines

    return {
        "streams": streams, "methods": methods, "networks": networks, "datasets": data.datasets, "engines": engines,
        "figures": figures,
    }  # fmt: skip


def describe(name: str) -> "Description":
    """What can be set of a stream, a method or a network.

    Args:
        name: Name of the stream, method or network.

    Returns:
        Its settings with values and meanings; of a stream also what its preset gives to methods and their variants.

    Raises:
        ValueError: If there is nothing of this name.

    Example:
        >>> [setting.change for setting in describe("mlp").settings][0]
        'network.hidden=[1200]'
    """
    from ..runs.description import describe

    return describe(name)
