"""The settings of a run: a preset of its stream, and what the user changed."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from typing import Any

from ..methods import methods
from ..streams import streams
from ..training import Settings


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
    protocol: str

    @property
    def settings(self) -> Settings:
        return Settings(**self.training)

    @property
    def label(self) -> str:
        """The variant and the changes in words; empty for the preset's own settings."""
        return " ".join([*([self.variant] if self.variant else []), *self.changes])

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
    words = ["bitfreeze run", stream, "--method", method]
    words += ["--variant", variant] if variant else []
    words += ["--seed", str(seed)]
    words += ["--set", *changes] if changes else []
    return " ".join(words)


def preset(stream: str) -> dict[str, Any]:
    """The paper's and the released code's settings of a stream."""
    text = (files(__package__) / "presets" / f"{stream}.toml").read_text()
    return tomllib.loads(text)


def make_config(stream: str, method: str, variant: str = "", seed: int = 0, changes: Iterable[str] = ()) -> Config:
    """``changes`` are written ``training.epochs=40``, ``method.budget=0.2``, ``stream.seed=1`` and so on."""
    require_known("stream", stream, streams)
    require_known("method", method, methods)
    table = preset(stream)
    own = dict(table.get("methods", {}).get(method, {}))
    variants = own.pop("variants", {})
    if variant:
        require_known(f"variant of {method} on {stream}", variant, variants)
        own |= variants[variant]
    parts: dict[str, dict[str, Any]] = {
        "stream": {"seed": 0, **table.get("stream", {})},
        "network": dict(table["network"]),
        "training": {**asdict(Settings()), **table["training"], **own.pop("training", {})},
        "method": {**{f.name: f.default for f in fields(methods[method])}, **own},
    }
    applied = tuple(sorted(changes))
    for change in applied:
        _apply(parts, change)
    return Config(
        stream, method, variant, applied, seed, parts["stream"], parts["network"], parts["training"], parts["method"],
        table["protocol"],
    )  # fmt: skip


def _apply(parts: dict[str, dict[str, Any]], change: str) -> None:
    path, equals, text = change.partition("=")
    part, dot, name = path.partition(".")
    if not (equals and dot):
        raise ValueError(f"a change is written part.name=value, such as training.epochs=40; got {change!r}")
    require_known("part of the settings", part, parts)
    open_ended = part in ("stream", "network")  # their options are those of a function, which checks them itself
    if not open_ended:
        require_known(f"setting of {part}", name, parts[part])
    value = _parse(text)
    word_wanted = isinstance(parts[part].get(name), str) and isinstance(value, bool)
    parts[part][name] = text if word_wanted else value  # labels=true means the word


def _parse(text: str) -> Any:
    """A TOML value; a bare word is a string."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def require_known(kind: str, name: str, known: Mapping[str, Any] | Iterable[str]) -> None:
    """A name that is not known is an error that offers the nearest ones."""
    names = sorted(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
        raise ValueError(f"there is no {kind} {name!r}: {hint}")


def to_toml(table: Mapping[str, Any]) -> str:
    """A table of plain values and tables of such, as TOML. None, which TOML lacks, is left out."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in table.items() if _is_plain(value)]
    tables = [f"\n[{key}]\n{to_toml(value)}" for key, value in table.items() if isinstance(value, Mapping)]
    return "\n".join([*plain, *tables]) + ("\n" if plain and not tables else "")


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, Mapping)
