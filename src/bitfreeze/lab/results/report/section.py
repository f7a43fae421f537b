"""The part of the page about one stream: the answer, the table and the figures."""

import base64
from collections.abc import Sequence
from html import escape
from statistics import mean

from ...runs.columns import values_of
from ...runs.kinds import kind_of
from ..rows import rows_of
from ..stored import StoredRun
from ..table import Line, best_lines, grid, summarise
from .answer import Answer, answer
from .choice import Shown

SHORT = 16  # letters of a variant that needs no lines of its own


def lines_of(name: str, runs: list[StoredRun]) -> list[Line]:
    """A line for each method and variant with finished runs, the best first."""
    rows = rows_of(runs)
    by = kind_of(name).compared_by
    return sorted(summarise(rows, name), key=lambda line: -mean(values_of(line.rows, by) or [0.0])) if rows else []


def section(name: str, lines: Sequence[Line], shown: list[Shown], left_out: int) -> str:
    figures = "".join(_figure(figure) for figure in shown)
    more = f"<p>{left_out} figures were left out to keep the page small: bitfreeze figure draws them.</p>"
    found = answer(name, lines)
    return (
        f'<section id="stream-{escape(name)}"><h2>{escape(name)}</h2>{_answer(found) if found else ""}'
        f'{_table(name, lines)}<div class="figures">{figures}</div>{more if left_out else ""}</section>'
    )


def overview(by_stream: dict[str, list[Line]]) -> str:
    """The answers of several streams at the top; one stream says its own."""
    answers = {name: found for name, lines in by_stream.items() if (found := answer(name, lines))}
    if len(answers) < 2:
        return ""
    items = "".join(
        f'<li><a href="#stream-{escape(name)}">{escape(name)}</a>: {escape(found.lead)}</li>'
        for name, found in answers.items()
    )
    return f'<section id="overview"><h2>In short</h2><ul>{items}</ul></section>'


def _answer(found: Answer) -> str:
    facts = "".join(
        f"<div><dt>{escape(fact.title)}</dt><dd><b>{escape(fact.value)}</b>"
        f"{f'<span>{escape(fact.note)}</span>' if fact.note else ''}</dd></div>"
        for fact in found.facts
    )
    more = f'<p class="quiet">{escape(found.more)}</p>' if found.more else ""
    return f'<div class="answer"><p class="lead">{escape(found.lead)}</p><dl>{facts}</dl>{more}</div>'


def _table(name: str, lines: Sequence[Line]) -> str:
    if not lines:
        return "<p>No run is finished yet.</p>"
    titles, rows = grid(lines)
    best = {title: best_lines(lines, title) for title in titles}
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(_cell(cell, k in best[title]) for title, cell in zip(titles[1:], row[1:], strict=True))
        + "</tr>"
        for k, row in enumerate(rows)
    )
    texts = sorted({row["protocol"] for line in lines for row in line.rows})
    protocols = "".join(f"<li>{escape(text)}</li>" for text in texts)
    longest = max(len(line.variant) for line in lines)
    shape = "" if "variant" not in titles else " variants long" if longest > SHORT else " variants"
    return (
        f'<p class="quiet">The best first, in {escape(kind_of(name).unit)}, mean ± standard deviation over seeds. '
        "Bold: the best of a column, reference points aside.</p>"
        f'<div class="wide{shape}" tabindex="0" role="region" aria-label="Results on {escape(name)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<details><summary>What the columns mean, and the protocols</summary><p>{escape(kind_of(name).preface)} "
        f"The paper's figures are at its own settings, the preset's.</p><ul>{protocols}</ul></details>"
    )


def _cell(cell: str, best: bool) -> str:
    return f"<td>{f'<b>{escape(cell)}</b>' if best else escape(cell)}</td>"


def _figure(figure: Shown) -> str:
    source = f"data:image/{figure.kind};base64,{base64.b64encode(figure.data).decode()}"
    return (
        f'<figure class="{escape(figure.name)}"><div class="sheet" tabindex="0" role="region" '
        f'aria-label="{escape(figure.title)}"><img src="{source}" alt="{escape(figure.words)}"></div>'
        f"<figcaption><b>{escape(figure.title)}.</b> {escape(figure.reading)}</figcaption></figure>"
    )
