"""`bitfreeze run` and `bitfreeze sweep`."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from ... import lab
from .arguments import Changes, StreamName, Text
from .datasets import get_shown
from .results import print_table

MOST_SEEDS = 10_000


@dataclass
class Settings:
    """Options that a run and a sweep share."""

    stream: StreamName
    """Stream of tasks: see `bitfreeze list`."""
    set: Changes = field(default_factory=list)
    """Changes to the preset: training.epochs=40 method.tolerance=0.05 network.hidden=[100] ..."""
    steps: Text = ""
    """For games: steps in each, such as 200k or 10M; short for training.steps."""
    net: Text = ""
    """The network; short for network.kind."""
    envs: Annotated[
        list[str] | None, tyro.conf.arg(metavar="ENV ...", help_behavior_hint="(default: the preset's)")
    ] = None
    """For games: the environments, such as ALE/Pong-v5 or CartPole-v1; short for stream.envs."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, xla or another of torch. A sweep takes all GPUs unless one is named."""

    def changes(self) -> list[str]:
        """All changes to the preset, short options in full."""
        from ..runs.values import parse_count

        short = {
            "training.steps": self.steps and str(parse_count(self.steps)),
            "network.kind": self.net,
            "stream.envs": "" if self.envs is None else json.dumps(self.envs, separators=(",", ":")),
        }
        return [*self.set, *(f"{name}={value}" for name, value in short.items() if value)]


@dataclass
class Run(Settings):
    """Carry out a run; the same command again continues one that was cut off."""

    method: str = "blip"
    """Method: see `bitfreeze list`."""
    variant: Text = ""
    """Named variant of the stream's preset, such as `released`."""
    seed: int = 0
    """Seed of the training. The scenario's own is stream.seed."""
    threads: Annotated[int | Literal["auto"], tyro.conf.arg(metavar="INT|auto")] = 1
    """Threads, or auto: one for each idle core where the network is large. More than one helps large networks only."""
    checkpoint_seconds: float = 20.0
    """Save at the end of an epoch when this long has passed since the last time."""
    keep_bits: bool = True
    """Keep frozen bits, centres and information gain of each task (8 bytes a parameter and task)."""
    tensorboard: bool = False
    """Write to TensorBoard too, below the run's folder."""

    def do(self) -> None:
        from ..devices import find_device
        from ..runs.events import Event
        from ..runs.folder import runs_root
        from ..runs.torchrun import joined_ranks
        from .run_display import show_run

        config = lab.make_config(self.stream, self.method, self.variant, self.seed, self.changes())
        events: list[Event] = []
        with joined_ranks(find_device(self.device)) as ranks, show_run() as display:
            try:
                lab.run(
                    config, threads=self.threads, device=self.device, checkpoint_seconds=self.checkpoint_seconds,
                    keep_bits=self.keep_bits, tensorboard=self.tensorboard, listeners=[display, events.append],
                    get_data=get_shown,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                if ranks.leads:
                    stop.add_note(f"to continue: {config.command}{self._besides()}")
                raise
        if ranks.leads:
            print_table(lab.table(self.stream, configs=[config]))
            kept = f"kept in {runs_root() / config.name}; beside other runs: bitfreeze table {self.stream}"
            print(kept if events else f"finished before; {kept}")

    def _besides(self) -> str:
        """The given options that are no settings of the run."""
        given = {
            f"--threads {self.threads}": self.threads != Run.threads,
            f"--device {self.device}": self.device != Run.device,
            f"--checkpoint-seconds {self.checkpoint_seconds}": self.checkpoint_seconds != Run.checkpoint_seconds,
            "--no-keep-bits": not self.keep_bits,
            "--tensorboard": self.tensorboard,
        }
        return "".join(f" {words}" for words, differs in given.items() if differs)


@dataclass
class Sweep(Settings):
    """Carry out many runs, one in each of several processes, and show the table."""

    methods: str = "blip,ft"
    """Methods, separated by commas; method:variant for a variant."""
    seeds: str = "0"
    """0-4, or 0,2,5."""
    grid: Annotated[list[str], tyro.conf.arg(metavar="NAME=VALUE,VALUE ...", help_behavior_hint="")] = field(
        default_factory=list
    )
    """Values to go through: method.budget=0.03,0.1,0.3, or method.prior=20x,1x,0.1x for multiples of the preset's."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Processes at a time on this machine, each with one thread; by default one a core, or one a GPU."""
    engine: str = "local"
    """Where: local, ray (a cluster) or slurm (through submitit)."""
    address: Text = ""
    """Of the Ray cluster, such as auto or 10.0.0.1:6379; of slurm, `local` to try it out. Empty: start Ray here."""
    engine_options: Changes = field(default_factory=list)
    """Of each Ray task or SLURM job: num_cpus=1 memory=2e9, or timeout_min=600 slurm_partition=cpu ..."""

    def do(self) -> None:
        from ..runs.folder import runs_root
        from ..runs.values import parse_options
        from .run_display import show_sweep

        with show_sweep() as display:
            try:
                outcomes = lab.sweep(
                    self.stream, self.methods.split(","), parse_seeds(self.seeds), self.changes(),
                    self.grid, workers=self.workers, device=self.device, engine=self.engine, address=self.address,
                    engine_options=parse_options(self.engine_options), display=display, get_data=get_shown,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                stop.add_note("the same command goes on from the last checkpoint of each run")
                raise
        failed = [outcome for outcome in outcomes if outcome.error]
        if len(failed) < len(outcomes):
            print_table(lab.table(self.stream, configs=[outcome.config for outcome in outcomes]))
        print(f"runs are kept in {runs_root() / self.stream}")
        if failed:
            raise ValueError(f"{len(failed)} of {len(outcomes)} runs failed, first: {failed[0].error}")


def parse_seeds(text: str) -> list[int]:
    """The seeds that ``0-4``, ``0,2,5`` or both stand for."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers = [first, last] if dash else [first]
        if not all(number.isascii() and number.isdecimal() and len(number) <= 10 for number in numbers):
            raise ValueError(f"seeds are written 0-4 or 0,2,5, each below 2^32; got {text!r}")
        if int(last or first) < int(first):
            raise ValueError(f"seeds are written 0-4, the smaller first; got {text!r}")
        if len(seeds) + int(last or first) - int(first) >= MOST_SEEDS:
            raise ValueError(f"a sweep must have at most {MOST_SEEDS:,} seeds, got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))
