"""The report of a consolidate against the state itself."""

import warnings

import pytest
import torch
from torch import nn

from bitfreeze import BLIP, Consolidation, Rules, diagonal_fisher
from bitfreeze.blip.rules import WeightRules
from bitfreeze.blip.tensor_state import TensorState
from bitfreeze.model.parameters import find_parameters
from support.protected_nets import Net, make_task, train_sgd


def run(tasks: int, seed: int = 0, **settings) -> tuple[BLIP, list[dict[str, torch.Tensor]], list[Consolidation]]:
    """Bits before the first task and after each, and the reports."""
    model = Net(seed)
    blip = BLIP(model, **{"budget": 0.2, **settings})
    blip.attach()
    bits, reports = [blip.frozen_bits()], []
    for task in range(tasks):
        train_sgd(model, task)
        reports.append(blip.consolidate([make_task(task)], forward=lambda x, t=task: model(x, t), labels="exact"))
        bits.append(blip.frozen_bits())
    return blip, bits, reports


@pytest.fixture(scope="module")
def history():
    return run(3)


def test_the_histogram_counts_the_extra_bits_of_every_entry(history) -> None:
    blip, bits, reports = history
    entries = sum(parameter.numel() for parameter in blip.model.parameters())
    for before, after, report in zip(bits[:-1], bits[1:], reports, strict=True):
        assert len(report.histogram) == blip.depth + 1
        assert sum(report.histogram) == entries
        extra = torch.cat([(after[name].int() - before[name].int()).flatten() for name in after])
        assert report.histogram == [int((extra == k).sum()) for k in range(blip.depth + 1)]
        assert report.frozen_now == int(extra.sum()) > 0


def test_each_tensor_is_counted_by_itself(history) -> None:
    blip, bits, reports = history
    for before, after, report in zip(bits[:-1], bits[1:], reports, strict=True):
        assert list(report.tensors) == list(after)
        for name, tensor in report.tensors.items():
            assert tensor.entries == after[name].numel()
            assert tensor.frozen == int(after[name].sum())
            assert tensor.frozen_now == int(after[name].sum()) - int(before[name].sum())
            assert tensor.full_depth_entries == int((after[name] == blip.depth).sum())
            assert tensor.used == pytest.approx(after[name].double().mean().item() / blip.depth)
            assert tensor.used + tensor.left == 1


def test_capacity_used_and_left(history) -> None:
    blip, bits, reports = history
    every = torch.cat([value.flatten() for value in bits[-1].values()]).double()
    assert blip.capacity() == pytest.approx(every.mean().item() / blip.depth)
    assert blip.capacity() == pytest.approx(reports[-1].used)
    used = [report.used for report in reports]
    assert 0 < used[0] <= used[1] <= used[2] <= 1
    assert all(report.used + report.left == 1 for report in reports)


@pytest.mark.filterwarnings("ignore:.*has run out of free bits")
def test_capacity_goes_from_0_to_1() -> None:
    assert BLIP(Net()).capacity() == 0
    model = nn.Linear(6, 3)
    blip = BLIP(model, prior=1e-37)
    report = blip.consolidate([make_task(0)], labels="exact")
    assert blip.capacity() == report.used == 1
    assert report.left == 0
    assert report.full_depth_entries == 21


def test_layers_join_the_tensors_of_a_module(history) -> None:
    blip, bits, reports = history
    layers = reports[-1].layers
    assert sorted(layers) == sorted(["backbone.0", "backbone.2", *(f"heads.{k}" for k in range(4))])
    for layer, used in layers.items():
        both = torch.cat([bits[-1][f"{layer}.{kind}"].flatten() for kind in ("weight", "bias")]).double()
        assert used == pytest.approx(both.mean().item() / blip.depth)
    assert layers["heads.3"] == 0


def test_share_and_touched_are_of_the_parameters_that_the_task_used() -> None:
    model = Net()
    blip = BLIP(model, budget=0.2)
    fisher = diagonal_fisher(model, [make_task(0)], labels="exact")
    report = blip.consolidate([make_task(0)], labels="exact")
    bits = blip.frozen_bits()
    used = {name: value > 0 for name, value in fisher.items()}
    touched = sum(int(mask.sum()) for mask in used.values())
    free = sum(int((20 - bits[name][used[name]].int()).sum()) for name in bits)
    assert sum(tensor.touched_entries for tensor in report.tensors.values()) == touched
    assert sum(tensor.touched_free for tensor in report.tensors.values()) == free
    assert report.share == pytest.approx(report.frozen_now / (20 * touched))


def test_entries_at_an_edge_are_counted() -> None:
    model = Net()
    blip = BLIP(model, budget=0.3)
    with blip.attach():
        assert blip.consolidate([make_task(0)]).at_edge is None
        train_sgd(model, 1, rate=5.0)
    ends, weights = blip.intervals(), dict(model.named_parameters())
    at_an_end = {name: (weights[name] <= low) | (weights[name] >= high) for name, (low, high) in ends.items()}
    report = blip.consolidate([make_task(1)])
    assert {name: tensor.at_edge for name, tensor in report.tensors.items()} == {
        name: int(mask.sum()) for name, mask in at_an_end.items()
    }
    assert report.at_edge == pytest.approx(sum(int(m.sum()) for m in at_an_end.values()) / 266)
    assert report.at_edge > 0


def test_a_task_in_which_nothing_was_held_back_is_told() -> None:
    model = Net()
    blip = BLIP(model, prior=1e30)
    blip.attach()
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=1e-3)
    with pytest.warns(UserWarning, match="no weight reached the edge of its interval in task 2") as told:
        blip.consolidate([make_task(1)])
    assert told[0].filename == __file__  # where consolidate was called


@pytest.mark.filterwarnings("error")
def test_two_ends_of_a_task_without_training_between_are_told() -> None:
    model = Net()
    blip = BLIP(model)
    blip.consolidate([make_task(0)])
    with pytest.warns(UserWarning, match="no watched weight has changed between the ends of tasks 1 and 2") as told:
        blip.consolidate([make_task(0)])
    assert told[0].filename == __file__


def test_what_else_is_told(history) -> None:
    blip, _, reports = history
    assert [report.task for report in reports] == [1, 2, 3]
    assert {report.prior for report in reports} == {blip.prior}
    for report in reports:
        assert report.rules == Rules.strict()
        assert report.samples == 32
        assert 0 < report.fisher_seconds <= report.seconds
    assert {tensor.fisher_way for tensor in reports[0].tensors.values()} >= {"not used by forward"}


def test_samples_stop_the_estimate() -> None:
    model = Net()
    assert BLIP(model).consolidate([make_task(0), make_task(1)]).samples == 64
    assert BLIP(model).consolidate([make_task(0), make_task(1)], samples=40).samples == 40


def test_it_reads_well(history) -> None:
    blip, _, reports = history
    lines = str(reports[-1]).splitlines()
    assert lines[0].startswith("task 3: ")
    for part in (f"{reports[-1].share:.1%}", f"{reports[-1].used:.1%}", "32 samples"):
        assert part in lines[0]
    assert lines[1] == f"  forward predicts {reports[-1].accuracy:.1%} of this data's labels"
    assert lines[2].startswith(f"  {reports[-1].at_edge:.2%} of the coordinates ended the task at the edge")
    assert len(lines) == 4 + len(blip.frozen_bits())
    for line, (name, tensor) in zip(lines[4:], reports[-1].tensors.items(), strict=True):
        assert line.split()[0] == name
        assert f"{tensor.left:.1%}" in line
    assert max(map(len, lines)) <= 140


def test_a_layer_that_has_run_out_is_told_by_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.warns(
        UserWarning, match=r"^'0.weight' and 3 more has run out of free bits and can learn no more; use a"
    ) as told:
        report = BLIP(model, prior=1e-37).consolidate([make_task(0)], labels="exact")
    assert report.left < 0.01
    assert told[0].filename == __file__  # where consolidate was called
    with pytest.warns(UserWarning, match="^'2.bias' has run out of free bits"):
        BLIP(model, watch=["2.bias"], prior=1e-37).consolidate([make_task(0)], labels="exact")


def test_nothing_frozen_is_told_as_it_is() -> None:
    report = BLIP(Net(), prior=1e30).consolidate([make_task(0)])
    assert (report.frozen_now, report.share, report.used) == (0, 0.0, 0.0)
    assert "froze 0.0% of the bits in use" in str(report)


@pytest.mark.parametrize("gain", ["appendix", "eq8"])
def test_rounding_the_total_freezes_whole_bits_of_all_gains_together(gain: str) -> None:
    """And so never more than rounding each, whose excess adds up where tasks tell now more and now less."""
    torch.manual_seed(0)
    slot = find_parameters(nn.Linear(40, 30, bias=False))[0]
    each, total = (
        TensorState(slot, 20, WeightRules(gain=gain, rounding=rounding), bound=1.0, prior_scale=1.0)
        for rounding in ("each", "total")
    )
    prior, seen = 1e-6, torch.zeros(30, 40, dtype=torch.float64)
    most, tasks = torch.zeros(30, 40, dtype=torch.float64), 8
    for task in range(1, tasks + 1):
        fisher = torch.exp(3 * torch.randn(30, 40)) * 1e-4
        fisher[task % 5 :: 5] = 0
        seen += fisher
        mean_fisher = (prior + seen) / (task + 1)
        gains = 0.5 * torch.log2(mean_fisher / prior * (task + 1 if gain == "eq8" else 1))
        most = torch.maximum(most, gains)
        each, total = each.after_task(fisher, prior), total.after_task(fisher, prior)
        far_from_ties = (most - most.round()).abs() > 1e-3
        assert torch.equal(total.frozen_bits()[far_from_ties], most.ceil()[far_from_ties].to(torch.uint8))
        assert (total.frozen_bits() <= each.frozen_bits()).all()
        assert (each.frozen_bits() == total.frozen_bits()).all() or task > 1
    assert each.frozen_bits().float().mean() > total.frozen_bits().float().mean() + 1


@pytest.mark.parametrize(("head", "doubted"), [(0, False), (1, True)])
def test_predictions_that_are_a_guess_are_told(head: int, doubted: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 20)
    y = x[:, :10].argmax(1)
    body, heads = nn.Linear(20, 20), nn.ModuleList([nn.Linear(20, 10), nn.Linear(20, 10)])
    with torch.no_grad():
        body.weight.copy_(torch.eye(20))
        heads[0].weight.copy_(10 * torch.eye(10, 20))
    model = nn.ModuleDict({"body": body, "heads": heads})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = BLIP(model, watch=body).consolidate([(x, y)], forward=lambda x: heads[head](body(x)))
    assert [f"forward predicts {report.accuracy:.1%}" in str(warning.message) for warning in told] == [True] * doubted
    assert report.is_a_guess == doubted
    assert ("hardly more than a guess does: is it the head of this task?" in str(report)) == doubted


@pytest.mark.parametrize("labelled", [True, False])
def test_few_labels_or_none_are_no_evidence_of_a_guess(labelled: bool) -> None:
    x = torch.randn(40, 6)
    model = Net()
    wrong = (model(x).argmax(1) + 1) % 3
    report = BLIP(model).consolidate([(x, wrong) if labelled else x])
    assert report.accuracy == (0 if labelled else None)
    assert not report.is_a_guess


@pytest.mark.filterwarnings("ignore:a tolerance of 1000")
@pytest.mark.parametrize(("tolerance", "doubted"), [(1e-9, True), (1e3, False)])
def test_a_task_that_was_held_back_is_told(tolerance: float, doubted: bool) -> None:
    model = Net()
    blip = BLIP(model, watch=model.backbone, tolerance=tolerance)
    blip.attach()
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=1.0)
    report = blip.consolidate([make_task(1)])
    assert (report.at_edge > 0.5) == doubted
    assert ("held back: has it learned enough?" in str(report)) == doubted
