"""The pictures of README and docs can be drawn again, and say what results/ and the pages say."""

import re
from pathlib import Path

import pytest
import torch

from support.checkout import ROOT
from support.scripts import script

pictures = script("docs/pictures")
readme_picture = script("docs/readme_picture")
memory_picture = script("docs/memory_picture")
PAGE = (ROOT / "docs" / "explanation" / "pictures.md").read_text()


def test_the_readmes_picture_is_that_of_results(tmp_path: Path) -> None:
    readme_picture.main(tmp_path)
    assert (tmp_path / "new_and_old.svg").stat().st_size > 10_000
    shown = (ROOT / "docs" / "images" / "new_and_old.svg").read_text()
    assert readme_picture.description() in shown, "run python docs/readme_picture.py"


def test_the_readmes_picture_has_the_figures_of_the_results_pages() -> None:
    """The means of our rows, as the tables of both streams have them."""
    for stream, found, digits in (("vision5", readme_picture.vision(), 1), ("text5", readme_picture.text(), 2)):
        page = (ROOT / "results" / f"{stream}.md").read_text()
        head, row = (re.search(rf"^\| {name} .*$", page, re.MULTILINE)[0] for name in ("method", "blip"))
        cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
        old, new = ("BWT", "learned") if stream == "vision5" else ("rise", "new")
        assert readme_picture.means(found["blip"]) == pytest.approx(
            [float(cells[name].split()[0]) for name in (new, old)], abs=0.6 * 10**-digits
        )


def test_the_picture_of_accuracy_and_memory_is_that_of_results(tmp_path: Path) -> None:
    memory_picture.main(tmp_path)
    drawn, shown = (folder / "memory_cifar100_10.svg" for folder in (tmp_path, ROOT / "docs" / "images"))
    assert memory_picture.draw().words in drawn.read_text()
    assert memory_picture.draw().words in shown.read_text(), "run python docs/memory_picture.py"
    assert "blip: ACC" in memory_picture.draw().words


def test_every_picture_of_the_page_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "SEEDS", (0,))
    monkeypatch.setattr(pictures, "TOLERANCES", (0.005, 0.5))
    pictures.main(tmp_path)
    drawn = {file.name for file in tmp_path.iterdir()}
    shown = set(re.findall(r"\(\.\./images/(method_\w+\.svg)\)", PAGE))
    assert drawn == shown
    assert all("<svg" in (ROOT / "docs" / "images" / name).read_text() for name in shown)


def test_the_page_tells_the_figures_of_its_pictures() -> None:
    layer = pictures.two_weights()
    square = pictures.box(pictures.radii(layer.fisher))
    turned = pictures.box(pictures.radii(layer.turned_fisher)) @ layer.directions.T
    assert f"{pictures.lost(layer, square).max():.3f} nats" in PAGE
    assert f"costs {pictures.lost(layer, turned).max():.3f}" in PAGE
    assert f"Fisher information F of {layer.fisher[0]:.3f}" in PAGE
    wider = pictures.radii(layer.turned_fisher).prod() / pictures.radii(layer.fisher).prod()
    assert round(wider.item()) == 4
    assert "four times the room" in PAGE


def test_what_a_change_costs_is_half_the_fisher_times_its_square_near_the_centre() -> None:
    layer = pictures.two_weights()
    for fisher, axes in ((layer.fisher, torch.eye(2)), (layer.turned_fisher, layer.directions.T)):
        for k in range(2):
            cost = pictures.lost(layer, 0.1 * axes[k])
            assert cost.item() == pytest.approx(fisher[k].item() * 0.1**2 / 2, rel=0.05)
