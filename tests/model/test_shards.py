"""FSDP2 on two processes against one process that has all."""

import pytest
import torch

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import DRIFT_FACTOR
from bitfreeze.fisher import estimate
from support import fsdp_ranks
from support.ddp_ranks import make_net, task_data
from support.ranks import run_ranks_once


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return run_ranks_once(fsdp_ranks.__file__, "all_of_it", tmp_path_factory)[0]


@pytest.fixture
def trained(both):
    return [rank["training"] for rank in both]


@pytest.fixture
def corners(both):
    return [rank["corners"] for rank in both]


def test_the_bits_are_those_of_a_single_process(trained):
    """But for sums that round to the other side of a whole number of bits: counted, and none expected here."""
    for rank in trained:
        assert rank["different"] == [0, 0, 0]
        assert rank["inside"]
        assert rank["still sharded"]


def test_each_rank_keeps_the_state_of_its_shard(trained):
    entries = trained[0]["entries"]
    assert sum(rank["nbytes"] for rank in trained) == 9 * entries
    assert all(rank["nbytes"] < 9 * entries * 0.6 for rank in trained)


def test_reports_are_of_the_whole_model(trained):
    a, b = trained
    assert a["report"] == b["report"]
    histogram, samples, _, used = a["report"]
    assert sum(histogram) == a["entries"]
    assert samples == 101
    frozen = sum(int(bits.sum(dtype=torch.int64)) for bits in a["bits"].values())
    assert a["capacity"] == b["capacity"] == used == frozen / (20 * a["entries"])


def test_the_state_loads_in_a_single_process(trained):
    net = make_net()
    net.load_state_dict(trained[0]["weights"])
    blip = BLIP(net, rules=Rules.strict())
    blip.load_state_dict(trained[0]["state"])
    bits = blip.frozen_bits()
    assert all(torch.equal(bits[name], trained[0]["bits"][name]) for name in bits)
    assert blip.capacity() == trained[0]["capacity"]
    blip.consolidate([task_data(3)[0]])  # the weights are inside the intervals
    assert blip.tasks == 4


def test_a_state_loads_into_shards(trained):
    assert all(rank["again"] for rank in trained)


def test_the_fisher_is_sharded_like_the_parameters(corners):
    net = make_net()
    torch.manual_seed(0)
    expected = estimate(net, task_data(0)[0].split(16))
    for rank in corners:
        for name, value in expected.values.items():
            torch.testing.assert_close(rank["fisher"][name], value, rtol=1e-4, atol=1e-6 * value.max().item())


def _alone(net):
    return BLIP(net, rules=Rules.strict()).consolidate(task_data(0)[0].split(16))


def test_by_default_shards_are_held_entry_by_entry_within_the_tolerance(both):
    a, b = (rank["entry_by_entry"] for rank in both)
    assert a["drifts"] == b["drifts"]
    assert a["drifts"] == pytest.approx([DRIFT_FACTOR * cost for cost in a["costs"]], rel=1e-4)
    assert 0 < min(a["costs"][1:]) <= max(a["costs"]) <= 1e-3 * 1.001
    assert a["at edge"] == b["at edge"]
    assert min(a["at edge"][1:]) > 0
    assert a["directions"] == {}
    assert a["nbytes"] + b["nbytes"] == 8 * a["entries"]


def test_replicas_of_shards_are_counted_once(corners):
    net = make_net()
    torch.manual_seed(0)
    assert corners[0]["hybrid"] == corners[1]["hybrid"] == _alone(net).histogram


def test_what_is_not_supported_says_so(corners):
    for rank in corners:
        assert "must call this together" in rank["alone"]
        assert "straight-through rules need whole parameters" in rank["straight-through"]
        assert "use FSDP2" in rank["first generation"]
        assert "'body.0.weight' has NaN or infinite entries" in rank["infinite on rank 1"]


def test_given_weights_are_never_clipped(corners):
    assert all(rank["widened"][0] == 100.0 < rank["widened"][1] for rank in corners)


def test_the_page_shows_what_works(both):
    pages = [rank["page"] for rank in both]
    assert pages[0] == pages[1]
    assert pages[0]["samples"] == 40
    assert pages[0]["frozen"] > 0
