"""What several commands take or print."""

import tyro
from rich.console import Console

from ..experiments import table
from ..experiments.rows import Row

Name = tyro.conf.Positional[str]
Names = tyro.conf.Positional[list[str]]


def print_table(rows: list[Row], stream: str, against: str = "") -> None:
    lines, console = table.summarise(rows, stream, against), Console()
    if console.is_terminal:
        console.print(table.to_terminal(lines, stream, against))
    else:
        print(table.to_markdown(lines, against), end="")
