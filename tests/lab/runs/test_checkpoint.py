"""Checkpoints: what goes in comes out, whole or not at all."""

import pytest
import torch

from bitfreeze.lab.runs.checkpoint import load_checkpoint, next_number, save_checkpoint

STATE = {
    "weights": {"a.b": torch.randn(3, 4), "empty": torch.zeros(0)},
    "optimizer": [{"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "params": [0, 1]}]}],
    "random": torch.get_rng_state(),
    "nothing": None,
    "flag": True,
    "infinite": float("inf"),
}


def assert_equal(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


def test_round_trip_and_only_two_are_kept(tmp_path):
    for number in range(4):
        save_checkpoint(tmp_path, number, {**STATE, "number": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003"]
    found = load_checkpoint(tmp_path)
    assert found.number == 3
    state = found.state
    assert_equal({**STATE, "number": 3}, state)


@pytest.mark.parametrize("damage", ["cut", "flip", "no tree", "no tensors", "bad tree", "a list"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, damage):
    for number in (5, 6):
        save_checkpoint(tmp_path, number, {**STATE, "number": number})
    tensors, tree = tmp_path / "000006/state.safetensors", tmp_path / "000006/state.json"
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    actions = {
        "cut": lambda: tensors.write_bytes(tensors.read_bytes()[:-5]),
        "flip": lambda: tensors.write_bytes(data),
        "no tree": tree.unlink,
        "no tensors": tensors.unlink,
        "bad tree": lambda: tree.write_text(tree.read_text()[:-9]),
        "a list": lambda: tree.write_text("[]"),
    }
    actions[damage]()
    with pytest.warns(UserWarning, match="000006 is damaged"):
        found = load_checkpoint(tmp_path)
    assert (found.number, found.state["number"]) == (5, 5)


def test_when_none_is_whole_new_ones_take_their_place(tmp_path):
    for number in (11, 12):
        save_checkpoint(tmp_path, number, STATE)
        (tmp_path / f"{number:06d}/state.safetensors").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="000012 is damaged .*; the one before it is used"),
        pytest.warns(UserWarning, match="000011 is damaged .*; the run begins again"),
    ):
        assert load_checkpoint(tmp_path) is None
    for marked in range(2):
        save_checkpoint(tmp_path, next_number(tmp_path), {**STATE, "marked": marked})
        found = load_checkpoint(tmp_path)
        assert (found.number, found.state["marked"]) == (13 + marked, marked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000013", "000014"]


def test_nothing_there():
    from pathlib import Path

    assert load_checkpoint(Path("no such folder")) is None


def test_what_is_not_plain_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="got a set at '/x'"):
        save_checkpoint(tmp_path / "c", 0, {"x": {1, 2}})
    assert not (tmp_path / "c").exists()
