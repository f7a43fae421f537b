"""What is shown while data are got."""

import io

from rich.console import Console

from bitfreeze.lab.cli.download_display import DownloadLines, show_download
from bitfreeze.lab.data import Step

TENTHS = [Step("a.gz from one", k * 1_000_000, 10_000_000) for k in range(1, 11)]
STEPS = [*TENTHS, TENTHS[-1], Step("b.gz from one", 500_000), Step("b.gz from one", 600_000), Step("b from a package")]


def test_plain_lines_are_few_and_on_stderr(capsys):
    with show_download() as shown:
        for step in STEPS:
            shown(step)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "a.gz from one: 1.0 of 10.0 MB", "a.gz from one: 10.0 of 10.0 MB", "b.gz from one: 0.5 MB", "b from a package",
    ]  # fmt: skip


def test_a_long_download_is_heard_of_again_and_again(capsys):
    shown = DownloadLines(every=0)
    for step in STEPS:
        shown(step)
    assert len(capsys.readouterr().err.splitlines()) == len(STEPS) - 1  # the whole file is told of once


def test_bars_on_a_terminal():
    screen = io.StringIO()
    with show_download(Console(file=screen, force_terminal=True, width=140)) as shown:
        for step in STEPS:
            shown(step)
    lines = screen.getvalue().splitlines()
    assert any("a.gz from one" in line and "10.0/10.0 MB" in line for line in lines)
    assert any("b.gz from one" in line and "600.0/? kB" in line for line in lines)
    assert "b from a package" in screen.getvalue()
