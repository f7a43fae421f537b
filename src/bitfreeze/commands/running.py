"""`bitfreeze run` and `bitfreeze sweep`."""

import json
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from ..experiments.checkpoint import seconds_since
from ..experiments.config import Config, make_config, require_known
from ..experiments.engines import Engine, engines
from ..experiments.progress import show_progress, show_sweep
from ..experiments.rows import finished_rows
from ..experiments.runner import run
from ..experiments.store import RunFolder, runs_root
from ..experiments.sweep import Outcome, distinct, grid_changes, parse_seeds, sweep, with_point
from ..experiments.tensorboard import TensorBoard
from ..experiments.torchrun import joined_ranks, on_first_of_node
from ..experiments.values import parse_count, parse_options
from .common import StreamName, print_table
from .datasets import get_missing_data


@dataclass
class Run:
    """Carry out a run; the same command again continues one that was cut off."""

    stream: StreamName
    """Stream of tasks: see `bitfreeze list`."""
    method: str = "blip"
    """Method: see `bitfreeze list`."""
    variant: str = ""
    """Named variant of the stream's preset, such as `released`."""
    seed: int = 0
    """Seed of the training. The scenario's own is stream.seed."""
    set: list[str] = field(default_factory=list)
    """Changes to the preset: training.epochs=40 method.budget=0.2 network.hidden=[100] ..."""
    steps: str = ""
    """For games: steps in each, such as 200k or 10M; short for training.steps."""
    net: str = ""
    """The network; short for network.kind."""
    envs: list[str] | None = None
    """For games: the environments, such as ALE/Pong-v5 or CartPole-v1; short for stream.envs."""
    threads: int = 1
    """Threads. More than one helps large networks only, and two runs side by side use two cores better."""
    checkpoint_seconds: float = 20.0
    """Save at the end of an epoch when this long has passed since the last time."""
    keep_bits: bool = True
    """Keep frozen bits, centres and information gain of each task (8 bytes a parameter and task)."""
    tensorboard: bool = False
    """Write to TensorBoard too, below the run's folder."""

    def do(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint-seconds must be 0 or more, got {self.checkpoint_seconds}")
        torch.set_num_threads(self.threads)
        config = make_config(self.stream, self.method, self.variant, self.seed, [*self.set, *in_full(self)])
        with joined_ranks() as ranks:
            with ranks.together():
                if on_first_of_node():
                    get_missing_data(config)
            if not ranks.leads:
                run(config, None, (), self.checkpoint_seconds, self.keep_bits)
                return
            self._lead(config)

    def _lead(self, config: Config) -> None:
        place = runs_root() / config.name
        finished = RunFolder(place).result() is not None
        with show_progress() as progress:
            listeners = [progress, *([TensorBoard(place / "tensorboard")] if self.tensorboard else [])]
            try:
                run(config, None, listeners, self.checkpoint_seconds, self.keep_bits)
            except KeyboardInterrupt:
                # what was trained since cannot be saved here: a state is whole only between two epochs
                ago = seconds_since(RunFolder(place).checkpoints)
                kept = "nothing was saved yet" if ago is None else f"kept up to the last checkpoint, {ago:.0f} s ago"
                raise KeyboardInterrupt(f"stopped; {kept}; to continue: {config.command}{self._besides()}") from None
            except OSError as error:
                raise OSError(f"{error}; what was there before has been kept") from error
        mine = [row for row in finished_rows(runs_root(), self.stream) if row["command"] == config.command]
        print_table(mine, self.stream)
        kept = f"kept in {place}; beside other runs: bitfreeze table {self.stream}"
        print(f"finished before; {kept}" if finished else kept)

    def _besides(self) -> str:
        """What was given that is no setting of the run."""
        given = {
            f"--threads {self.threads}": self.threads != Run.threads,
            f"--checkpoint-seconds {self.checkpoint_seconds}": self.checkpoint_seconds != Run.checkpoint_seconds,
            "--no-keep-bits": not self.keep_bits,
            "--tensorboard": self.tensorboard,
        }
        return "".join(f" {words}" for words, differs in given.items() if differs)


@dataclass
class Sweep:
    """Carry out many runs, one in each of several processes, and show the table."""

    stream: StreamName
    """Stream of tasks: see `bitfreeze list`."""
    methods: str = "blip,ft"
    """Methods, separated by commas; method:variant for a variant."""
    seeds: str = "0"
    """0-4, or 0,2,5."""
    set: list[str] = field(default_factory=list)
    """Changes to the preset, for all runs."""
    steps: str = ""
    """For games: steps in each, such as 200k or 10M; short for training.steps."""
    net: str = ""
    """The network; short for network.kind."""
    envs: list[str] | None = None
    """For games: the environments; short for stream.envs."""
    grid: list[str] = field(default_factory=list)
    """Values to go through: method.budget=0.03,0.1,0.3, or method.prior=20x,1x,0.1x for multiples of the preset's."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes at a time on this machine, each with one thread."""
    engine: str = "local"
    """Where: local, ray (a cluster) or slurm (through submitit)."""
    address: str = ""
    """Of the Ray cluster, such as auto or 10.0.0.1:6379; of slurm, `local` to try it out. Empty: start Ray here."""
    engine_options: list[str] = field(default_factory=list)
    """Of each Ray task or SLURM job: num_cpus=1 memory=2e9, or timeout_min=600 slurm_partition=cpu ..."""

    def do(self) -> None:
        pairs, changes = [name.partition(":") for name in self.methods.split(",")], [*self.set, *in_full(self)]
        configs = distinct(
            make_config(self.stream, method, variant, seed, with_point(changes, point))
            for seed in parse_seeds(self.seeds)
            for method, _, variant in pairs
            for point in grid_changes(self.grid, make_config(self.stream, method, variant, changes=changes))
        )
        require_known("engine", self.engine, engines)
        engine = engines[self.engine](self.address, self.workers, parse_options(self.engine_options))
        get_missing_data(configs[0])
        outcomes = self._carry_out(configs, engine)
        failed = [outcome for outcome in outcomes if outcome.error]
        commands = {config.command for config in configs}
        mine = [row for row in finished_rows(runs_root(), self.stream) if row["command"] in commands]
        if mine:
            print_table(mine, self.stream)
        print(f"runs are kept in {runs_root() / self.stream}")
        if failed:
            raise ValueError(f"{len(failed)} of {len(outcomes)} runs failed, first: {failed[0].error}")

    def _carry_out(self, configs: list[Config], engine: Engine[Any]) -> list[Outcome]:
        with show_sweep(len(configs)) as display:
            try:
                return sweep(configs, engine, display)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    "stopped; the same command goes on from the last checkpoint of each run"
                ) from None


def in_full(given: Run | Sweep) -> list[str]:
    """What the short options say, as changes."""
    changes = {
        "training.steps": given.steps and str(parse_count(given.steps)),
        "network.kind": given.net,
        "stream.envs": "" if given.envs is None else json.dumps(given.envs, separators=(",", ":")),
    }
    return [f"{name}={value}" for name, value in changes.items() if value]
