"""What several commands take or print."""

from typing import Annotated

import tyro
from rich.console import Console

from ..experiments import table
from ..experiments.rows import Row

StreamName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STREAM")]
RunName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
RunNames = Annotated[tyro.conf.Positional[list[str]], tyro.conf.arg(metavar="[RUN [RUN ...]]")]
DatasetName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]


def print_table(rows: list[Row], stream: str, against: str = "") -> None:
    lines, console = table.summarise(rows, stream, against), Console()
    if console.is_terminal:
        console.print(table.to_terminal(lines, stream, against))
    else:
        print(table.to_markdown(lines, against), end="")
