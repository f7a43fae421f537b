"""The pictures of README and docs can be drawn again, and say what results/ and the pages say."""

import re
from pathlib import Path

import pytest
import torch

from support.checkout import ROOT
from support.scripts import script

pictures = script("docs/pictures")
readme_picture = script("docs/readme_picture")
PAGE = (ROOT / "docs" / "explanation" / "pictures.md").read_text()


def test_the_readmes_picture_is_that_of_results(tmp_path: Path) -> None:
    readme_picture.main(tmp_path)
    assert (tmp_path / "new_and_old.svg").stat().st_size > 10_000
    shown = (ROOT / "docs" / "images" / "new_and_old.svg").read_text()
    assert readme_picture.description() in shown, "run python docs/readme_picture.py"


def test_the_readmes_picture_has_the_figures_of_the_results_page() -> None:
    page = (ROOT / "results" / "pretrained.md").read_text()
    told = readme_picture.description()
    for figures in (("71.0", "-31.8"), ("68.0", "-0.1")):
        assert ", ".join(figures) in told
        assert all(figure in page for figure in figures)
    assert "| BLIP along directions, default | 5.69 | 1.45 | 0.11 |" in page
    assert "AdamW 0.0005 (1): 5.69, 0.11" in told


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
