"""States of release 0.2.0, whose rest was what the directions of both sides leave out."""

import pytest
import torch
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.digest import KEY
from bitfreeze.blip.older_states import with_parts_by_output
from support.held_along_directions import guard_of

SIZES = {"inputs left out": (9, 7), "all inputs": (2, 7)}


def started(inputs: int, outputs: int) -> BLIP:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh(), nn.Linear(outputs, 3))
    blip = BLIP(model, watch=[model[0]], rules=Rules.directions(strongest=3))
    blip.consolidate([torch.randn(40, inputs)], labels="exact")
    return blip


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_their_rest_is_split_and_none_of_it_is_lost(sizes: tuple[int, int]) -> None:
    blip = started(*sizes)
    state = blip.state_dict()
    rest = torch.rand(sizes[1], sizes[0] + 1)
    state["tensors"]["0.weight"]["fisher"] = rest[:, :-1].bfloat16()
    state["tensors"]["0.bias"]["fisher"] = rest[:, -1].bfloat16()
    del state["directions"]["0.weight"]["by_output"], state[KEY]
    before = {name: tensor.clone() for name, tensor in state["tensors"]["0.weight"].items() if name == "fisher"}
    blip.load_state_dict(state)
    [layer] = guard_of(blip).layers.values()
    along = rest.bfloat16().float() @ layer.turning.inputs[0].square()
    assert layer.turning.by_output is not None
    torch.testing.assert_close(layer.turning.by_output[0].float(), along, rtol=0.01, atol=1e-6)
    left = [part.fisher for part in layer.parts]
    if layer.turning.all_inputs:
        assert left == [None, None]
    else:
        expected = (rest - along @ layer.turning.inputs[0].square().T).clamp(min=0)
        found = torch.cat([left[0].float(), left[1].float()[:, None]], 1)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01)
    assert torch.equal(state["tensors"]["0.weight"]["fisher"], before["fisher"])  # the given state stays as it is
    blip.load_state_dict(blip.state_dict())


def test_a_state_of_now_is_taken_as_it_is() -> None:
    blip = started(9, 7)
    [before] = (layer.turning for layer in guard_of(blip).layers.values())
    blip.load_state_dict(blip.state_dict())
    [after] = (layer.turning for layer in guard_of(blip).layers.values())
    assert before.by_output is not None
    assert after.by_output is not None
    assert torch.equal(before.by_output, after.by_output)


def test_a_layer_that_is_absent_is_read_too_and_the_given_state_stays() -> None:
    state = started(9, 7).state_dict()
    state["absent"], state["tensors"] = state["tensors"], {}
    del state["directions"]["0.weight"]["by_output"]
    before = state["absent"]["0.weight"]["fisher"].clone()
    found = with_parts_by_output(state)
    assert "by_output" in found["directions"]["0.weight"]
    assert not torch.equal(found["absent"]["0.weight"]["fisher"], before)
    assert torch.equal(state["absent"]["0.weight"]["fisher"], before)
    assert "by_output" not in state["directions"]["0.weight"]


def test_an_order_of_axes_that_is_none_is_refused() -> None:
    blip = started(9, 7)
    state = blip.state_dict()
    state["directions"]["0.weight"]["inputs_first"] = "yes"
    del state[KEY]
    with pytest.raises(ValueError, match=r"'inputs_first' of '0\.weight' must be true or false, got 'yes'"):
        blip.load_state_dict(state)
