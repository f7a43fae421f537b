"""Methods whose network is not told the task: each trains there, or is refused."""

import pytest
import torch
import torch.nn.functional as F

from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import Batch
from bitfreeze.lab.training import Settings, Training, accuracies, accuracy

SETTINGS = Settings(lr=0.1, batch=32, epochs=2)
UNTOLD = ("domain", "class")
ABLE = [(name, scenario) for name in methods for scenario in UNTOLD if scenario in methods[name].record.scenarios]


def prepare(name, scenario, **options):
    torch.manual_seed(0)
    stream = make_stream("digits5", scenario=scenario)
    classes = [task.classes for task in stream.tasks]
    net = build_network({"kind": "mlp", "hidden": [32]}, stream.shape, classes, scenario)
    method = make_method(name, options)
    return stream, method, method.build(net, stream.tasks)


def learn(stream, method, net, task):
    data = stream.load(task)
    for _ in Training(method, net, task, data, SETTINGS, seed=task.index).epochs():
        pass
    method.end_task(task, data)


def loss_of(stream, method, task):
    method.net.eval()
    method.net.seen = task.index + 1
    x, y = stream.load(task).train.take(slice(None))
    with torch.no_grad():
        return F.cross_entropy(method.logits(x, task), y)


def weights(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", methods)
@pytest.mark.parametrize("scenario", UNTOLD)
def test_a_method_that_needs_the_task_is_refused_in_one_sentence(name, scenario):
    if scenario not in methods[name].record.scenarios:
        with pytest.raises(ValueError, match=f"^{name} must be told the task, which stream.scenario={scenario} does"):
            make_config("digits5", name, changes=[f"stream.scenario={scenario}"])
        assert "stream.scenario=task" not in make_config("digits5", name, changes=["stream.scenario=task"]).changes
    else:
        assert make_config("digits5", name, changes=[f"stream.scenario={scenario}"]).stream_options["scenario"]


def test_methods_that_choose_parts_by_the_task_need_it():
    for name in ("acl", "acl_r", "hat", "single"):
        assert methods[name].record.scenarios == ("task",)
    assert len(ABLE) >= 22


@pytest.mark.parametrize(("name", "scenario"), ABLE)
def test_learns_and_its_state_goes_into_a_new_object(name, scenario):
    stream, method, net = prepare(name, scenario)
    first, second = stream.tasks[:2]
    learn(stream, method, net, first)
    assert accuracy(method, net, first, stream.load(first).test, 500) > 80
    saved, state, random = weights(net), method.state_dict(), torch.get_rng_state()
    before = loss_of(stream, method, second)
    learn(stream, method, net, second)
    assert loss_of(stream, method, second) < before
    expected = weights(net)
    stream, other, other_net = prepare(name, scenario)
    if other.record.rereads:
        other.recall(first, stream.load(first))
    other_net.load_state_dict(saved)
    other.load_state_dict(state)
    torch.set_rng_state(random)
    learn(stream, other, other_net, second)
    assert same(weights(other_net), expected)


@pytest.mark.parametrize(("name", "scenario"), ABLE)
def test_the_shared_head_goes_on_learning_and_parts_of_later_tasks_do_not_move(name, scenario):
    stream, method, net = prepare(name, scenario)
    learn(stream, method, net, stream.tasks[0])
    before = weights(net)
    learn(stream, method, net, stream.tasks[1])
    after = weights(net)
    moved = {key.split(".")[1] for key in after if "heads." in key and not torch.equal(after[key], before[key])}
    assert moved == ({"0"} if scenario == "domain" else {"0", "1"})


@pytest.mark.parametrize("name", ["ft", "ewc", "lwf", "blip"])
def test_weight_decay_leaves_parts_of_later_tasks_alone(name):
    stream, method, net = prepare(name, "class", weight_decay=0.1)
    before = weights(net)
    learn(stream, method, net, stream.tasks[0])
    moved = {key for key, value in weights(net).items() if "heads." in key and (value != before[key]).any()}
    assert moved == {"heads.0.weight", "heads.0.bias"}


@pytest.mark.parametrize("name", ["er", "joint"])
def test_samples_of_earlier_tasks_keep_one_growing_head_right(name):
    def last_row(name):
        stream, method, net = prepare(name, "class")
        for task in stream.tasks[:3]:
            learn(stream, method, net, task)
        seen = stream.tasks[:3]
        return [accuracies(method, net, task, stream.load(task).test, 500, seen).untold for task in seen]

    plain, kept = last_row("ft"), last_row(name)
    assert max(plain[:2]) < 20
    assert min(kept) > 60


def test_the_loss_is_the_cross_entropy_over_all_classes_so_far():
    stream, method, net = prepare("ft", "class")
    learn(stream, method, net, stream.tasks[0])
    learn(stream, method, net, stream.tasks[1])
    x, y = stream.load(stream.tasks[0]).test.take(slice(0, 9))
    h = net.backbone(x)
    scores = torch.cat([h @ net.heads[k].weight.T + net.heads[k].bias for k in (0, 1)], 1)
    expected = -scores.log_softmax(1)[torch.arange(9), y].mean()
    torch.testing.assert_close(method.loss(Batch(x, y, stream.tasks[0])), expected)


@pytest.mark.parametrize("scenario", UNTOLD)
def test_lwf_distils_the_scores_that_the_network_had_before(scenario):
    stream, method, net = prepare("lwf", scenario, strength=1.5, temperature=2.0)
    for task in stream.tasks[:2]:
        learn(stream, method, net, task)
    old = weights(net)
    task = stream.tasks[2]
    data = stream.load(task)
    for _ in Training(method, net, task, data, SETTINGS, seed=0).epochs():
        pass
    x, y = data.train.take(slice(0, 9))

    def scores(state, heads):
        h = F.relu(x.flatten(1) @ state["backbone.1.weight"].T + state["backbone.1.bias"])
        return torch.cat([h @ state[f"heads.{k}.weight"].T + state[f"heads.{k}.bias"] for k in heads], 1)

    heads, before = ([0, 1, 2], [0, 1]) if scenario == "class" else ([0], [0])
    new, targets = scores(weights(net), heads), scores(old, before)
    kept = new[:, : targets.shape[1]]
    distilled = -((targets / 2).softmax(1) * (kept / 2).log_softmax(1)).sum(1).mean()
    expected = F.cross_entropy(new, y) + 1.5 * distilled
    torch.testing.assert_close(method.loss(Batch(x, y, task)), expected)


@pytest.mark.parametrize("scenario", UNTOLD)
def test_agem_remembers_samples_with_their_labels(scenario):
    stream, method, net = prepare("agem", scenario)
    for task in stream.tasks[:3]:
        learn(stream, method, net, task)
    drawn = method._draw(stream.tasks[3])
    assert set(drawn) == {0, 1, 2}
    for index, (x, y) in drawn.items():
        train = stream.load(stream.tasks[index]).train
        every, labels = train.take(slice(None))
        for sample, label in zip(x, y, strict=True):
            assert label in labels[(every == sample).flatten(1).all(1)]


@pytest.mark.parametrize("scenario", UNTOLD)
def test_ewc_measures_the_head_that_tasks_share(scenario):
    stream, method, net = prepare("ewc", scenario)
    learn(stream, method, net, stream.tasks[0])
    assert method.fisher["heads.0.weight"].any()
    learn(stream, method, net, stream.tasks[1])
    used = ["heads.0.bias"] if scenario == "domain" else ["heads.0.bias", "heads.1.bias"]
    biases = {name: value for name, value in method.fisher.items() if name.startswith("heads") and value.ndim == 1}
    assert [name for name, value in biases.items() if value.any()] == used


def test_ucb_slows_what_earlier_tasks_have_trained_and_not_a_new_part():
    for scenario, expected in {"task": set(), "domain": {"heads.0"}, "class": {"heads.0", "heads.1"}}.items():
        stream, method, net = prepare("ucb", scenario)
        Training(method, net, stream.tasks[2], stream.load(stream.tasks[2]), SETTINGS, seed=0)
        assert {name.rpartition(".")[0] for name in method.sigma} == {"backbone.1", *expected}


# blip holds the head that tasks share like any other layer


@pytest.mark.parametrize("rules", ["directions", "strict"])
@pytest.mark.parametrize("scenario", ["task", *UNTOLD])
def test_blip_freezes_bits_of_the_heads_that_learned_tasks_share(rules, scenario):
    stream, method, net = prepare("blip", scenario, rules=rules)
    for task in stream.tasks[:2]:
        learn(stream, method, net, task)
    frozen = {name for name, bits in method.blip.frozen_bits().items() if bits.any() and name.endswith("weight")}
    shared = {"task": set(), "domain": {"heads.0.weight"}, "class": {"heads.0.weight", "heads.1.weight"}}[scenario]
    assert frozen == {"backbone.1.weight", *shared}


@pytest.mark.parametrize("rules", ["directions", "strict"])
@pytest.mark.parametrize("scenario", UNTOLD)
def test_blip_moves_the_shared_head_less_than_fine_tuning_does(rules, scenario):
    def change(name, **options):
        stream, method, net = prepare(name, scenario, **options)
        learn(stream, method, net, stream.tasks[0])
        before = net.heads[0].weight.detach().clone()
        learn(stream, method, net, stream.tasks[1])
        return (net.heads[0].weight - before).norm().item()

    assert 0 < change("blip", rules=rules) < 0.7 * change("ft")


@pytest.mark.parametrize("name", ["gpm", "sgp"])
@pytest.mark.parametrize("scenario", UNTOLD)
def test_projections_hold_the_shared_head_too(name, scenario):
    stream, method, net = prepare(name, scenario, threshold=0.9, increment=0.0)
    for task in stream.tasks[:2]:
        learn(stream, method, net, task)
    held = {layer for layer, basis in method.bases.items() if basis.shape[1]}
    assert held == ({"backbone.1", "heads.0"} if scenario == "domain" else {"backbone.1", "heads.0", "heads.1"})


def test_gpm_leaves_scores_of_the_shared_head_as_they_were():
    """With all of the energy held, no step changes what the head makes of features that earlier tasks had."""
    stream, method, net = prepare("gpm", "domain", threshold=1.0, samples=1000)
    learn(stream, method, net, stream.tasks[0])
    x, _ = stream.load(stream.tasks[0]).train.take(slice(None))
    with torch.no_grad():
        before = net(x, 0)
    learn(stream, method, net, stream.tasks[1])
    with torch.no_grad():
        torch.testing.assert_close(net(x, 0), before, atol=2e-4, rtol=1e-4)
