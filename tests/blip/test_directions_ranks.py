"""Directions on two ranks: DistributedDataParallel as one process does it, FSDP2 entry by entry."""

import math

import pytest
import torch

from bitfreeze import BLIP
from bitfreeze.blip.directions import DRIFT_FACTOR
from support import directions_ranks
from support.ddp_ranks import make_net
from support.directions_ranks import RULES, TOLERANCE, for_doubles, learn
from support.protected_nets import assert_same
from support.ranks import run_ranks_once


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two ranks did; they start once, because that takes longest."""
    return run_ranks_once(directions_ranks.__file__, "all_of_it", tmp_path_factory)[0]


@pytest.mark.parametrize("rules", RULES)
def test_two_ranks_end_with_the_same_state_to_the_bit(both, rules):
    first, second = (rank["ddp"][rules] for rank in both)
    assert_same(second, first)


@pytest.mark.parametrize("rules", RULES)
def test_two_ranks_do_what_one_process_does(both, rules):
    net = make_net().double()
    for_doubles(net)
    blip = BLIP(net, rules=RULES[rules], tolerance=TOLERANCE)
    blip.attach()
    reports = learn(net, blip, 0, 1)
    found = both[0]["ddp"][rules]
    torch.testing.assert_close(found["weights"], dict(net.state_dict()), rtol=1e-6, atol=1e-8)
    for mine, theirs in zip(reports, found["reports"], strict=True):
        assert mine["samples"] == theirs["samples"] == 40
        assert mine["ways"] == theirs["ways"]
        assert math.isclose(mine["drift"], theirs["drift"], rel_tol=1e-5, abs_tol=1e-12)
    state = blip.state_dict()
    assert math.isclose(state["prior"], found["state"]["prior"])
    assert list(state["directions"]) == ["body.0.weight", "body.3.weight"]
    for name, saved in state["directions"].items():
        fisher = found["state"]["directions"][name]["fisher"]
        torch.testing.assert_close(fisher, saved["fisher"], rtol=1e-5, atol=1e-9 * saved["fisher"].max().item())


def test_sharded_layers_are_held_entry_by_entry(both):
    for rank in both:
        found = rank["fsdp"]
        assert found["inside"]
        assert not found["state"]["directions"]
        assert all("along directions" not in report["ways"].values() for report in found["reports"])
        assert all(saved["fisher"].shape == saved["centre"].shape for saved in found["state"]["tensors"].values())
    assert_same(both[1]["fsdp"]["state"], both[0]["fsdp"]["state"])
    assert_same(both[1]["fsdp"]["weights"], both[0]["fsdp"]["weights"])


def test_the_reports_of_shards_are_of_the_whole_model(both):
    first, second = (rank["fsdp"] for rank in both)
    assert first["reports"] == second["reports"]
    assert first["drift"] == second["drift"]
    cost = sum(
        0.5 * (saved["fisher"].double() * (first["weights"][name] - saved["centre"]).double().square()).sum()
        for name, saved in first["state"]["tensors"].items()
    )
    assert math.isclose(first["drift"], DRIFT_FACTOR * cost.item(), rel_tol=1e-5)
    assert first["drift"] > 0
    edges = [count for report in first["reports"][1:] for count in report["edges"].values()]
    assert sum(edges) > 0


def test_a_state_along_directions_loads_into_shards(both):
    for rank in both:
        taken = rank["fsdp"]["taken up"]
        assert_same(taken["found"], taken["expected"])
        assert taken["found"]["body.0.bias"].any()
