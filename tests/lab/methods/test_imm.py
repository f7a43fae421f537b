"""IMM: merging as a function, and what it does to a network."""

import pytest
import torch

from bitfreeze.lab.methods.imm import merged
from support.small_tasks import TASKS, expected_squares, few, flat, learn, prepare, train


@pytest.fixture
def some():
    torch.manual_seed(0)
    return [*torch.randn(2, 1000), *torch.rand(2, 1000)]  # two models, two Fishers


def test_merging_equal_models_changes_no_bit(some):
    old, _, fisher, other = some
    for a, b in ((fisher, other), (fisher, 0 * other), (0 * fisher, other), (0 * fisher, 0 * other)):
        assert torch.equal(merged(old, old.clone(), a, b), old)


def test_equal_fishers_give_the_mean(some):
    old, new, fisher, _ = some
    assert torch.allclose(merged(old, new, fisher, fisher), (old + new) / 2, atol=1e-6)


def test_where_one_fisher_is_0_the_other_model_is_taken_as_it_is(some):
    old, new, fisher, _ = some
    nothing = torch.zeros_like(fisher)
    assert torch.equal(merged(old, new, fisher, nothing), old)
    assert torch.equal(merged(old, new, nothing, fisher), new)


def test_where_both_are_0_the_new_weights_stay(some):
    old, new, *_ = some
    nothing = torch.zeros_like(old)
    assert torch.equal(merged(old, new, nothing, nothing), new)


def test_merged_is_the_weighted_mean_and_lies_between(some):
    old, new, fisher, other = some
    result = merged(old, new, fisher, other)
    truth = (fisher.double() * old.double() + other.double() * new.double()) / (fisher.double() + other.double())
    assert torch.allclose(result.double(), truth, atol=1e-6)
    assert (result >= torch.minimum(old, new) - 1e-6).all()
    assert (result <= torch.maximum(old, new) + 1e-6).all()


def test_one_after_another_is_all_at_once():
    torch.manual_seed(1)
    models, fishers = torch.randn(6, 100).double(), torch.rand(6, 100).double()
    result, total = models[0], fishers[0]
    for model, fisher in zip(models[1:], fishers[1:], strict=True):
        result, total = merged(result, model, total, fisher), total + fisher
    assert torch.allclose(result, (fishers * models).sum(0) / fishers.sum(0))


def test_merging_is_written_back_into_the_network():
    """Against brute force: two models, and the Fisher of each from one backward pass a sample and label."""
    method = prepare("imm", labels="exact")
    fishers, models = [], []
    for task in TASKS[:2]:
        train(method, task)
        data = few(task, 30)
        fishers.append(expected_squares(method.net, task, data.train))
        models.append({name: p.detach().double() for name, p in method.net.named_parameters()})
        method.end_task(task, data)
    changed = 0
    for name, p in method.net.named_parameters():
        total = fishers[0][name] + fishers[1][name]
        mean = (fishers[0][name] * models[0][name] + fishers[1][name] * models[1][name]) / total
        truth = torch.where(total > 0, mean, models[1][name])
        assert torch.allclose(p.double(), truth, atol=1e-5), name
        assert torch.allclose(method.fisher[name].double(), total, rtol=1e-4, atol=1e-12), name
        changed += (p.double() - models[1][name]).abs().gt(1e-4).sum().item()
    assert changed > 100


def test_heads_are_not_merged_away():
    """Released code, were its result written back, would set to 0 whatever no task has used yet."""
    method = prepare("imm")
    fresh = [head.weight.detach().clone() for head in method.net.heads]
    learn(method, TASKS[0])
    first = method.net.heads[0].weight.detach().clone()
    train(method, TASKS[1])
    second = method.net.heads[1].weight.detach().clone()
    method.end_task(TASKS[1], few(TASKS[1], 100))
    assert torch.equal(method.net.heads[0].weight, first)
    assert torch.equal(method.net.heads[1].weight, second)
    assert not torch.equal(second, fresh[1])
    assert all(torch.equal(method.net.heads[k].weight, fresh[k]) for k in (2, 3, 4))


def test_the_next_task_starts_from_the_merged_weights_and_is_pulled_to_them():
    method = prepare("imm", strength=3.0)
    learn(method, TASKS[0])
    learn(method, TASKS[1])
    assert all(torch.equal(method.old[name], p) for name, p in method.net.named_parameters())
    with torch.no_grad():
        for p in method.net.parameters():
            p += 0.5
    method.net.zero_grad()
    penalty = method.penalty(TASKS[2])
    penalty.backward()
    assert all(torch.allclose(p.grad, torch.tensor(1.5)) for p in method.net.parameters())  # heads too
    assert penalty.item() == pytest.approx(3 / 2 * 0.25 * flat(method.net).numel(), rel=1e-5)


def test_the_fisher_is_of_the_likelihood_alone():
    """Released code squares gradients that hold those of the pull."""
    fishers = []
    for strength in (0.0, 1e3):
        method = prepare("imm", labels="exact", strength=strength)
        method.end_task(TASKS[0], few(TASKS[0], 30))
        with torch.no_grad():
            for p in method.net.parameters():
                p += 0.1
        method.end_task(TASKS[1], few(TASKS[1], 30))
        fishers.append(method.fisher)
    assert all(torch.equal(fishers[0][name], fishers[1][name]) for name in fishers[0])


def test_released_behaviour_leaves_the_trained_weights_and_keeps_no_fisher():
    method = prepare("imm", merge=False)
    learn(method, TASKS[0])
    train(method, TASKS[1])
    trained = flat(method.net)
    method.end_task(TASKS[1], few(TASKS[1], 30))
    assert torch.equal(flat(method.net), trained)
    assert method.extra_bytes() == trained.nbytes


def test_validation_looks_at_the_pull_too():
    method = prepare("imm", strength=3.0)
    learn(method, TASKS[0])
    with torch.no_grad():
        method.net.heads[1].bias += 1.0
    splits = [(TASKS[1], few(TASKS[1], 50).valid)]
    whole = method.validation_loss(splits, TASKS[1], 25)
    method.old = {}
    assert whole == pytest.approx(method.validation_loss(splits, TASKS[1], 25) + 3.0, rel=1e-5)  # 3/2 * two entries


@pytest.mark.parametrize("options", [{"strength": -0.1}, {"labels": "drawn"}, {"samples": 0}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        prepare("imm", **options)
