"""What the scripts on pretrained networks share: methods against forgetting, their settings, one row of CSV a run."""

import argparse
import ast
import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules, diagonal_fisher
from bitfreeze.lab.methods.pull import pull
from bitfreeze.lab.runs.provenance import code_version

Forward = Callable[[Any], Any]


class Keeper:
    """Keeps nothing: fine-tuning. Other methods against forgetting derive from it."""

    def attach(self) -> None:
        """Start to hold what was measured while the network is trained."""

    def penalty(self) -> Tensor | None:
        """What is added to the loss."""

    def end_task(self, batches: Iterable[Any], forward: Forward) -> None:
        """Measure a task that has just been learned."""


class Pull(Keeper):
    """Elastic weight consolidation, online: the Fishers of all tasks are summed, around the last task's weights."""

    def __init__(self, model: nn.Module, watch: list[str], strength: float) -> None:
        self.model, self.watch, self.strength = model, watch, strength
        self.parameters = {name: model.get_parameter(name) for name in watch}
        self.fisher = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
        self.anchor: dict[str, Tensor] = {}

    def penalty(self) -> Tensor | None:
        if not self.anchor:
            return None
        now, then, weights = self.parameters.values(), self.anchor.values(), self.fisher.values()
        return self.strength * pull(list(now), list(then), list(weights))

    def end_task(self, batches: Iterable[Any], forward: Forward) -> None:
        for name, value in diagonal_fisher(self.model, batches, forward, watch=self.watch).items():
            self.fisher[name] += value
        self.anchor = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}


class Bits(Keeper):
    """BLIP, with settings that are handed on as they are."""

    def __init__(self, model: nn.Module, watch: list[str], settings: dict[str, Any], rules: Rules | None) -> None:
        chosen = settings if rules is None else {**settings, "rules": rules}
        self.blip = BLIP(model, watch=watch, **chosen)

    def attach(self) -> None:
        self.handle = self.blip.attach()

    def end_task(self, batches: Iterable[Any], forward: Forward) -> None:
        print(str(self.blip.consolidate(batches, forward)).partition("\n")[0], flush=True)


def make_keeper(options: argparse.Namespace, model: nn.Module, watch: list[str], **given: Any) -> Keeper:
    """The method that the options name. ``given`` are settings of BLIP that ``--set`` may override."""
    if options.method == "blip":
        return Bits(model, watch, {**given, **settings_of(options.set)}, rules_of(options.rules))
    return Pull(model, watch, options.strength) if options.method == "ewc" else Keeper()


# options


def add_options(parser: argparse.ArgumentParser, methods: list[str], lr: float | None) -> None:
    """Options that both scripts have."""
    parser.add_argument("--method", choices=methods, default="ft")
    parser.add_argument("--lr", type=float, default=lr, help="learning rate")
    parser.add_argument("--seeds", default="0", help="as 0,1,2")
    parser.add_argument("--strength", type=float, default=100.0, help="of ewc, for the Fisher per sample")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of BLIP")
    parser.add_argument("--rules", help="rules of BLIP, as following or directions:name=value,name=value")
    parser.add_argument("--split", choices=["valid", "test"], default="valid", help="held-out data to measure on")
    parser.add_argument("--step-ratio", type=int, default=0, metavar="N", help="time so many steps with and without it")
    parser.add_argument("--out", type=Path, default=Path("pretrained.csv"), help="CSV that gets one row a run")


def settings_of(pairs: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from NAME=VALUE. A value that is no Python literal is a string."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise SystemExit(f"a setting must be NAME=VALUE, got {pair!r}; write for example budget=0.2")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text
    return found


def rules_of(text: str | None) -> Rules | None:
    """``Rules.<name>(**settings)`` from "name:key=value,key=value"."""
    if text is None:
        return None
    name, _, settings = text.partition(":")
    preset = getattr(Rules, name, None)
    if preset is None:
        raise SystemExit(f"--rules must begin with a preset of bitfreeze.Rules, got {name!r}")
    return preset(**settings_of(filter(None, settings.split(","))))


def settings_text(options: argparse.Namespace) -> str:
    """The settings of the method alone, for a row."""
    parts = {"blip": [*options.set, *([f"rules={options.rules}"] if options.rules else [])]}
    parts["ewc"] = [f"strength={options.strength:g}"]
    parts["replay"] = [f"share={getattr(options, 'share', 0):g}"]
    return " ".join(parts.get(options.method, []))


# measuring


class Clock:
    """Seconds of processor time in each named part of a run; other programs hardly change them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - started


def step_ratio(keeper: Keeper, step: Callable[[], Any], count: int) -> float | None:
    """Processor time of a step while BLIP holds over that without it: medians of steps in turns. Spoils the model."""
    if not count or not isinstance(keeper, Bits):
        return None
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(count):
        for held in (False, True):
            keeper.attach() if held else keeper.handle.remove()
            step()  # the first one after attach() has more to do
            started = time.process_time()
            step()
            seconds[held].append(time.process_time() - started)
    return median(seconds[True]) / median(seconds[False])


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row, and a header where the file is new. Lists become JSON, and fractions get five digits."""
    command = " ".join(["python", f"research/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    made_with = {"command": command, "bitfreeze": code_version(), "torch": torch.__version__}
    cells = {name: _cell(value) for name, value in {**row, **made_with}.items()}
    is_new = not path.exists()
    if not is_new and path.read_text().partition("\n")[0].strip() != ",".join(cells):
        raise SystemExit(f"{path} must have the columns of this run, got others; name another file with --out")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(cells))
        if is_new:
            writer.writeheader()
        writer.writerow(cells)
    print(", ".join(f"{name} {cell}" for name, cell in cells.items() if cell not in ("", None)), flush=True)


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    return round(value, 5) if isinstance(value, float) else value
