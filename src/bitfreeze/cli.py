"""The command line: parse, do, and say in one sentence what went wrong."""

import os
import signal
import sys
import warnings
from typing import Annotated

from .missing import install

try:
    import tyro
except ModuleNotFoundError as missing:
    raise SystemExit(f"the commands need the extra 'lab': {install('lab')}") from missing

from .commands.datasets import Data
from .commands.listing import List
from .commands.looking import Figure, Play, Report, Show, Table, Watch
from .commands.running import Run, Sweep
from .distributed import RankFailed
from .experiments.plugins import load_plugins
from .experiments.store import RunRefused
from .experiments.torchrun import RanksLost
from .training import TrainingDiverged

ERRORS = (OSError, ValueError, RunRefused, TrainingDiverged, RanksLost, RankFailed)

Command = (
    Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Table, tyro.conf.subcommand("table")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Play, tyro.conf.subcommand("play")]
    | Annotated[Figure, tyro.conf.subcommand("figure")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Data, tyro.conf.subcommand("data")]
)


def main() -> None:
    """The entry point of `bitfreeze`. Errors that a user can mend are one sentence, and so is Ctrl-C."""
    try:
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # not where in the code
        _require_each_once(sys.argv[1:])
        command = tyro.cli(Command, prog="bitfreeze", description="Continual learning with BLIP.")
        load_plugins()
        command.do()
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as with `| head`: that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ERRORS as error:
        raise SystemExit(f"bitfreeze: {error}") from None
    except KeyboardInterrupt as stop:
        print(f"\n{str(stop) or 'stopped'}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _require_each_once(words: list[str]) -> None:
    """Of an option given twice the parser would silently keep the last."""
    options = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for option in options:
        if options.count(option) > 1:
            raise ValueError(f"{option} is given more than once: put all that it is to say after one {option}")
