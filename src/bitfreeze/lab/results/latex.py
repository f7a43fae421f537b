"""The summary as a table of LaTeX, in the style of booktabs: `bitfreeze table --latex`."""

import re
from collections.abc import Collection, Sequence

_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$",
}  # fmt: skip
_WORDS = ("method", "variant")  # titles of columns that hold words, not figures


def to_latex(titles: Sequence[str], rows: Sequence[Sequence[str]], bold: Collection[tuple[int, str]]) -> str:
    """The table with these cells, some of them bold: each is the number of a row and the title of a column."""
    columns = "".join("l" if title in _WORDS else "r" for title in titles)
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _row([escaped(title) for title in titles]),
            r"\midrule",
            *(
                _row([_cell(title, cell, (k, title) in bold) for title, cell in zip(titles, row, strict=True)])
                for k, row in enumerate(rows)
            ),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def escaped(text: str) -> str:
    """The text with all that LaTeX would take for a command."""
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def _cell(title: str, cell: str, bold: bool) -> str:
    if title in _WORDS:
        return escaped(cell)
    head, mark, deviation = cell.partition(" ±")
    shown = [_figure(part) for part in (head, mark + deviation)]
    return (rf"\textbf{{{shown[0]}}}" if bold else shown[0]) + shown[1]


def _figure(text: str) -> str:
    """A figure, with a minus in place of the hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped(text))


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
