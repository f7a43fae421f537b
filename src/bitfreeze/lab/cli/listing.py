"""`bitfreeze list`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from ... import lab

if TYPE_CHECKING:
    from ..methods import Record


@dataclass
class List:
    """List streams, methods and networks; of one of them, what can be set."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")] = ""
    """A method or network: its options. A stream: its settings, those that it gives to methods, and their variants."""

    def do(self) -> None:
        if not self.name:
            _print_all()
            return
        found = lab.describe(self.name)
        for setting in found.settings:
            meaning = f"  ({setting.help})" if setting.help else ""
            print(f"--set {setting.change}{meaning}")
        for preset in found.presets:
            variant = ["--variant", preset.variant] if preset.variant else []
            print(" ".join(["--method", preset.method, *variant, *preset.changes]))


def _print_all() -> None:
    known = lab.registries()
    for title, entries in (
        ("streams", {name: stream.description for name, stream in known["streams"].items()}),
        ("methods (what they keep, by tasks T)", {name: _described(m.record) for name, m in known["methods"].items()}),
        ("networks", {name: network.description for name, network in known["networks"].items()}),
    ):
        width = max(len(name) for name in entries)
        print(f"{title}\n" + "\n".join(f"  {name:{width}} {text}" for name, text in entries.items()))


def _described(record: "Record") -> str:
    return f"{record.memory:6} {record.description}" + (f" ({record.paper})" if record.paper else "")
