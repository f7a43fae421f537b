"""What an actor's outputs say of actions, against torch.distributions; and learning with numbers as actions."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from bitfreeze import diagonal_fisher
from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.rl import PPO, Settings, Step, by_policy
from bitfreeze.lab.rl.actions import Choice, Numbers
from bitfreeze.lab.tasks import Task


def torch_distribution(actions, outputs):
    if isinstance(actions, Choice):
        return Categorical(logits=outputs)
    return Independent(Normal(outputs[:, : actions.count], outputs[:, actions.count :].exp()), 1)


KINDS = [Choice(4), Numbers(1), Numbers(3)]


@pytest.mark.parametrize("actions", KINDS, ids=str)
def test_probabilities_and_entropies_are_those_of_torch(actions):
    outputs = torch.randn(50, actions.outputs, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    truth = torch_distribution(actions, outputs)
    drawn = actions.draw(outputs, torch.Generator().manual_seed(1))
    assert drawn.shape == actions.empty(50).shape
    assert drawn.dtype == actions.empty(50).dtype
    torch.testing.assert_close(actions.log_prob(outputs, drawn), truth.log_prob(drawn))
    torch.testing.assert_close(actions.entropy(outputs), truth.entropy())
    assert (truth.log_prob(actions.likeliest(outputs)) >= truth.log_prob(drawn)).all()
    gap = actions.likelihood(outputs).log_prob(drawn) - truth.log_prob(drawn)
    torch.testing.assert_close(gap, gap[:1].expand(50))  # equal but for a constant, which has no gradient


@pytest.mark.parametrize("actions", KINDS, ids=str)
def test_what_is_drawn_has_the_distribution_it_is_drawn_from(actions):
    outputs = torch.tensor([[0.5, -0.3, 0.2, -1.0, 0.3, 0.1][: actions.outputs]]).expand(20_000, -1)
    drawn = actions.draw(outputs, torch.Generator().manual_seed(0)).double()
    truth = torch_distribution(actions, outputs[:1].double())
    if isinstance(actions, Choice):
        share = torch.bincount(drawn.long(), minlength=4) / len(drawn)
        torch.testing.assert_close(share.double(), truth.probs[0], atol=0.015, rtol=0)
    else:
        torch.testing.assert_close(drawn.mean(0), truth.mean[0], atol=0.04, rtol=0)
        torch.testing.assert_close(drawn.std(0), truth.stddev[0], atol=0.04, rtol=0)


@pytest.mark.parametrize("actions", KINDS, ids=str)
def test_random_play_covers_all_there_is(actions):
    played = actions.at_random(4000, np.random.default_rng(0))
    assert played.shape == tuple(actions.empty(4000).shape)
    if isinstance(actions, Choice):
        assert (np.bincount(played) > 900).all()
    else:
        assert (np.abs(played.mean(0)) < 0.05).all()
        assert np.abs(played).max() <= 1
        assert np.abs(played).max() > 0.99


class Target:
    """One step a game: 1 minus the distance of what is done from half of what is seen, with the sign given."""

    shape, dtype = (1,), np.dtype(np.float32)

    def __init__(self, count: int, sign: float = 1.0) -> None:
        self.count, self.sign, self.actions = count, sign, Numbers(1)

    def reset(self, seed):
        self.random = np.random.default_rng(seed)
        return self.see()

    def see(self):
        self.now = self.random.uniform(-1, 1, (self.count, 1)).astype(np.float32)
        return self.now

    def step(self, actions):
        reward = 1 - np.abs(actions - self.sign * self.now / 2)[:, 0]
        every, none = np.ones(self.count, bool), np.zeros(self.count, bool)
        return Step(self.see(), reward.astype(np.float32), every, every, none, self.now)

    def close(self):
        pass


SETTINGS = Settings(
    steps=16384, copies=16, rollout=32, epochs=4, minibatches=4, lr=3e-3, clip=0.2, clip_rewards=False,
    entropy_weight=0.0, states=500, restart=0,
)  # fmt: skip


def distance(method, task, sign):
    seen = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    done = by_policy(method, task, Numbers(1), True, 0)(seen)
    return float(np.abs(done - sign * seen / 2).mean())


@pytest.mark.parametrize("name", ["ft", "blip", "ewc"])
def test_numbers_are_learned_and_kept(name):
    """Two games that ask for the opposite; each has an actor of its own on one backbone."""
    torch.manual_seed(0)
    actions = Numbers(1)
    tasks = tuple(Task(k, f"target {k}", actions.outputs, actions.likelihood) for k in range(2))
    net = build_network({"kind": "policy_mlp", "hidden": [16, 16]}, (1,), [actions.outputs] * 2)
    method = make_method(
        name, {"strength": 100.0} if name == "ewc" else {"rules": "strict", "budget": 0.3} if name == "blip" else {}
    )
    method.build(net, tasks)
    for task, sign in zip(tasks, (1.0, -1.0), strict=True):
        ppo = PPO(method, task, Target(16, sign), SETTINGS, seed=1)
        for _ in ppo.updates():
            pass
        states = ppo.seen()
        assert states.train.y.shape == (500, 1)
        method.end_task(task, states)
        assert distance(method, task, sign) < 0.1  # doing nothing is 0.26 away
    if name != "ft":
        assert distance(method, tasks[0], 1.0) < 0.15


def test_the_fisher_is_that_of_the_normal_distribution():
    """E of the squared score by torch.distributions and many draws, against the closed form of ``labels='exact'``."""
    torch.manual_seed(0)
    actions, net = Numbers(2), torch.nn.Linear(3, 4)
    x = torch.randn(5, 3)
    found = diagonal_fisher(net, [x], lambda x: actions.likelihood(net(x)), labels="exact")
    total = torch.zeros(4)
    random = torch.Generator().manual_seed(1)
    for row in x:
        outputs = net(row[None])
        drawn = actions.draw(outputs.detach().expand(4000, -1), random)
        for k in range(2):
            mean, scale = outputs[0, k].detach(), outputs[0, 2 + k].detach().exp()
            total[k] += ((drawn[:, k] - mean) / scale**2).square().mean() / 5
            total[2 + k] += (((drawn[:, k] - mean) / scale).square() - 1).square().mean() / 5
    torch.testing.assert_close(found["bias"], total, rtol=0.1, atol=0)
