"""The page: for each stream an answer, a table and figures; then settings of each run, and an explorer of frozen bits.

It is one file that needs no network. All that comes from files is escaped; figures are images, in which no script runs.
"""

import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from ...runs.config import run_command
from ..grouping import grouped
from ..stored import StoredRun
from .choice import Shown, chosen_figures, with_bits
from .explorer import MOST, explorer_data
from .section import lines_of, overview, section

LIMIT, FIGURES_LIMIT = 5_000_000, 3_000_000  # bytes of the page, and of all figures on it
EXPLORED = 6  # runs

_CAN_EXPLORE = f"""<p>Each cell is one parameter. Of large layers only every so many rows and columns are shown, at most
{MOST} of each, to keep this page small; means are of all. Point at a cell, or move with the arrow keys.</p>"""


def build_page(runs: list[StoredRun], *, live: str = "", limit: int = LIMIT) -> str:
    """``live`` names this state of the runs: the page asks the server it came from how runs go on from there."""
    by_stream = grouped(runs, lambda run: run.stream)
    shown, left_out = _within(((name, chosen_figures(group)) for name, group in by_stream.items()), FIGURES_LIMIT)
    lines = {name: lines_of(name, group) for name, group in by_stream.items()}
    body = [overview(lines)]
    body += [section(name, lines[name], shown.get(name, []), left_out.get(name, 0)) for name in by_stream]
    settings = "".join(_settings(run) for run in runs)
    static = [*body, settings, _read("page.css"), _read("page.js")]
    space = limit - sum(len(part.encode()) for part in static) - 50_000
    having = [run for group in by_stream.values() for run in with_bits(group)]
    data = explorer_data(having[:EXPLORED], space)
    explorer = _explorer(data, len(having)) if having else ""
    connect = "connect-src 'self'; " if live else ""
    links = "".join(f'<a href="#stream-{escape(name)}">{escape(name)}</a>' for name in by_stream)
    links += '<a href="#explorer">frozen bits</a>' if having else ""
    return _PAGE.format(
        connect=connect,
        css=_read("page.css"),
        links=links,
        count=f"{len(runs)} run{'s' if len(runs) != 1 else ''}, {sum(run.result is not None for run in runs)} finished",
        live='<section id="live" aria-label="Runs going on"></section>' if live else "",
        streams="".join(body),
        explorer=explorer,
        settings=settings,
        data=_json({"live": live, "runs": data}),
        js=_read("page.js"),
    )


def _within(
    offered: Iterable[tuple[str, Iterable[Shown]]], limit: int
) -> tuple[dict[str, list[Shown]], dict[str, int]]:
    """Figures of each stream as long as there is room, and how many were left out."""
    kept: dict[str, list[Shown]] = {}
    out: dict[str, int] = {}
    used = 0
    for name, shown in offered:
        for figure in shown:
            size = len(figure.data) * 4 // 3
            if used + size > limit:
                out[name] = out.get(name, 0) + 1
                continue
            used += size
            kept.setdefault(name, []).append(figure)
    return kept, out


def _settings(run: StoredRun) -> str:
    config = run.config
    command = run_command(run.stream, run.method, config["variant"], config["seed"], config["changes"])
    text = (run.folder.path / "config.toml").read_text()
    return (
        f"<details><summary>{escape(run.title)}</summary><p>{'Finished' if run.result else 'Not finished'}; "
        f'<code>{escape(command)}</code></p><pre tabindex="0">{escape(text)}</pre></details>'
    )


def _explorer(data: list[dict[str, object]], having: int) -> str:
    if data:
        more = f"<p>{len(data)} of {having} runs with frozen bits are here; name others to see them.</p>"
        inside = _CAN_EXPLORE + (more if having > len(data) else "") + _EXPLORER
    else:
        inside = "<p>There was no room left for the frozen bits: name fewer runs.</p>"
    return f'<section id="explorer"><h2>Frozen bits, parameter by parameter</h2>{inside}</section>'


def _json(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _read(name: str) -> str:
    return (files(__package__) / name).read_text()


_EXPLORER = """
<form id="explore" aria-label="What to show">
<label>Run <select id="pick-run"></select></label>
<label>Layer <select id="pick-tensor"></select></label>
<label>After task <input id="pick-task" type="range" min="1" value="1"> <output id="task-name"></output></label>
</form>
<div class="explorer">
<div><canvas id="map" tabindex="0" role="img" aria-label="Frozen bits"></canvas>
<div class="scale"><span>0</span><span id="scale-bar"></span><span id="scale-top"></span></div>
<p id="map-note"></p></div>
<div id="cell" aria-live="polite"></div>
</div>"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; {connect}img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>bitfreeze report</title>
<style>{css}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header><h1>bitfreeze</h1><p>{count}</p>
<nav aria-label="On this page">{links}<a href="#settings">settings</a></nav></header>
<main id="main">
{live}{streams}
{explorer}
<section id="settings"><h2>Settings of each run</h2>{settings}</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{js}</script>
</body>
</html>
"""
