"""Clamps in blocks of rows: the size of the blocks is no matter."""

import pytest
import torch
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip import row_blocks
from bitfreeze.blip.turned_layer import TurnedLayer
from support.held_along_directions import guard_of


def moved_layer(groups: int, by: float, directions: int | None = 3) -> TurnedLayer:
    """A convolution held along some directions, and moved away from its centre."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=groups), nn.Flatten(), nn.Linear(24, 3)).double()
    blip = BLIP(model, watch=[model[0]], rules=Rules.directions(strongest=directions), tolerance=0.02)
    blip.consolidate([torch.randn(16, 4, 4, 4, dtype=torch.float64)], labels="exact")
    [layer] = guard_of(blip).layers.values()
    with torch.no_grad():
        for part in layer.parts:
            part.local.add_(by * torch.randn_like(part.local))
    return layer


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("by", [1e-9, 0.01, 10.0])
def test_the_size_of_blocks_is_no_matter(monkeypatch: pytest.MonkeyPatch, groups: int, by: float) -> None:
    found = []
    for cache in (1, 2 * 36 * 8, 2**30):  # one row, two rows, all rows
        monkeypatch.setattr(row_blocks, "CACHE", cache)
        layer = moved_layer(groups, by)
        cost = layer.cost()
        undone = layer.hold_()
        numbers = torch.tensor([cost, undone, layer.spent], dtype=torch.float64)
        found.append([numbers, layer.turned(), *(part.local.detach() for part in layer.parts)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-12)


def test_blocks_cover_each_row_once() -> None:
    layer = moved_layer(1, 0.0)
    for part in layer.parts:
        rows = [block.rows for block in row_blocks.row_blocks(part, layer.turning)]
        assert sorted(row for block in rows for row in range(6)[block]) == list(range(6))


@pytest.mark.parametrize("directions", [3, None])
def test_costs_and_coordinates_are_those_of_the_whole_matrix(directions: int | None) -> None:
    layer = moved_layer(1, 0.1, directions)
    change = layer.change()
    turned = layer.turning.turn(change)
    torch.testing.assert_close(layer.turned(), turned, rtol=1e-9, atol=1e-12)
    cost = (layer.turning.fisher * turned.square()).sum() / 2
    if directions is not None:
        assert layer.turning.by_output is not None
        along = change @ layer.turning.inputs
        by_output = along - layer.turning.outputs @ turned
        rest = change - along @ layer.turning.inputs.mT
        cost = cost + (layer.turning.by_output * by_output.square()).sum() / 2
        cost = cost + (layer._rest_fisher() * rest.square()).sum() / 2
    torch.testing.assert_close(layer.cost(), cost, rtol=1e-9, atol=0)
