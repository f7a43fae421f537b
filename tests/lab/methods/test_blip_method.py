"""BLIP's own options, and what it shows after each task."""

import pytest
import torch

from bitfreeze import Rules, diagonal_fisher, information_gain
from bitfreeze.lab.methods import make_method
from bitfreeze.lab.methods.blip import _last_gain
from bitfreeze.lab.methods.task_fisher import fisher_batches
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import TaskData
from bitfreeze.lab.training import Settings, Training
from support.small_tasks import STREAM, TASKS, few, prepare, train


def learned(options, tasks=2, after=lambda method, task, data: None):
    torch.manual_seed(0)
    stream = make_stream("digits5")
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, [t.classes for t in stream.tasks])
    method = make_method("blip", options)
    method.build(net, stream.tasks)
    for task in stream.tasks[:tasks]:
        data = stream.load(task)
        for _ in Training(method, net, task, data, Settings(lr=0.1, batch=32, epochs=2), seed=0).epochs():
            pass
        method.end_task(task, data)
        after(method, task, data)
    return method


@pytest.mark.parametrize("rules", ["strict", "released", "text", "algorithm1"])
def test_the_gain_that_is_shown_is_that_of_the_fisher(rules):
    """A second way: the Fisher of the task measured again, and the equation itself. Labels are exact, so both agree.

    Rules that do not move weights at a task's end are compared; released ones are with their snap turned off.
    """
    accumulated = {}

    def check(method, task, data):
        fisher = diagonal_fisher(
            method.net,
            data.train.batches(100),
            lambda x: method.logits(x, task),
            labels="exact",
            samples=len(data.train),
        )
        shown = method.pictures()
        for name in ("backbone.1.weight", "backbone.1.bias"):
            state = method.blip.state_dict()["tensors"][name]
            old = accumulated.get(name, torch.tensor(method.blip.prior * state["prior_scale"]))
            new, number = fisher[name], task.index + 1
            expected = information_gain(new, old, number, method.blip.rules.gain)
            assert torch.allclose(shown[f"{name}/gain"].float(), expected, atol=0.02, rtol=0.002)
            total = number * old + new
            accumulated[name] = total / (number + 1) if method.blip.rules.fisher == "mean" else total
            assert torch.equal(shown[f"{name}/bits"], method.blip.frozen_bits()[name])
            # the centre is where the parameter is, to within its interval
            bound = shown[f"{name}/bound"].item()
            centre = shown[f"{name}/centre"].double() * bound * 2.0**-method.bits
            radius = bound * 2.0 ** -shown[f"{name}/bits"].double()
            if rules != "algorithm1":  # which leaves parameters outside until the next clamp
                value = dict(method.net.named_parameters())[name].detach()
                assert ((value - centre).abs() <= radius * (1 + 1e-6)).all()
                assert torch.all((centre + radius * shown[f"{name}/offset"] / 127 - value).abs() <= radius * 0.5 / 126)

    learned({"rules": rules, "snap": False, "labels": "exact"}, after=check)


def test_snap_and_gain_can_be_chosen_apart_from_the_rules():
    snapped = learned({"rules": "strict", "snap": True}, tasks=1)
    for name, parameter in snapped.net.backbone.named_parameters():
        shown = snapped.pictures()
        unit = shown[f"backbone.{name}/bound"].double() * 2.0**-snapped.bits
        assert torch.equal(parameter.double(), shown[f"backbone.{name}/centre"].double() * unit)
    assert learned({"rules": "strict", "gain": "eq8"}, tasks=1).blip.rules.gain == "eq8"
    assert learned({"rules": "strict"}, tasks=1).blip.rules.gain == "appendix"


def test_samples_are_drawn_from_all_of_the_data():
    """Stored data may be sorted by class, so the first samples would be of one class."""
    data = STREAM.load(TASKS[0]).train
    sorted_by_class = data.subset(data.y.sort().indices)
    drawn = torch.cat([y for _, y in fisher_batches(sorted_by_class, 40, 16)])
    assert len(drawn) == 40
    assert 8 < drawn.sum() < 32
    method, seen = prepare("blip", samples=40), []
    method.logits = lambda x, task: (seen.append(x), type(method).logits(method, x, task))[1]
    method.end_task(TASKS[0], TaskData(sorted_by_class, sorted_by_class, sorted_by_class))
    first = sorted_by_class.take(slice(40))[0]
    assert sum(len(x) for x in seen) >= 40
    assert not any(torch.equal(x, first[: len(x)]) for x in seen)


@pytest.mark.filterwarnings("ignore:no watched weight has changed")  # nothing is trained
def test_each_task_draws_its_labels_from_other_noise():
    """The estimate puts the random state back, so whatever draws samples must move it on."""
    method = prepare("blip")
    states = []
    for task in TASKS[:2]:
        method.end_task(task, few(task, 50))
        states.append(torch.get_rng_state())
    assert not torch.equal(*states)


def test_no_number_of_samples_means_all():
    method = prepare("blip", samples=None)
    method.end_task(TASKS[0], few(TASKS[0], 50))
    assert method.last_report.samples == 50


@pytest.mark.filterwarnings("ignore:no watched weight has changed")  # nothing is trained
def test_what_only_the_pictures_need_is_gone_when_the_next_task_begins():
    method = prepare("blip", rules="strict", fisher_batch=50)
    for task in TASKS[:2]:
        method.end_task(task, few(task, 50))
    assert method.fisher_before
    method.begin_task(TASKS[2], few(TASKS[2], 50))
    assert not method.fisher_before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"levels": True},
            r"method.levels must be left out with method.rules=directions, got True; .* rules by weight",
        ),
        (
            {"rules": "strict", "every": 3},
            r"method.every must be left out with method.rules=strict, got 3; .* directions",
        ),
        ({"budget": 0.2}, "budget must be left out with these rules, got 0.2; use tolerance"),
        ({"rules": "released", "tolerance": 0.2}, "tolerance must be left out with these rules, got 0.2; use budget"),
    ],
)
def test_options_of_other_rules_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_method("blip", options)


# what FACTS lists at the end of section 12


def test_a_huge_prior_under_released_rules_zeroes_the_backbone():
    method = prepare("blip", rules="released", prior=1e30)
    method.end_task(TASKS[0], train(method, TASKS[0]))
    assert not any(parameter.any() for parameter in method.net.backbone.parameters())


def test_a_tiny_prior_holds_every_weight_that_was_used():
    """F0 -> 0 is a fixed backbone wherever the Fisher is above 0."""
    method = prepare("blip", rules="strict", prior=1e-37)
    method.end_task(TASKS[0], train(method, TASKS[0]))
    used = {name: state["fisher"] > 1e-20 for name, state in method.blip.state_dict()["tensors"].items()}
    assert sum(int(mask.sum()) for mask in used.values()) > 100
    before = {name: p.detach().clone() for name, p in method.net.named_parameters()}
    train(method, TASKS[1])
    for name, mask in used.items():
        bound = method.blip.state_dict()["tensors"][name]["bound"]
        moved = (dict(method.net.named_parameters())[name].detach() - before[name]).abs()
        assert moved[mask].max() <= bound * 2.0**-19


def test_all_bits_frozen_leave_a_grid_step_a_task():
    method = prepare("blip", rules="released", prior=1e-37)
    method.end_task(TASKS[0], train(method, TASKS[0]))
    for task in TASKS[1:4]:
        before = {name: p.detach().clone() for name, p in method.net.backbone.named_parameters()}
        frozen = {name.removeprefix("backbone."): bits == 20 for name, bits in method.blip.frozen_bits().items()}
        method.end_task(task, train(method, task))
        for name, parameter in method.net.backbone.named_parameters():
            bound = method.blip.state_dict()["tensors"][f"backbone.{name}"]["bound"]
            assert frozen[name].any()
            moved = (parameter.detach() - before[name]).abs()[frozen[name]].max()
            assert moved <= bound * 2.0**-20 * 1.01


@pytest.mark.parametrize("rules", [Rules.strict(), Rules.text(algorithm1=True)])
def test_the_gain_of_rows_that_were_added_counts_their_own_tasks(rules):
    old, new = torch.rand(5, 3) + 0.5, torch.rand(5, 3)
    began = torch.tensor([0, 0, 0, 1, 1], dtype=torch.int16).unsqueeze(1).expand(5, 3)
    fisher = torch.cat([rules.accumulated(new[:3], old[:3], 2), rules.accumulated(new[3:], old[3:], 1)])
    found = _last_gain(rules, {"fisher": fisher, "tasks": 2, "began": began}, old)
    expected = [information_gain(new[:3], old[:3], 2, rules.gain), information_gain(new[3:], old[3:], 1, rules.gain)]
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=0)
