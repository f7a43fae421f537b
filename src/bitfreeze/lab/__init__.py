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

from . import data, metrics
from .face.names import describe, registries
from .face.results import figure, play, read_run, report, serve, table
from .face.training import make_config, run, sweep

__all__ = [
    "data", "describe", "figure", "make_config", "metrics", "play", "read_run", "registries", "report", "run", "serve",
    "sweep", "table",
]  # fmt: skip
