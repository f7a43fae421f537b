"""Trees: what is encoded comes back from JSON and tensors alone."""

import json

import pytest
import torch

from bitfreeze.model.trees import decode, encode
from support.protected_nets import assert_same, protected


def test_a_state_comes_back() -> None:
    _, blip = protected()
    state = {"blip": blip.state_dict(), "several": [torch.arange(3), {"deep": None, 4: True}], "infinite": float("inf")}
    tree, tensors = encode(state)
    back = decode(json.loads(json.dumps(tree)), tensors)
    assert back["several"][1] == {"deep": None, 4: True}
    assert torch.equal(back["several"][0], torch.arange(3))
    assert back["infinite"] == float("inf")
    assert_same(back["blip"], state["blip"])


def test_tensors_are_copies() -> None:
    weights = torch.zeros(3)
    _, tensors = encode({"w": weights})
    weights += 1
    assert tensors["/w"].tolist() == [0, 0, 0]


def test_what_is_neither_is_named() -> None:
    with pytest.raises(TypeError, match="state must be tensors and plain values, got a set at '/a/0'"):
        encode({"a": [{1, 2}]})
