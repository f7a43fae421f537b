"""The README's code runs as it is written, on made weights in place of the real ones."""

import re
from pathlib import Path

import pytest

from bitfreeze import BLIP
from support.checkout import ROOT
from support.pretrained import take_as_they_are
from support.scripts import script
from support.tiny_llama import write_llama

README = ROOT / "README.md"
PRINTED = re.compile(r"^(before|fine-tuning|bitfreeze): stories ([\d.]+), manual ([\d.]+) nats a token$", re.MULTILINE)

run_readme = script("docs/run_readme")
readme_picture = script("docs/readme_picture")


def losses(text: str) -> dict[str, tuple[float, float]]:
    """The loss on stories and on the manual by name."""
    return {name: (float(stories), float(manual)) for name, stories, manual in PRINTED.findall(text)}


@pytest.fixture
def made_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path)
    take_as_they_are(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
@pytest.mark.usefixtures("made_weights")
def test_code_blocks_run_in_order_and_the_old_skill_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_readme.run(lr="1e-2")  # made weights are far from all texts, so they need a larger rate to move
    blip = names["blip"]
    assert isinstance(blip, BLIP)
    assert blip.tasks == 1
    assert 0 < blip.capacity() < 1
    found = losses(capsys.readouterr().out)
    (before, unread), (plain, learned), (kept, held) = (found[name] for name in ("before", "fine-tuning", "bitfreeze"))
    assert learned < unread
    assert held < unread
    assert kept - before < 0.5 * (plain - before)


def test_its_figures_are_those_of_the_table_of_results() -> None:
    rows = (ROOT / "results" / "pretrained.md").read_text().split("## The example of the README\n", 1)[1]
    quoted = losses(README.read_text())
    assert len(quoted) == 3
    for stories, manual in quoted.values():
        assert f"| {stories:.2f} | {manual:.2f} |" in rows


def test_the_words_of_its_picture_have_the_figures_of_the_picture() -> None:
    (words,) = re.findall(r"!\[(.*)\]\(docs/images/new_and_old\.svg\)", README.read_text())
    for part, points, digits in (("Pictures", readme_picture.vision(), 1), ("Text", readme_picture.text(), 2)):
        told = re.findall(r"\d+\.\d+", words.split(f"{part}: ")[1].split("Text: ")[0])
        drawn = [readme_picture.means(points[method]) for method in ("blip", "ft", "er")]
        assert told == [f"{abs(value):.{digits}f}" for pair in drawn for value in pair]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 180
