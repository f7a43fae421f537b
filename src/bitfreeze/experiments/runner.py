"""One run, from its settings to its matrix of accuracies or scores; started again, it goes on where it was cut off."""

from collections.abc import Iterable
from pathlib import Path

from ..streams import streams
from .config import Config
from .reinforcement import ReinforcementRun
from .run import Run
from .store import Event, Listener, RunFolder, runs_root
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
    folder = RunFolder((runs_root() if root is None else root) / config.name, listeners)
    with folder.locked():
        finished = folder.result()
        folder.require_same_config(config, finished is not None)
        if finished is not None:
            return finished
        kind = RUNS[streams[config.stream].trainer]
        prepared = kind(
            config, folder, checkpoint_seconds, keep_bits
        )  # refuses what cannot be, before anything is kept
        folder.write_config(config)
        return prepared.finish()
