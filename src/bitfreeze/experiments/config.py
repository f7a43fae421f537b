"""The settings of a run: a preset of its stream, and what the user changed."""

import difflib
import hashlib
import json
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from inspect import Parameter, signature
from typing import Any, get_args, get_type_hints

from ..methods import make_method, methods
from ..nets import networks
from ..streams import streams
from .trainers import TRAINERS
from .values import KINDS, fits, is_finite, parse_value


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
        return TRAINERS[streams[self.stream].trainer].settings(**self.training)

    @property
    def packages(self) -> tuple[str, ...]:
        """Those whose versions decide the outcome besides torch's."""
        return TRAINERS[streams[self.stream].trainer].packages

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
    """What to type for a run."""
    words = ["bitfreeze", "run", stream, "--method", method]
    words += ["--variant", variant] if variant else []
    words += ["--seed", str(seed)]
    words += ["--set", *changes] if changes else []
    return shlex.join(words)


def in_words(variant: str, changes: Iterable[str]) -> str:
    """A variant and changes, as tables name them."""
    return " ".join(word for word in (variant, *changes) if word)


def preset(stream: str) -> dict[str, Any]:
    """How a stream is trained: for the paper's streams, its settings and those of the released code."""
    own = streams[stream].preset
    if own is not None:
        return {"network": {"kind": "mlp"}, "training": {}, **own}
    table = tomllib.loads((files(__package__) / "presets" / f"{stream}.toml").read_text())
    entries = table.get("methods", {})
    return {**table, "methods": {name: entries[own["like"]] if "like" in own else own for name, own in entries.items()}}


def make_config(stream: str, method: str, variant: str = "", seed: int = 0, changes: Iterable[str] = ()) -> Config:
    """``changes`` are written ``training.epochs=40``, ``method.budget=0.2``, ``stream.seed=1`` and so on."""
    require_known("stream", stream, streams)
    require_known("method", method, methods)
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed is a whole number from 0 to {2**32 - 1}, got {seed}")
    trainer = streams[stream].trainer
    _require_trainable(method, stream, trainer)
    table = preset(stream)
    own = _own(table, stream, method, variant)
    applied = tuple(sorted(_spelled(change) for change in changes))
    _require_network_in_use(method, applied)
    settings = [change.partition("=")[0] for change in applied]
    twice = [name for name in settings if settings.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice: say once what it is to be")
    parts: dict[str, dict[str, Any]] = {
        "stream": {
            **_defaults(streams[stream].make),
            **TRAINERS[trainer].stream_options,
            **table.get("stream", {}),
        },
        "network": _network(table["network"], own.pop("network", {}), applied, trainer),
        "training": {**asdict(TRAINERS[trainer].settings()), **table["training"], **own.pop("training", {})},
        "method": {**{f.name: f.default for f in fields(methods[method])}, **own},
    }
    hints = get_type_hints(methods[method])
    changed = tuple(change for change in applied if _apply(parts, change, hints))
    TRAINERS[trainer].settings(**parts["training"])  # these refuse what makes no sense before anything is written
    make_method(method, parts["method"])
    return Config(
        stream, method, variant, changed, seed, parts["stream"], parts["network"], parts["training"], parts["method"]
    )


def _spelled(change: str) -> str:
    """Lists without spaces: a run has one name however its command was typed, and tables split variants at spaces."""
    path, _, text = change.partition("=")
    value = parse_value(text)
    if not isinstance(value, list) or not is_finite(value):
        return change
    return f"{path}={json.dumps(value, separators=(',', ':'), default=str)}"  # a date is a word here


def _require_trainable(method: str, stream: str, trainer: str) -> None:
    if trainer not in methods[method].record.trainers:
        able = [name for name, entry in methods.items() if trainer in entry.record.trainers]
        raise ValueError(
            f"{method} has no part in {trainer} learning, which {stream} needs: use one of {', '.join(sorted(able))}"
        )


def _require_network_in_use(method: str, changes: Iterable[str]) -> None:
    asked = [change for change in changes if change.startswith("network.")]
    if asked and methods[method].record.own_networks:
        raise ValueError(
            f"{method} makes networks of its own, so {asked[0]} would change nothing: leave it out, and see the sizes "
            f"among the options of {method}"
        )


def setting(config: Config, path: str) -> Any:
    """What ``part.name`` is in a run."""
    parts = {
        "stream": config.stream_options, "network": config.network, "training": config.training,
        "method": config.method_options,
    }  # fmt: skip
    part, _, name = path.partition(".")
    require_known("part of the settings", part, parts)
    require_known(f"setting of {part}", name, parts[part])
    return parts[part][name]


def _own(table: Mapping[str, Any], stream: str, method: str, variant: str) -> dict[str, Any]:
    """What a preset says of a method: its options, and its own training and network. "none" stands for none."""
    own = dict(table.get("methods", {}).get(method, {}))
    variants = own.pop("variants", {})
    if variant:
        require_known(f"variant of {method} on {stream}", variant, variants)
        own |= variants[variant]
    return {name: None if value == "none" else value for name, value in own.items()}


def _network(given: Mapping[str, Any], own: Mapping[str, Any], changes: Iterable[str], trainer: str) -> dict[str, Any]:
    """A preset's network, or a method's own; one of another kind starts from the defaults of that kind."""
    asked = [change.partition("=")[2] for change in changes if change.startswith("network.kind=")]
    kinds = [*(part["kind"] for part in (given, own) if "kind" in part), *asked]
    able = [name for name, net in networks.items() if net.trainer == trainer]
    require_known(f"network for {trainer} learning", kinds[-1], able)
    network = {"kind": kinds[-1], **_defaults(networks[kinds[-1]].build)}
    for part, kind in ((given, given["kind"]), (own, own.get("kind", given["kind"]))):
        network |= part if kind == kinds[-1] else {}
    return {**network, "kind": kinds[-1 - len(asked)]}  # the change of kind itself is applied with all others


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function and what they are if nothing is said; sequences as TOML has them."""
    found = {p.name: p.default for p in signature(function).parameters.values() if p.default is not Parameter.empty}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _apply(parts: dict[str, dict[str, Any]], change: str, method_hints: Mapping[str, Any]) -> bool:
    """Whether it makes a difference: what a preset has anyway is no change, so that such a run has one name."""
    path, equals, text = change.partition("=")
    part, dot, name = path.partition(".")
    if not (equals and dot):
        raise ValueError(f"a change is written part.name=value, such as training.epochs=40; got {change!r}")
    require_known("part of the settings", part, parts)
    require_known(f"setting of {part}", name, parts[part])
    hint = method_hints[name] if part == "method" else type(parts[part][name])
    kinds = get_args(hint) or (hint,)
    new = text if str in kinds and text != "none" else parse_value(text)  # labels=true means the word
    if not any(fits(new, kind) for kind in kinds):
        words = " or ".join(KINDS[kind] for kind in kinds if kind in KINDS)
        raise ValueError(f"{path} must be {words}, got {text!r}")
    if isinstance(new, list):
        _require_like(path, new, parts[part][name])
    if not is_finite(new):
        raise ValueError(f"{path} must be finite, got {text!r}")
    old, parts[part][name] = parts[part][name], new
    return bool(new != old)


def _require_like(path: str, new: list[Any], old: Any) -> None:
    """Entries of the kinds that the list had."""
    kinds = list(dict.fromkeys(type(entry) for entry in old or ()))
    for entry in new if kinds else ():
        if not any(fits(entry, kind) for kind in kinds):
            words = " or ".join(KINDS[kind] for kind in kinds if kind in KINDS)
            raise ValueError(f"each entry of {path} must be {words}, such as {json.dumps(old[0])}; got {entry!r}")


def require_known(kind: str, name: str, known: Mapping[str, Any] | Iterable[str]) -> None:
    """A name that is not known is an error that offers the nearest ones."""
    names = sorted(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names) or 'none'}"
        raise ValueError(f"there is no {kind} {name!r}: {hint}")
