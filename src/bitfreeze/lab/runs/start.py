"""Starting a run: from its settings to its result. A run that was cut off goes on from its last checkpoint."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import torch

from ...model.ranks import current_ranks
from .. import data
from ..devices import find_device, on_device
from ..streams import streams
from .checkpoint import seconds_since
from .config import Config
from .events import Finished
from .folder import Follower, Listener, RunFolder, runs_root
from .freed_memory import keep_freed_memory
from .kinds import kind_of
from .parsing import from_json
from .threads import Threads, number_of, torch_threads
from .torchrun import joined_ranks, on_first_of_node

GetData = Callable[[str], object]  # gets a dataset, by its name


def start(
    config: Config,
    root: Path | str | None,
    listeners: Iterable[Listener],
    checkpoint_seconds: float,
    keep_bits: bool,
    threads: Threads,
    device: str,
    get_data: GetData,
) -> Finished:
    """Get missing data and carry out a run on a device, on every rank that torchrun started.

    An error that ends the run has a note about what is kept of it.
    """
    if not checkpoint_seconds >= 0:
        raise ValueError(f"checkpoint_seconds must be 0 or more, got {checkpoint_seconds}")
    folder, found = RunFolder(runs_root(root) / config.name), find_device(device)
    with torch_threads(number_of(threads, config, folder)), joined_ranks(found) as ranks, on_device(found):
        keep_freed_memory()
        with ranks.together():
            if on_first_of_node():
                get_missing_data(config.stream, get_data)
        try:
            return run(config, root, listeners, checkpoint_seconds, keep_bits)
        except (KeyboardInterrupt, torch.OutOfMemoryError) as stop:
            if ranks.leads:
                stop.add_note(_kept(folder))
            raise
        except OSError as error:
            error.add_note("what was there before has been kept")
            raise


def get_missing_data(stream: str, get_data: GetData) -> None:
    """Get each dataset that a stream needs and that is not there, judged by the names of its files."""
    here = {entry.name for entry in data.status() if entry.state in ("here", "carried")}
    for name in streams[stream].needs:
        if name not in here:
            get_data(name)


def run(
    config: Config,
    root: Path | str | None = None,
    listeners: Iterable[Listener] = (),
    checkpoint_seconds: float = 20.0,
    keep_bits: bool = True,
) -> Finished:
    """Carry out a run, or the rest of it, with the data, threads and ranks that are there; returns its last event.

    A run that is finished is not carried out again. ``listeners`` are called with each event. ``keep_bits``: write what
    the method shows of its state after each task.
    """
    ranks, place = current_ranks(), runs_root(root) / config.name
    folder = RunFolder(place, listeners) if ranks.leads else Follower(place)
    with ExitStack() as stack:
        with ranks.together():
            stack.enter_context(folder.locked())
            finished = folder.result_or_word()
            folder.require_same_config(config, finished is not None)
        told = ranks.gather(None if finished is None else finished.to_json())[0]
        result = None if told is None else from_json(told)
        if isinstance(result, Finished):
            folder.write_lost_files(config)
            return result
        with ranks.together():
            prepared = kind_of(config.stream).run(config, folder, checkpoint_seconds, keep_bits)
            folder.write_config(config)  # only now: nothing is kept of a run that is refused
        return prepared.finish()


def _kept(folder: RunFolder) -> str:
    """Which part of a run is on disk. No more can be saved when it is stopped: a state is whole only between epochs."""
    ago = seconds_since(folder.checkpoints)
    return "nothing was saved yet" if ago is None else f"kept up to the last checkpoint, {ago:.0f} s ago"
