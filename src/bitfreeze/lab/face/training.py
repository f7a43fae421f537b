"""Carrying out runs: `make_config`, `run` and `sweep`."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .. import data
from .places import Root, several

if TYPE_CHECKING:
    from ..runs.config import Config
    from ..runs.events import Finished
    from ..runs.folder import Listener
    from ..sweeps.sweep import Display, Outcome


def make_config(
    stream: str, method: str = "blip", variant: str = "", seed: int = 0, changes: Iterable[str] = ()
) -> "Config":
    """The settings of a run: the preset of its stream, and changes to it.

    Args:
        stream: Name of the stream of tasks.
        method: Name of the method.
        variant: Named variant of the method in the stream's preset, such as `released`; empty for none.
        seed: Seed of the training. The seed of the tasks is the setting stream.seed.
        changes: Changes to the preset, each written `part.name=value`.

    Returns:
        All settings, with the name of the run's folder and the command that starts it.

    Raises:
        ValueError: If a name is unknown, or a setting has a value that it cannot have.

    Example:
        >>> config = make_config("digits5", "ewc", seed=3, changes=["training.epochs=1"])
        >>> config.command
        'bitfreeze run digits5 --method ewc --seed 3 --set training.epochs=1'
    """
    from ..runs.config import make_config

    return make_config(stream, method, variant, seed, changes)


def run(
    stream: "str | Config",
    method: str = "blip",
    variant: str = "",
    seed: int = 0,
    changes: Iterable[str] = (),
    *,
    threads: int | Literal["auto"] = 1,
    checkpoint_seconds: float = 20.0,
    keep_bits: bool = True,
    tensorboard: bool = False,
    listeners: "Iterable[Listener]" = (),
    get_data: Callable[[str], object] = data.get,
    root: Root = None,
) -> "Finished":
    """Carry out a run, or the rest of one that was cut off. A finished run is not carried out again.

    Missing data are got first. A script that torchrun starts shares the run between its ranks.

    Args:
        stream: Name of the stream of tasks, or all settings from `make_config`; then the next four are left out.
        method: Name of the method.
        variant: Named variant of the method in the stream's preset; empty for none.
        seed: Seed of the training.
        changes: Changes to the preset, each written `part.name=value`.
        threads: Threads of torch during the run. Other numbers of threads give other last bits. `auto` takes one for
            each idle core where the network is large, and those that a run had where it goes on.
        checkpoint_seconds: Seconds between two checkpoints; the next is written at the end of an epoch.
        keep_bits: Whether frozen bits, centres and information gain are kept after each task.
        tensorboard: Whether events are written to TensorBoard too, below the run's folder.
        listeners: Each is called with every event of the run.
        get_data: Called with the name of each dataset that is missing.
        root: Folder of runs.

    Returns:
        The last event of the run, which holds its result: `acc`, `bwt` and so on.

    Raises:
        ValueError: If the settings make no sense.
        OSError: If data cannot be got, or the run cannot be written.
        RunRefused: If another process works on the run, or it was begun with other settings.
        TrainingDiverged: If the loss is no longer finite.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     result = run("digits5", "ft", changes=["training.epochs=1"], root=root)
        >>> 50 < result.acc < 100
        True
    """
    from ..runs.config import Config
    from ..runs.folder import runs_root
    from ..runs.start import start
    from ..runs.tensorboard import TensorBoard

    if not isinstance(stream, Config):
        config = make_config(stream, method, variant, seed, changes)
    elif (method, variant, seed, *changes) == ("blip", "", 0):
        config = stream
    else:
        raise ValueError("run must get a Config alone, or a stream with method, variant, seed and changes; got both")
    written = [TensorBoard(runs_root(root) / config.name / "tensorboard")] if tensorboard else []
    return start(config, root, [*listeners, *written], checkpoint_seconds, keep_bits, threads, get_data)


def sweep(
    stream: str,
    methods: str | Iterable[str] = ("blip", "ft"),
    seeds: Iterable[int] = (0,),
    changes: Iterable[str] = (),
    grid: Iterable[str] = (),
    *,
    workers: int | None = None,
    engine: str = "local",
    address: str = "",
    engine_options: Mapping[str, Any] | None = None,
    display: "Display | None" = None,
    get_data: Callable[[str], object] = data.get,
    root: Root = None,
) -> "list[Outcome]":
    """Carry out many runs, each in a process of its own with one thread. A run that fails does not stop the others.

    Methods and streams of your own must be in a file that BITFREEZE_PLUGINS names, because other processes need them.

    Args:
        stream: Name of the stream of tasks.
        methods: Names of methods; `method:variant` for a variant.
        seeds: Seeds of the training.
        changes: Changes to the preset, for all runs.
        grid: Values to go through, in all combinations: `method.budget=0.03,0.1`, or `method.prior=2x,1x` for multiples
            of the preset's value.
        workers: Runs at a time on this machine; None for one on each core.
        engine: Where runs are carried out: `local`, `ray` or `slurm`.
        address: Address of the Ray cluster, or `local` to try out slurm on this machine.
        engine_options: Options of each Ray task or SLURM job.
        display: Shows how the sweep goes; None shows nothing.
        get_data: Called with the name of each dataset that is missing.
        root: Folder of runs.

    Returns:
        The outcome of each run in the order they ended: its settings, its error (empty if it finished), its warnings.

    Raises:
        ValueError: If a name is unknown, the settings of a run make no sense, or the engine is not installed.
        OSError: If data cannot be got.

    Example:
        ```python
        outcomes = lab.sweep("digits5", ["blip", "ewc"], seeds=range(5))
        print(lab.table("digits5"))
        ```
    """
    from ..runs.folder import runs_root
    from ..runs.start import get_missing_data
    from ..sweeps import engines
    from ..sweeps.sweep import Display, plan
    from ..sweeps.sweep import sweep as carry_out

    configs = plan(stream, several(methods), seeds, changes, grid)
    made = engines[engine](
        address, os.cpu_count() or 1 if workers is None else workers, engine_options or {}, runs_root(root)
    )
    get_missing_data(stream, get_data)
    return carry_out(configs, made, display or Display())
