"""`bitfreeze list`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

import tyro

from ..experiments.config import make_config, preset, require_known
from ..methods import Record, methods
from ..nets import networks
from ..options import meanings
from ..streams import streams


@dataclass
class List:
    """List streams, methods and networks; of a method or stream, what can be set."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[NAME]")] = ""
    """A method: its options. A stream: its settings, those that it gives to methods, and their variants."""

    def do(self) -> None:
        if self.name in methods:
            method = methods[self.name]
            _print_options({option.name: option.default for option in fields(method)}, "method", meanings(method))
        elif self.name in streams:
            config = make_config(self.name, "ft")
            _print_options(config.stream_options, "stream")
            _print_options(config.network, "network")
            _print_options(config.training, "training", meanings(config.settings))
            for name, own in preset(self.name).get("methods", {}).items():
                print(f"--method {name}{_words(own)}")
                for variant, changed in own.get("variants", {}).items():
                    print(f"--method {name} --variant {variant}{_words(changed)}")
        elif self.name:
            require_known("stream or method", self.name, [*streams, *methods])
        else:
            self._all()

    def _all(self) -> None:
        for title, entries in (
            ("streams", {s.name: s.description for s in streams.values()}),
            ("methods (what they keep, by tasks T)", {name: _described(m.record) for name, m in methods.items()}),
            ("networks", {n.name: n.description for n in networks.values()}),
        ):
            print(f"{title}\n" + "\n".join(f"  {name:15} {text}" for name, text in entries.items()))


def _words(settings: Mapping[str, object], part: str = "method") -> str:
    """What a preset gives to a method, as it would be typed in."""
    return "".join(
        _words(value, name) if isinstance(value, Mapping) else f" {part}.{name}={_typed(value)}"
        for name, value in settings.items()
        if name != "variants"
    )


def _print_options(options: Mapping[str, object], part: str, texts: Mapping[str, str] | None = None) -> None:
    for name, value in options.items():
        text = (texts or {}).get(name, "")
        print(f"--set {part}.{name}={_typed(value)}" + (f"  ({text})" if text else ""))


def _typed(value: object) -> str:
    """As --set takes it."""
    if value is None:
        return "none"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, bool | list) else str(value)


def _described(record: Record) -> str:
    return f"{record.memory:6} {record.description}" + (f" ({record.paper})" if record.paper else "")
