"""The training of a task by PPO: what it plays and learns from, and what must not move."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.rl import PPO, GameSpec, Settings, Step, by_policy, game_scores
from bitfreeze.lab.rl import ppo as ppo_module
from bitfreeze.lab.rl.actions import Choice
from bitfreeze.lab.rl.ppo import Samples, _empty_observations, _rows, ppo_loss
from bitfreeze.lab.tasks import Task, TrainingDiverged

TINY = Settings(
    steps=128, copies=4, rollout=8, epochs=2, minibatches=2, lr=1e-2, clip_rewards=False, states=40, restart=2
)


class Walk:
    """A world small enough to be known: a place on a line, 1 a step to the right; over at 5, cut after 7 steps."""

    shape, actions, dtype = (2,), Choice(2), np.dtype(np.float32)

    def __init__(self, count: int, score: float = 1.0) -> None:
        self.count, self.score = count, score

    def reset(self, seed):
        self.place, self.time = np.random.default_rng(seed).integers(0, 3, self.count), np.zeros(self.count, int)
        return self.see()

    def see(self):
        return np.stack([self.place / 5, self.time / 7], 1).astype(np.float32)

    def step(self, actions):
        self.place, self.time = self.place + 2 * actions - 1, self.time + 1
        ended, cut = self.place >= 5, (self.time >= 7) & (self.place < 5)
        last, over = self.see(), ended | cut
        self.place[over], self.time[over] = 0, 0
        return Step(self.see(), (actions * self.score).astype(np.float32), over, over, cut, last)

    def close(self):
        pass


class Lives(Walk):
    """Games of six steps, a point each, in which a life is lost at the third."""

    def step(self, actions):
        self.time = self.time + 1
        over, lost = self.time == 6, self.time == 3
        self.time[over] = 0
        never = np.zeros(self.count, bool)
        return Step(self.see(), np.ones(self.count, np.float32), over | lost, over, never, self.see())


def prepare(method: str = "ft", tasks: int = 3, settings: Settings = TINY, **options):
    torch.manual_seed(0)
    names = tuple(Task(k, f"walk {k}", 2) for k in range(tasks))
    net = build_network({"kind": "policy_mlp", "hidden": [8, 8]}, (2,), [2] * tasks)
    made = make_method(method, options)
    made.build(net, names)
    return made, names, net


def learn(method, task, settings: Settings = TINY, seed: int = 1) -> PPO:
    ppo = PPO(method, task, Walk(settings.copies), settings, seed)
    for _ in ppo.updates():
        pass
    method.end_task(task, ppo.seen())
    return ppo


def weights(net) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


# observations


@pytest.mark.parametrize(("shape", "kind"), [((2,), np.float32), ((4, 7, 5), np.uint8)])
def test_rows_of_observations_are_what_was_put_there(shape, kind):
    environments = Walk(3)
    environments.shape, environments.dtype = shape, np.dtype(kind)
    x = _empty_observations((6, 3), environments, torch.device("cpu"))
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (6, 3, *shape)).astype(kind))
    for t in range(6):
        x[t].copy_(values[t])
    rows = torch.randperm(18)[:7]
    found = _rows(x.flatten(0, 1), rows)
    assert torch.equal(found, values.flatten(0, 1)[rows])
    if len(shape) == 3:  # as convolutions take them, so that nothing has to be moved
        assert found.is_contiguous(memory_format=torch.channels_last)


# lives


def test_a_lost_life_ends_an_episode_and_not_the_game():
    method, tasks, _ = prepare()
    ppo = PPO(method, tasks[0], Lives(4), TINY, 1)
    ppo._begin_games()
    _, scores = ppo.play()
    assert TINY.rollout == 8
    assert ppo.alive[:, 0].tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    assert scores == [6.0] * 4  # nothing at the lost life
    assert ppo.score.tolist() == [2.0] * 4

    class Place:
        def make(self, count, **options):
            return Lives(count)

    assert game_scores(Place(), lambda seen: np.zeros(len(seen), np.int64), 3, 100, seed=0) == [6.0] * 3


# updates


def test_the_first_minibatch_has_a_ratio_of_one():
    method, tasks, net = prepare()
    ppo = PPO(method, tasks[0], Walk(4), TINY, 1)
    ppo._begin_games()
    samples, _ = ppo.play()
    flat = Samples(*(getattr(samples, name).flatten(0, 1) for name in samples.__dataclass_fields__))
    logits, value = net.act(flat.x, 0)
    chosen = logits.log_softmax(1).gather(1, flat.action[:, None])[:, 0]
    torch.testing.assert_close((chosen - flat.log_p).exp(), torch.ones(32))
    torch.testing.assert_close(value, flat.value)
    spread = torch.randn(32)
    only_policy = Settings(value_weight=0.0, entropy_weight=0.0)
    loss = ppo_loss(chosen, torch.zeros(()), value, flat, spread, flat.value, only_policy)
    assert loss.item() == pytest.approx(-spread.mean().item(), abs=1e-6)


def test_each_epoch_learns_from_every_step_once_in_an_order_of_its_own(monkeypatch):
    method, tasks, _ = prepare()
    runner = PPO(method, tasks[0], Walk(4), TINY, 1)
    runner._begin_games()
    samples, _ = runner.play()
    samples = replace(samples, x=torch.arange(32.0).reshape(8, 4, 1).expand(8, 4, 2))  # steps that can be told apart
    given = []

    def loss(log_p, entropy, value, part, advantage, target, settings):
        given.append((part.x[:, 0].long(), part, advantage, target))
        return ppo_loss(log_p, entropy, value, part, advantage, target, settings)

    monkeypatch.setattr(ppo_module, "ppo_loss", loss)
    runner.learn(samples)
    assert len(given) == TINY.epochs * TINY.minibatches
    orders = [torch.cat([rows for rows, *_ in given[k : k + 2]]) for k in (0, 2)]
    assert all(torch.equal(order.sort().values, torch.arange(32)) for order in orders)
    assert not torch.equal(orders[0], torch.arange(32))
    assert not torch.equal(orders[0], orders[1])
    advantage, value = samples.advantage.flatten(), samples.value.flatten()
    spread = (advantage - advantage.mean()) / (advantage.std() + 1e-5)  # over the whole batch, not a minibatch
    for rows, part, shown, target in given:
        torch.testing.assert_close(shown, spread[rows])
        torch.testing.assert_close(target, (advantage + value)[rows])  # what the critic should have said
        assert torch.equal(part.action, samples.action.flatten()[rows])
        assert torch.equal(part.log_p, samples.log_p.flatten()[rows])
    assert runner.optimizer.defaults["eps"] == TINY.adam_eps


def test_the_learning_rate_falls_in_a_line_to_zero():
    settings = Settings()
    assert settings.updates == 5000
    assert settings.lr_at(0) == 2.5e-4
    assert settings.lr_at(1250) == pytest.approx(2.5e-4 * 0.75)
    assert Settings(anneal=False).lr_at(4999) == 2.5e-4
    method, tasks, _ = prepare()
    rates = [update.lr for update in PPO(method, tasks[0], Walk(4), TINY, 1).updates()]
    assert rates == [pytest.approx(1e-2 * (1 - j / 4)) for j in range(4)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_last_step_to_no_number_is_found_before_anything_is_saved_or_played(bad):
    """Every loss of the update was a number: only the weights tell."""
    method, tasks, net = prepare()
    ppo, steps = PPO(method, tasks[1], Walk(4), TINY, 1), []

    def after_step(task):
        steps.append(task)
        if len(steps) == 3 * TINY.epochs * TINY.minibatches:
            net.get_parameter("heads.1.weight").data[0, 0] = bad

    method.after_step = after_step
    with pytest.raises(TrainingDiverged, match=r"weights must be finite, got -?(nan|inf) at task 2, update 3; lower"):
        list(ppo.updates())
    assert ppo.done == 2
    assert len(steps) == 3 * TINY.epochs * TINY.minibatches


# rollouts


def test_gradients_are_no_longer_than_the_largest_norm(monkeypatch):
    method, tasks, _ = prepare()
    settings = replace(TINY, max_grad_norm=1e-3)
    norms = []

    def note(task):
        grads = [p.grad for p in method.trained(task)]
        norms.append(torch.stack([grad.norm() for grad in grads if grad is not None]).norm().item())

    monkeypatch.setattr(method, "after_step", note)
    learn(method, tasks[0], settings)
    assert norms == pytest.approx([1e-3] * len(norms), rel=1e-3)
    assert len(norms) == settings.updates * settings.epochs * settings.minibatches


def test_games_that_begin_anew_are_other_games(monkeypatch):
    method, tasks, _ = prepare()
    seeds = []
    monkeypatch.setattr(Walk, "reset", lambda self, seed, plain=Walk.reset: (seeds.append(seed), plain(self, seed))[1])
    learn(method, tasks[0])
    assert len(seeds) == len(set(seeds)) == TINY.updates // TINY.restart
    again = list(seeds)
    learn(method, tasks[0])
    assert seeds == [*again, *again]


def test_actions_are_drawn_as_the_policy_has_them_or_the_likeliest_is_taken():
    method, tasks, _ = prepare()
    seen = np.repeat(np.array([[0.4, 0.1]], np.float32), 20_000, 0)
    with torch.no_grad():
        first = method.logits(torch.from_numpy(seen[:1]), tasks[0]).softmax(1)[0, 0].item()
    drawn = by_policy(method, tasks[0], Choice(2), False, 5)(seen)
    assert (drawn == 0).mean() == pytest.approx(first, abs=4 * (first * (1 - first) / len(seen)) ** 0.5)
    assert set(by_policy(method, tasks[0], Choice(2), True, 5)(seen)) == {int(first < 0.5)}


def test_a_game_whose_time_is_up_counts_what_was_still_to_come():
    method, tasks, net = prepare()
    ppo = PPO(method, tasks[0], Walk(4), TINY, 1)
    ppo._begin_games()
    ppo.play()
    walk = Walk(4)
    walk.reset(0)
    walk.place[:] = -9  # far from the end: all are cut at the seventh step
    ppo.environments, ppo.now, ppo.score = walk, walk.see(), np.zeros(4)
    samples, scores = ppo.play()
    with torch.no_grad():
        walk.place, walk.time = -9 + (2 * samples.action[:7] - 1).sum(0).numpy(), np.full(4, 7)
        later = net.act(torch.from_numpy(walk.see()), 0)[1]
    torch.testing.assert_close(ppo.reward[6], samples.action[6] + TINY.gamma * later)
    assert ppo.alive[6].sum() == 0
    assert scores == [float(x) for x in samples.action[:7].sum(0)]


def test_rewards_are_clipped_for_the_learner_and_scores_are_not():
    method, tasks, _ = prepare()
    ppo = PPO(method, tasks[0], Walk(4, score=30.0), Settings(**{**vars(TINY), "clip_rewards": True, "gamma": 0.0}), 1)
    scores = [score for update in ppo.updates() for score in update.scores]
    assert ppo.reward.max() == 1
    assert max(scores) >= 30


def test_what_a_method_is_shown_are_states_of_the_last_rollouts():
    method, tasks, _ = prepare()
    ppo = PPO(method, tasks[0], Walk(4), TINY, 1)
    rollouts = []
    for _ in ppo.updates():
        rollouts.append(ppo.x.flatten(0, 1).clone())
    seen = ppo.seen().train
    assert len(seen) == TINY.states == 40
    last_two = {tuple(row) for row in torch.cat(rollouts[-2:]).tolist()}
    assert {tuple(row) for row in seen.x.tolist()} <= last_two
    assert len(ppo.states) == 64


# methods


@pytest.mark.filterwarnings("ignore:no weight reached the edge")  # a few steps move weights by little
@pytest.mark.parametrize("name", ["ft", "ft_fix", "ewc", "blip", "single"])
def test_heads_of_other_tasks_do_not_move_by_a_bit(name):
    method, tasks, _ = prepare(name)
    whole = method.nets if name == "single" else method.net
    learn(method, tasks[0])
    before = weights(whole)
    learn(method, tasks[1])
    after = weights(whole)
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    own = {key for key in moved if "heads.1." in key or "critics.1." in key}
    assert len(own) == 4
    assert all("backbone" in key for key in moved - own)
    assert bool(moved - own) == (name != "ft_fix")


def test_no_pull_is_fine_tuning():
    """To the last bit, as long as no gradient is clipped: the norm of all of them is rounded otherwise."""
    results, unclipped = [], Settings(**{**vars(TINY), "max_grad_norm": 1e9})
    for name, options in (("ft", {}), ("ewc", {"strength": 0.0}), ("ewc", {"strength": 50.0})):
        method, tasks, net = prepare(name, **options)
        for task in tasks:
            learn(method, task, unclipped)
        results.append(weights(net))
    same = [torch.equal(results[0][key], results[1][key]) for key in results[0]]
    assert all(same)
    assert not all(torch.equal(results[0][key], results[2][key]) for key in results[0])


@pytest.mark.filterwarnings("ignore:no weight reached the edge")  # a few steps move weights by little
def test_blip_holds_after_every_step():
    method, tasks, net = prepare("blip", rules="strict")
    learn(method, tasks[0])
    checked = []
    step = method.after_step

    def after_step(task):
        step(task)
        for name, (low, high) in method.blip.intervals().items():
            value = dict(net.named_parameters())[name]
            assert (low <= value).all()
            assert (value <= high).all()
            checked.append(bool(((value == low) | (value == high)).any()))

    method.after_step = after_step
    for task in tasks[1:]:
        learn(method, task)
    assert len(checked) == 2 * 4 * 2 * 2 * 4  # tasks, updates, epochs, minibatches, tensors of the backbone
    assert any(checked)
    assert method.blip.tasks == 3


# going on


def test_it_goes_on_from_where_games_begin_anew_as_if_nothing_had_been():
    settings = Settings(**{**vars(TINY), "steps": 192})
    method, tasks, net = prepare(settings=settings)
    ppo = PPO(method, tasks[0], Walk(4), settings, 1)
    for _ in ppo.updates():
        if ppo.done == 2:
            assert ppo.can_pause
            saved, state = weights(net), ppo.state_dict()
            state["optimizer"] = {**state["optimizer"], "state": {
                k: {n: v.clone() for n, v in s.items()} for k, s in state["optimizer"]["state"].items()
            }}  # fmt: skip
        assert ppo.can_pause == (ppo.done % 2 == 0)
    expected = weights(net)
    other, _, other_net = prepare(settings=settings)
    other_net.load_state_dict(saved)
    again = PPO(other, tasks[0], Walk(4), settings, 1)
    again.load_state_dict(state)
    for _ in again.updates():
        pass
    assert all(torch.equal(expected[key], value) for key, value in weights(other_net).items())
    assert torch.equal(again.seen().train.x, ppo.seen().train.x)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "training.steps must be a whole number of at least 1, got 0"),
        ({"steps": 100}, "training.steps must be at least 2000, the steps of an update"),
        ({"gamma": 1.5}, "training.gamma must be from 0 to 1"),
        ({"minibatches": 5000}, "training.minibatches must be at most 2000"),
        ({"copies": 1, "rollout": 1}, "training.copies must be at least 2 where rollout is 1"),
        ({"lr": 0.0}, "training.lr must be finite and greater than 0, got 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**change)


def test_cartpole_is_solved():
    from bitfreeze.lab.runs.config import make_config

    config = make_config("control", "ft", changes=["training.steps=40000"])
    settings, spec = config.settings, GameSpec("CartPole-v1")
    environments = spec.make(settings.copies)
    torch.manual_seed(0)
    method, task = make_method("ft", {}), Task(0, "CartPole-v1", 2)
    method.build(build_network(config.network, (4,), [2]), (task,))
    for _ in PPO(method, task, environments, settings, 0).updates():
        pass
    scores = game_scores(spec, by_policy(method, task, Choice(2), True, 0), 50, 500, 12345)
    assert np.mean(scores) > 475
