"""The laboratory in Python. Each function does what a command does:

| function | command |
| --- | --- |
| `run`, `sweep` | `bitfreeze run`, `bitfreeze sweep` |
| `table`, `read_run`, `play` | `bitfreeze table`, `bitfreeze show`, `bitfreeze play` |
| `figure`, `report`, `serve` | `bitfreeze figure`, `bitfreeze report`, `bitfreeze watch` |
| `registries`, `describe` | `bitfreeze list` |
| `data.status`, `data.get`, `data.verify`, `data.where` | `bitfreeze data list`, `get`, `verify`, `where` |

`make_config` gives the settings of a run, and `metrics` the figures of its matrix of accuracies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data, metrics
    from .face.names import describe, registries
    from .face.results import figure, play, read_run, report, serve, table
    from .face.training import make_config, run, sweep

__all__ = [
    "data", "describe", "figure", "make_config", "metrics", "play", "read_run", "registries", "report", "run", "serve",
    "sweep", "table",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the public names when one of them is asked for: torch, which they need, keeps a command waiting."""
    if name in ("data", "metrics"):
        return import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .face import names, results, training

    home = next(module for module in (names, results, training) if name in vars(module))
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
