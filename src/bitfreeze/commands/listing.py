"""`bitfreeze list`."""

from collections.abc import Mapping
from dataclasses import dataclass

import tyro

from ..experiments.config import make_config, preset, require_known
from ..methods import Record, methods
from ..nets import networks
from ..streams import streams


@dataclass
class List:
    """List streams, methods and networks; of a method or stream, what can be set."""

    name: tyro.conf.Positional[str] = ""
    """A method: its options. A stream: its settings, and its methods' variants."""

    def do(self) -> None:
        if self.name in methods:
            _print_options(make_config("digits5", self.name).method_options, "method")
        elif self.name in streams:
            config = make_config(self.name, "ft")
            for part in ("stream_options", "network", "training"):
                _print_options(getattr(config, part), part.removesuffix("_options"), config.help)
            for method, own in preset(self.name).get("methods", {}).items():
                for variant in own.get("variants", {}):
                    print(f"--method {method} --variant {variant}")
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


def _print_options(options: Mapping[str, object], part: str, texts: Mapping[str, str] | None = None) -> None:
    for name, value in options.items():
        text = (texts or {}).get(f"{part}.{name}", "")
        print(f"--set {part}.{name}={'none' if value is None else value}" + (f"  ({text})" if text else ""))


def _described(record: Record) -> str:
    return f"{record.memory:6} {record.description}" + (f" ({record.paper})" if record.paper else "")
