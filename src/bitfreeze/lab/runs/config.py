"""The settings of a run: a preset of its stream, and what the user changed."""

import hashlib
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from ..methods import make_method, methods
from ..nets import networks
from ..options import Option, checked, options_of, typed
from ..registry import look_up
from ..streams import make_stream, streams
from .kinds import kind_of
from .values import to_toml

Declared = Mapping[str, Mapping[str, Option]]  # the options of each part of the settings


@dataclass(frozen=True)
class Config:
    """All that decides a run's outcome, nothing implied."""

    stream: str
    method: str
    variant: str  # a named variant of the preset, "" for its own settings
    changes: tuple[str, ...]  # what the user changed, as part.name=value
    seed: int
    stream_options: dict[str, Any]  # among them the scenario's own seed
    network: dict[str, Any]
    training: dict[str, Any]
    method_options: dict[str, Any]

    @property
    def settings(self) -> Any:
        """The settings of what trains this stream."""
        return kind_of(self.stream).settings(**self.training)

    @property
    def precision(self) -> str:
        """The precision of forward passes in training and evaluation."""
        return str(self.training["precision"])

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose versions decide the outcome, besides torch."""
        return kind_of(self.stream).packages

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """All settings, by the first word of their paths."""
        return {
            "stream": self.stream_options,
            "network": self.network,
            "training": self.training,
            "method": self.method_options,
        }

    @property
    def label(self) -> str:
        """The variant and the changes in words; empty for the preset's own settings."""
        return in_words(self.variant, self.changes)

    @property
    def title(self) -> str:
        return " ".join(word for word in (self.method, self.label, f"seed {self.seed}") if word)

    @property
    def name(self) -> str:
        """The run's place below the folder of runs."""
        folder = f"{self.method}-{self.variant}" if self.variant else self.method
        if self.changes:
            text = ",".join(self.changes)
            readable = "".join(c if c.isalnum() or c in "=.,_-" else "_" for c in text)[:60]
            folder = f"{folder}-{readable}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        return f"{self.stream}/{folder}/seed{self.seed}"

    @property
    def command(self) -> str:
        return run_command(self.stream, self.method, self.variant, self.seed, self.changes)


def run_command(stream: str, method: str, variant: str, seed: int, changes: Iterable[str]) -> str:
    """The command that starts a run."""
    words = ["bitfreeze", "run", stream, "--method", method]
    words += ["--variant", variant] if variant else []
    words += ["--seed", str(seed)]
    words += ["--set", *changes] if changes else []
    return shlex.join(words)


def in_words(variant: str, changes: Iterable[str]) -> str:
    """A variant and changes as tables name them."""
    return " ".join(word for word in (variant, *changes) if word)


def preset(stream: str) -> dict[str, Any]:
    """How a stream is trained. The presets of the paper's streams hold the settings of the paper and its code."""
    own = streams[stream].preset
    if own is not None:
        return {"network": {"kind": "mlp"}, "training": {}, **own}
    table = tomllib.loads((files(__package__) / "presets" / f"{stream}.toml").read_text())
    entries = table.get("methods", {})
    return {**table, "methods": {name: entries[own["like"]] if "like" in own else own for name, own in entries.items()}}


def make_config(stream: str, method: str, variant: str = "", seed: int = 0, changes: Iterable[str] = ()) -> Config:
    """The settings of a run. Each of ``changes`` is written ``part.name=value``, such as ``training.epochs=40``."""
    trainer = streams[stream].trainer
    _require_seed("seed", seed)
    _require_trainable(method, stream, trainer)
    asked = _asked(changes)
    _require_network_in_use(method, asked)
    table = preset(stream)
    own = _own(table, stream, method, variant)
    network = {"kind": table["network"]["kind"], **own.pop("network", {})}
    kind = asked.get("network.kind", network["kind"])
    declared = declared_options(stream, method, kind)
    given: dict[str, dict[str, Any]] = {
        "stream": table.get("stream", {}),
        "network": {**_of_kind(kind, table["network"]), **_of_kind(kind, network)},
        "training": {**table["training"], **own.pop("training", {})},
        "method": own,
    }
    parts = {
        part: {name: option.default for name, option in options.items()} | checked(part, options, given[part])
        for part, options in declared.items()
    }
    changed = tuple(change for path, text in asked.items() if (change := _apply(parts, declared, path, text)))
    _require_seed("stream.seed", parts["stream"].get("seed", 0))
    _require_scenario(method, stream, parts["stream"])
    kind_of(stream).settings(**parts["training"])  # these refuse what makes no sense before anything is written
    make_method(method, parts["method"])
    return Config(
        stream, method, variant, changed, seed, parts["stream"], parts["network"], parts["training"], parts["method"]
    )


def declared_options(stream: str, method: str, kind: str) -> Declared:
    """The options of each part of the settings, for a stream, a method and a kind of network."""
    trainer = streams[stream].trainer
    able = tuple(name for name, network in networks.items() if network.trainer == trainer)
    kinds = Option(Literal[able], able[0], "kind of network")
    return {
        "stream": {**options_of(streams[stream].make), **kind_of(stream).stream_options},
        "network": {"kind": kinds, **options_of(networks[kinds.check("network.kind", kind)].build)},
        "training": options_of(kind_of(stream).settings),
        "method": options_of(methods[method]),
    }


def _asked(changes: Iterable[str]) -> dict[str, str]:
    """What was typed for each setting, by its path."""
    asked: dict[str, str] = {}
    for change in sorted(changes):
        path, equals, text = change.partition("=")
        if not (equals and "." in path):
            raise ValueError(f"a change must be written part.name=value, such as training.epochs=40, got {change!r}")
        if path in asked:
            raise ValueError(f"{path} must be given once, got {asked[path]!r} and {text!r}")
        asked[path] = text
    return asked


def _apply(parts: dict[str, dict[str, Any]], declared: Declared, path: str, text: str) -> str:
    """Set what was typed. Returns the change as it names a run; empty for a value that the preset has anyway.

    Lists are spelled without spaces: a run has one name however it was typed, and tables split variants at spaces.
    """
    part, _, name = path.partition(".")
    new = _at(path, declared).parse(path, text)
    old, parts[part][name] = parts[part][name], new
    if new == old:
        return ""
    return f"{path}={typed(new) if isinstance(new, list) else text}"


def setting(config: Config, path: str) -> Any:
    """The value of ``part.name`` in a run."""
    return _at(path, config.parts)


def _at(path: str, parts: Mapping[str, Mapping[str, Any]]) -> Any:
    part, _, name = path.partition(".")
    return look_up(f"setting of {part}", name, look_up("part of the settings", part, parts))


def _require_seed(path: str, seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise ValueError(f"{path} must be a whole number from 0 to {2**32 - 1}, got {seed}")


def _require_trainable(method: str, stream: str, trainer: str) -> None:
    if trainer not in methods[method].record.trainers:
        able = [name for name, entry in methods.items() if trainer in entry.record.trainers]
        raise ValueError(
            f"{method} has no part in {trainer} learning, which {stream} needs: use one of {', '.join(sorted(able))}"
        )


def _require_scenario(method: str, stream: str, options: Mapping[str, Any]) -> None:
    scenario = options.get("scenario", "task")
    if scenario != "task":
        make_stream(stream, **options)  # refuses tasks that the scenario cannot have, and loads nothing
    if scenario not in methods[method].record.scenarios:
        able = [name for name, entry in methods.items() if scenario in entry.record.scenarios]
        raise ValueError(
            f"{method} must be told the task, which stream.scenario={scenario} does not: use one of "
            f"{', '.join(sorted(able))}"
        )


def _require_network_in_use(method: str, asked: Mapping[str, str]) -> None:
    idle = [f"{path}={text}" for path, text in asked.items() if path.startswith("network.")]
    if idle and methods[method].record.own_networks:
        raise ValueError(
            f"{method} makes networks of its own, so {idle[0]} would change nothing: leave it out, and see the sizes "
            f"among the options of {method}"
        )


def _of_kind(kind: str, network: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a network, of which another kind can use none."""
    return network if network["kind"] == kind else {"kind": network["kind"]}


def _own(table: Mapping[str, Any], stream: str, method: str, variant: str) -> dict[str, Any]:
    """What a preset says of a method: its options, and its own training and network."""
    own = dict(table.get("methods", {}).get(method, {}))
    variants = own.pop("variants", {})
    return own | (look_up(f"variant of {method} on {stream}", variant, variants) if variant else {})


def in_todays_options(saved: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The saved settings of a run without the options that are no more, and with those that are new at their default.

    An option that is no more had its default, which the code has kept: any other value would be a change, and in the
    run's name. The default of a new option is what the code did before it.
    """
    declared = declared_options(config.stream, config.method, config.network["kind"])
    names = {"stream_options": "stream", "network": "network", "training": "training", "method_options": "method"}
    parts = {}
    for part in names.keys() & saved.keys():
        now, options = config.parts[names[part]], declared[names[part]]
        new = {k: v for k, v in now.items() if k not in saved[part] and v == options[k].default}
        parts[part] = {k: v for k, v in saved[part].items() if k in now} | tomllib.loads(to_toml(new))
    return {**saved, **parts}
