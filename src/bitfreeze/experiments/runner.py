"""One run, from its settings to its matrix of accuracies or scores; started again, it goes on where it was cut off."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from ..distributed import world
from ..streams import streams
from .config import Config
from .reinforcement import ReinforcementRun
from .run import Run
from .store import Event, Follower, Listener, RunFolder, runs_root
from .supervised import SupervisedRun

RUNS: dict[str, type[Run]] = {"supervised": SupervisedRun, "reinforcement": ReinforcementRun}


def run(
    config: Config,
    root: Path | None = None,
    listeners: Iterable[Listener] = (),
    checkpoint_seconds: float = 20.0,
    keep_bits: bool = True,
) -> Event:
    """Carry out a run, or the rest of it; returns its last event, which holds its result.

    ``listeners`` are told of each event. ``keep_bits``: write what the method shows of its state after each task. A run
    that is finished is not done again.
    """
    ranks, place = world(), (runs_root() if root is None else root) / config.name
    folder = RunFolder(place, listeners) if ranks.leads else Follower(place)
    with ExitStack() as stack:
        with ranks.together():
            stack.enter_context(folder.locked())
            finished = folder.result()
            folder.require_same_config(config, finished is not None)
        finished = ranks.gather(finished)[0]
        if finished is not None:
            folder.write_config(config)  # which may have been lost since
            return finished
        kind = RUNS[streams[config.stream].trainer]
        with ranks.together():
            prepared = kind(config, folder, checkpoint_seconds, keep_bits)  # refuses before anything is kept
            folder.write_config(config)
        return prepared.finish()
