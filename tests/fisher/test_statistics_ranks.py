"""Statistics of two ranks against one process that has all samples."""

import pytest
import torch

from bitfreeze.fisher.factors import joined
from support import statistics_ranks
from support.per_sample import assert_equal
from support.ranks import run_ranks_once
from support.statistics_ranks import data, make_net, measure


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return run_ranks_once(statistics_ranks.__file__, "all_of_it", tmp_path_factory)[0]


@pytest.mark.parametrize("way", ["plain", "sharded"])
def test_two_ranks_measure_what_one_process_does(both, way):
    expected = measure(make_net(), [data()])
    assert expected["reason"] == ""
    for rank in both:
        assert rank[way].keys() == expected.keys()
        assert (rank[way]["reason"], rank[way]["samples"]) == ("", 37)
        for name in expected.keys() - {"reason", "samples"}:
            assert_equal(rank[way][name], expected[name])


def test_a_rank_may_have_no_samples(both):
    first, second = (rank["one has all"] for rank in both)
    assert first["samples"] == second["samples"] == 37
    for name in first.keys() - {"reason", "samples"}:
        assert_equal(first[name], second[name])


def test_reason_of_one_rank_holds_for_all(both):
    assert [rank["refused"] for rank in both] == ["called 2 times"] * 2


def test_joined_matrix_of_a_sharded_layer_is_whole(both):
    net = make_net()
    for rank in both:
        assert torch.equal(rank["joined"], joined(net.conv))
        assert torch.equal(rank["written"], 2 * net.conv.weight)
