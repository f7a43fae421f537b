"""Runs on a Ray cluster, each a task. A run whose node is lost goes on at its last checkpoint on another node.

Runs are kept below the driver's folder of runs. A node that sees that folder (on a shared disk) writes to it; any other
sends its files to the driver every few seconds. Each node gets data once, by `bitfreeze run` itself.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..._messages import install
from ..runs.config import Config
from ..runs.durable import write_aside
from ..runs.folder import runs_root
from .engine import Ending, Options, carry_out, ending_of, start

SEND_SECONDS = 5.0
RETRIES = 5  # of a run whose node or worker was lost


class RayCluster:
    """``address`` is that of a running cluster ("auto" finds the one of this machine); without it, one is started here.

    ``options`` are those of a Ray task, such as num_cpus or memory; ``collect``: send files even on a shared disk.
    Where a GPU is asked for, Ray gives each run one.
    """

    def __init__(
        self, address: str = "", workers: int | None = None, options: Options = None, root: Path | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        try:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        except ModuleNotFoundError as missing:
            raise ValueError(f"the engine ray needs the extra 'ray': {install('ray')}") from missing
        self.ray, chosen = ray, dict(options or {})
        collect = chosen.pop("collect", False)
        self.ours = not ray.is_initialized()
        if self.ours:
            cores = {} if address else {"num_cpus": workers or os.cpu_count() or 1}
            ray.init(address or "local", log_to_driver=False, **cores)
        self.root = runs_root(root).resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.sign = self.root / f".driver-{uuid4().hex}"  # nodes that see it see the folder
        if not collect:
            self.sign.touch()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.keeper = ray.remote(Keeper).options(num_cpus=0, scheduling_strategy=here).remote(str(self.root))
        self.device = device
        gpus = {"num_gpus": 1} if device.partition(":")[0] == "cuda" else {}
        self.task = ray.remote(**{"num_cpus": 1, "max_retries": RETRIES, **gpus, **chosen})(run_on_node)

    def submit(self, config: Config) -> Any:
        return self.task.remote(config.command, config.name, str(self.sign), self.keeper, self.device)

    def wait(self, jobs: Iterable[Any], seconds: float) -> list[Any]:
        done: list[Any] = self.ray.wait(list(jobs), num_returns=1, timeout=seconds)[0]
        return done

    def ending(self, job: Any) -> Ending:
        try:
            ending: Ending = self.ray.get(job)
        except self.ray.exceptions.RayError as failure:
            return Ending(f"the run was lost {RETRIES + 1} times: {str(failure).strip().splitlines()[0]}")
        return ending

    def stop(self, jobs: Iterable[Any]) -> None:
        for job in jobs:
            self.ray.cancel(job, force=True)

    def close(self) -> None:
        self.sign.unlink(missing_ok=True)
        if self.ours:
            self.ray.shutdown()


class Keeper:
    """An actor on the driver's machine that keeps the files that other nodes send."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def files(self, name: str) -> dict[str, bytes]:
        return read_files(self.root / name)

    def keep(self, name: str, files: dict[str, bytes], there: list[str]) -> None:
        """Write the files of a run. ``there`` names all that the node has: other checkpoints are removed here too."""
        write_files(self.root / name, files)
        remove_old_checkpoints(self.root / name, there)


def run_on_node(command: str, name: str, sign: str, keeper: Any, device: str) -> Ending:
    """Carry out a run on the node where this is called."""
    if Path(sign).exists():
        return carry_out(command, str(Path(sign).parent), device)
    import ray

    with tempfile.TemporaryDirectory(prefix="bitfreeze-") as folder:
        place = Path(folder) / name
        sent = ray.get(keeper.files.remote(name))
        write_files(place, sent)
        process = start(command, folder, device)
        while True:
            try:
                said = process.communicate(timeout=SEND_SECONDS)
                break
            except subprocess.TimeoutExpired:
                sent = _send(place, name, sent, keeper)
        _send(place, name, sent, keeper)
    return ending_of(process, *said)


def _send(place: Path, name: str, sent: dict[str, bytes], keeper: Any) -> dict[str, bytes]:
    """Send the new files; returns all files. The keeper gets all of them, or none if this node is lost meanwhile."""
    import ray

    files = read_files(place)
    new = {path: data for path, data in files.items() if sent.get(path) != data}
    ray.get(keeper.keep.remote(name, new, list(files)))
    return files


def read_files(place: Path) -> dict[str, bytes]:
    """The files of a run, except those that are being written."""
    paths = [file.relative_to(place) for file in sorted(place.rglob("*")) if file.is_file()]
    shown = [path for path in paths if path.name != "lock" and not any(part.startswith(".") for part in path.parts)]
    try:
        return {path.as_posix(): (place / path).read_bytes() for path in shown}
    except FileNotFoundError:  # an old checkpoint was just taken away: the one that took its place is wanted
        return read_files(place)


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Write files of a run below ``place``, each whole or not at all."""
    for path, data in files.items():
        file = (place / path).resolve()
        if not file.is_relative_to(place.resolve()):
            raise ValueError(f"{path} lies outside the run's folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_aside(file, data)


def remove_old_checkpoints(place: Path, there: Iterable[str]) -> None:
    """Remove the checkpoints that are not ``there``; none if no checkpoint is there, so that the last is never lost."""
    kept = {Path(path).parts[1] for path in there if path.startswith("checkpoint/")}
    for old in (place / "checkpoint").glob("[0-9]*") if kept else ():
        if old.name not in kept:
            shutil.rmtree(old)
