"""Two processes together against one: the Fisher, failures, and a user's own loop with DistributedDataParallel."""

import pytest
import torch

from bitfreeze.fisher import estimate
from bitfreeze.model.ranks import Ranks, current_ranks
from support import ddp_ranks
from support.ddp_ranks import make_net, task_data
from support.ranks import run_ranks_once


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two ranks did; they start once, for that takes longest."""
    return run_ranks_once(ddp_ranks.__file__, "all_of_it", tmp_path_factory)[0]


@pytest.fixture
def shared(both):
    return [rank["ways_of_sharing"] for rank in both]


@pytest.fixture
def trained(both):
    return [rank["ddp"] for rank in both]


def alone(**options):
    net = make_net()
    torch.manual_seed(5)
    return estimate(net, task_data(0, 37)[0].split(8), **options)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("uneven", {}),
        ("first 20", {"samples": 20}),
        ("first 1", {"samples": 1}),
        ("generator", {"generator": 7}),
        ("exact", {"labels": "exact"}),
        ("alone", {}),
    ],
)
def test_the_fisher_does_not_depend_on_the_number_of_ranks(shared, way, options):
    if "generator" in options:
        options = {"generator": torch.Generator().manual_seed(options["generator"])}
    expected = alone(**options)
    for rank in shared:
        values, samples, rules = rank["fisher"][way]
        assert samples == expected.samples
        assert rules.keys() == expected.ways.keys()
        if way == "alone" and rank is shared[1]:
            continue  # its own random state: other draws
        for name, value in expected.values.items():
            torch.testing.assert_close(values[name], value, rtol=1e-4, atol=1e-6 * value.max().item())


def test_a_rank_may_have_no_samples(shared):
    (a, count, rules), (b, _, _) = (rank["fisher"]["one has all"] for rank in shared)
    assert count == 37
    assert rules["body.0.weight"] == "rule Linear.weight"
    assert all(torch.equal(a[name], b[name]) and a[name].any() for name in a)


def test_all_ranks_get_the_same_bytes(shared):
    for way in ("uneven", "first 20", "generator", "exact"):
        a, b = (rank["fisher"][way][0] for rank in shared)
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_random_state_is_left_alone(shared):
    torch.manual_seed(5)
    assert torch.equal(shared[0]["random state"], torch.get_rng_state())


def test_talk(shared):
    for rank in shared:
        assert rank["gathered"] == [{"rank": k, "text": "ä" * (10 * k), "number": 0.1} for k in range(2)]
        assert torch.equal(rank["sum"], 3 * torch.arange(6.0).reshape(2, 3).T)
        assert torch.equal(rank["first"], torch.zeros(2))


def test_rank_0_decides(shared):
    assert not any(value.any() for rank in shared for value in rank["decided"].values())


def test_without_a_process_group_there_is_one_rank():
    assert current_ranks() == Ranks(1, 0)
    assert current_ranks().gather({"any": "thing"}) == [{"any": "thing"}]
    assert torch.equal(current_ranks().sum_(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize(("total", "count"), [(0, 3), (1, 3), (7, 2), (12, 5)])
def test_shares_are_dealt_round(total, count):
    dealt = [[place for place in range(total) if place % count == index] for index in range(count)]
    assert [Ranks(count, index).share(total) for index in range(count)] == [len(hand) for hand in dealt]


def test_what_fails_on_one_rank_is_told_on_all(both):
    first, second = (rank["failures"] for rank in both)
    assert first["bad data on rank 1"].startswith("RankFailed: rank 1 of 2 failed, so all ranks stop: ValueError: ")
    assert second["bad data on rank 1"].startswith("ValueError: the log-likelihood is not finite")
    assert "OSError: the disk is gone" in first["loader of rank 1 breaks"]
    assert second["loader of rank 1 breaks"] == "OSError: the disk is gone"
    assert first["no samples at all"] == second["no samples at all"]
    assert first["no samples at all"].startswith("ValueError: data must hold at least one sample, got no samples")
    assert "labels must be 'sample', 'exact' or 'true', got 'none'" in second["labels are not known on rank 0"]
    for rank in (first, second):
        assert (
            "'body.0.weight' must have the same values on all ranks, got others on rank 1"
            in rank["weights of rank 1 differ"]
        )
        assert "1 entries of 'body.0.weight' lie outside their interval" in rank["outside on rank 1"]


def test_ranks_may_have_different_numbers_of_batches_though_ddp_sends_buffers(both):
    a, b = (rank["buffers"] for rank in both)
    assert a["samples"] == b["samples"] == 12
    assert torch.equal(a["gradient"], b["gradient"])


def test_the_page_shows_what_works(both):
    expected = {"samples": 101, "task": 2, "names": ["weight"]}
    assert [rank["page"] for rank in both] == [expected, expected]


def test_ddp_ranks_stay_equal_for_a_thousand_steps(trained):
    a, b = trained
    assert a["reports"] == b["reports"]
    assert [samples for _, samples, _, _ in a["reports"]] == [101] * 3
    assert all(torch.equal(a["parameters"][name], b["parameters"][name]) for name in a["parameters"])
    for name, state in a["state"]["tensors"].items():
        for key in ("bits", "centre", "fisher"):
            assert torch.equal(state[key], b["state"]["tensors"][name][key])
    assert a["capacity"] == b["capacity"] > 0.05


def test_ddp_freezes_the_bits_of_a_single_process(trained):
    """But for sums that round to the other side of a whole number of bits: counted, and none expected here."""
    assert trained[0]["total"] > 180
    assert trained[0]["different"] == [0, 0, 0]
