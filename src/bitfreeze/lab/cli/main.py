"""The command line: parse the words, carry out the command, and print an error as one sentence."""

import os
import signal
import sys
import warnings
from typing import Annotated

from ..._messages import install

try:
    import tyro
except ModuleNotFoundError as missing:
    raise SystemExit(f"the commands need the extra 'lab': {install('lab')}") from missing

from .datasets import Data
from .listing import List
from .results import Figure, Play, Report, Show, Table, Watch
from .training import Run, Sweep

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
        from ..runs.plugins import load_plugins

        load_plugins()
        command.do()
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as with `| head`: that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if not _can_be_mended(error):
            raise
        raise SystemExit(f"bitfreeze: {_with_notes(_sentence(error), error)}") from None
    except KeyboardInterrupt as stop:
        print(f"\n{_with_notes('stopped', stop)}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _can_be_mended(error: Exception) -> bool:
    """Whether the error comes from what the user gave or from the machine, and not from a mistake in this code."""
    from ...model.ranks import RankFailed
    from ..devices import DeviceFull
    from ..runs.errors import RunRefused
    from ..runs.torchrun import RanksLost
    from ..tasks import TrainingDiverged

    mendable = OSError | ValueError | RunRefused | TrainingDiverged | RanksLost | RankFailed | DeviceFull
    return isinstance(error, mendable | MemoryError | OverflowError) or _is_of_the_machine(error)


def _is_of_the_machine(error: Exception) -> bool:
    """Whether torch could not get the memory that was asked for, or a number is too large for it."""
    words = ("can't allocate memory", "out of memory", "overflow", "exceeds the maximum", "Storage size calculation")
    return type(error) is RuntimeError and any(word in str(error) for word in words)


def _sentence(error: Exception) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError) or _is_of_the_machine(error):
        return f"a setting is too large for this machine ({first[:200]})"
    return str(error) or first


def _with_notes(sentence: str, error: BaseException) -> str:
    return "; ".join([sentence, *getattr(error, "__notes__", ())])


def _require_each_once(words: list[str]) -> None:
    """Refuse an option that is given twice, of which the parser would silently keep the last, and numbers like 1_0."""
    for word in words:
        number = word.rpartition("=")[2]
        if number.lstrip("+-").replace("_", "").isdecimal() and (not number.isascii() or "_" in number):
            raise ValueError(f"numbers must be written with the digits 0 to 9 alone, got {number!r}")
    options = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for option in options:
        if options.count(option) > 1:
            raise ValueError(f"{option} is given more than once: put all of its values after one {option}")
