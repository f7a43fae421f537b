"""The README's code runs as it is written, on made weights in place of the real ones."""

import re

import pytest

from bitfreeze import BLIP
from support.checkout import ROOT
from support.scripts import script

README = ROOT / "README.md"
PRINTED = re.compile(r"^(before|fine-tuning|bitfreeze): stories ([\d.]+), manual ([\d.]+) nats a token$", re.MULTILINE)

run_readme = script("docs/run_readme")
readme_picture = script("docs/readme_picture")


def losses(text: str) -> dict[str, tuple[float, float]]:
    """The loss on stories and on the manual by name."""
    return {name: (float(stories), float(manual)) for name, stories, manual in PRINTED.findall(text)}


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
@pytest.mark.usefixtures("made_stories")
def test_code_blocks_run_in_order_and_the_old_skill_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_readme.run(lr=1e-2)
    blip = names["blip"]
    assert isinstance(blip, BLIP)
    assert blip.tasks == 1
    assert 0 < blip.capacity() < 1
    found = losses(capsys.readouterr().out)
    (before, unread), (plain, learned), (kept, held) = (found[name] for name in ("before", "fine-tuning", "bitfreeze"))
    assert learned < unread
    assert held < unread
    assert plain > before + 0.1
    assert kept - before < 0.5 * (plain - before)


def test_its_figures_are_those_of_the_table_of_results() -> None:
    page = (ROOT / "results" / "pretrained.md").read_text().split("## The example of the README\n", 1)[1]
    rows = {
        name: (float(a), float(b)) for name, a, b in re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    }
    assert losses(README.read_text()) == {
        "before": rows["before"],
        "fine-tuning": rows["fine-tuning at 3e-4"],
        "bitfreeze": rows["bitfreeze at 3e-4, tolerance 0.05"],
    }
    (slower,) = re.findall(r"fine-tuning loses less, ([\d.]+) and ([\d.]+)\s", README.read_text())
    assert tuple(map(float, slower)) == rows["fine-tuning at 1e-4"]


def test_the_words_of_its_picture_have_the_figures_of_the_picture() -> None:
    (words,) = re.findall(r"!\[(.*)\]\(docs/images/new_and_old\.svg\)", README.read_text())
    for part, points, digits in (("Pictures", readme_picture.vision(), 1), ("Text", readme_picture.text(), 2)):
        told = re.findall(r"\d+\.\d+", words.split(f"{part}: ")[1].split("Text: ")[0])
        drawn = [readme_picture.means(points[method]) for method in ("blip", "ft", "er")]
        assert told == [f"{abs(value):.{digits}f}" for pair in drawn for value in pair]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 180
