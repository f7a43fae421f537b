"""The benchmark of PPO compares like with like: both agents are the same network and take as many steps."""

import pytest
import torch

pytest.importorskip("stable_baselines3", reason="needs the extra 'sb3'")
pytest.importorskip("ale_py", reason="needs the extra 'atari'")
from bitfreeze.lab.rl import GameSpec, Settings
from support.scripts import script

ppo = script("benchmarks/ppo")


def test_both_agents_are_the_same_network_and_learn_as_often(monkeypatch):
    settings = Settings(steps=10**9, copies=4, rollout=8, minibatches=2, epochs=3)
    ours, theirs = (
        ppo.our_agent("small", settings, GameSpec(ppo.GAME)),
        ppo.their_agent("small", settings, GameSpec(ppo.GAME)),
    )
    net, policy = ours.method.net, theirs.policy
    pairs = (
        (net.backbone, policy.features_extractor), (net.heads[0], policy.action_net), (net.critics[0], policy.value_net)
    )  # fmt: skip
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in policy.parameters())
    with torch.no_grad():
        for mine, other in pairs:
            for p, q in zip(mine.parameters(), other.parameters(), strict=True):
                q.copy_(p)
    seen = torch.randint(256, (5, 4, 84, 84), dtype=torch.uint8)
    logits, values = net.act(seen, 0)
    torch.testing.assert_close(policy.get_distribution(seen).distribution.logits, logits.log_softmax(1))
    torch.testing.assert_close(policy.predict_values(seen).flatten(), values)

    steps = {id(p): 0 for agent in (net, policy) for p in agent.parameters()}
    step = torch.optim.Adam.step

    def counted(self, *arguments):
        for group in self.param_groups:
            for p in group["params"]:
                steps[id(p)] += 1
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", counted)
    next(ours.updates())
    theirs.learn(settings.batch)
    assert set(steps.values()) == {settings.epochs * settings.minibatches}
