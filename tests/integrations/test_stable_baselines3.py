"""The callback inside Stable-Baselines3's own PPO."""

from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3", reason="the extra 'sb3' is not installed")

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO

from bitfreeze import BLIP
from bitfreeze.integrations.stable_baselines3 import BLIPCallback
from bitfreeze.integrations.state_file import load_state, save_state
from support.doc_blocks import run_block
from support.protected_nets import assert_detached_after_failing, assert_inside, assert_same, entries_at_an_end


class Echo(gymnasium.Env):
    """Ends after ten steps; observations and rewards are noise."""

    def __init__(self, actions: spaces.Space, observations: spaces.Space | None = None) -> None:
        self.action_space = actions
        self.observation_space = observations or spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left = 10
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), float(self.np_random.normal()), self.left == 0, False, {}


def ppo(env: gymnasium.Env, algorithm=PPO, **options) -> PPO:
    sizes = {"n_steps": 32} | ({"batch_size": 16, "n_epochs": 2} if algorithm is PPO else {})
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    return algorithm(policy, env, seed=0, device="cpu", learning_rate=1e-2, **sizes, **options)


def test_more_is_kept_with_the_callback() -> None:
    plain = run_block("how-to/integrations.md", "Stable-Baselines3", {", callback=callback": ""})
    names = run_block("how-to/integrations.md", "Stable-Baselines3")
    assert min(names["learned"]) > 100  # of at most 500 steps; a cart that is steered at random stays up for 22
    assert names["kept"] > 200
    assert plain["kept"] < 50
    assert names["blip"].tasks == 2


ACTIONS = {
    "categorical": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3]),
    "yes or no": spaces.MultiBinary(2),
    "normal": spaces.Box(-1, 1, (2,), np.float32),
}


@pytest.mark.parametrize("actions", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_kinds_of_actions(actions: spaces.Space, algorithm: type) -> None:
    model = ppo(Echo(actions), algorithm)
    blip = BLIP(model.policy, budget=0.3)
    callback = BLIPCallback(blip, samples=40)
    for task in range(2):
        model.learn(96, callback=callback)
        assert callback.report.samples == 40
        assert blip.tasks == task + 1
        assert_inside(blip)
    assert entries_at_an_end(blip) > 0  # the second task has pushed against the intervals of the first
    bits = blip.frozen_bits()
    assert bits["action_net.weight"].any()
    assert not bits["value_net.weight"].any()
    assert ("log_std" in bits) == (actions is ACTIONS["normal"])


def test_the_fisher_of_a_normal_policy_is_the_closed_form() -> None:
    """That of log sigma is 2 for each action, whatever the network."""
    model = ppo(Echo(ACTIONS["normal"]))
    blip = BLIP(model.policy, prior=1e-3)
    model.learn(1024, callback=BLIPCallback(blip, samples=1000))
    saved = blip.state_dict()["tensors"]["log_std"]
    fisher = 2 * saved["fisher"] - 1e-3 * saved["prior_scale"]  # F_{0:1} is the mean of the prior's and the task's
    assert fisher.tolist() == pytest.approx([2, 2], rel=0.3)


def test_the_newest_observations_are_used() -> None:
    model = ppo(Echo(ACTIONS["categorical"]))
    callback = BLIPCallback(BLIP(model.policy), samples=40)
    seen, kept = [], []
    forget, remember = callback._on_training_end, callback._on_rollout_end
    callback._on_rollout_end = lambda: (seen.append(model.rollout_buffer.observations.copy()), remember())[1]
    callback._on_training_end = lambda: (kept.extend(callback._batches()), forget())[1]
    model.learn(160, callback=callback)
    assert len(seen) == 5
    expected = np.concatenate([seen[4][:, 0], seen[3][:, 0]])
    np.testing.assert_array_equal(torch.cat([batch for (batch,) in kept]).numpy(), expected)


def test_observations_of_several_parts() -> None:
    parts = spaces.Dict({"place": spaces.Box(-1, 1, (3,), np.float32), "kind": spaces.Discrete(4)})
    model = ppo(Echo(ACTIONS["categorical"], parts))
    callback = BLIPCallback(BLIP(model.policy), samples=50)
    model.learn(96, callback=callback)
    assert callback.report.samples == 50


def test_save_and_go_on(tmp_path: Path) -> None:
    model = ppo(Echo(ACTIONS["categorical"]))
    blip = BLIP(model.policy, budget=0.3)
    model.learn(96, callback=BLIPCallback(blip))
    model.save(tmp_path / "model.zip")
    save_state(blip, tmp_path)
    loaded = PPO.load(tmp_path / "model.zip", env=model.env, device="cpu")
    fresh = BLIP(loaded.policy, budget=0.3)
    load_state(fresh, tmp_path)
    assert_same(fresh.state_dict(), blip.state_dict())
    loaded.learn(96, callback=BLIPCallback(fresh))
    for name, (low, high) in fresh.intervals().items():
        before = blip.intervals()[name]
        assert ((before[0] <= low) & (high <= before[1])).all()


def test_what_is_refused() -> None:
    model = ppo(Echo(ACTIONS["normal"]), use_sde=True)
    with pytest.raises(ValueError, match=r"must be one of Categorical.*, got StateDependentNoiseDistribution"):
        model.learn(32, callback=BLIPCallback(BLIP(model.policy)))
    model, other = ppo(Echo(ACTIONS["normal"])), ppo(Echo(ACTIONS["normal"]))
    with pytest.raises(ValueError, match=r"must watch model\.policy, got another policy; .* build a new BLIP"):
        model.learn(32, callback=BLIPCallback(BLIP(other.policy)))
    off_policy = DQN("MlpPolicy", Echo(ACTIONS["categorical"]), buffer_size=100, device="cpu")
    with pytest.raises(TypeError, match="must be on-policy, such as PPO, got DQN"):
        off_policy.learn(32, callback=BLIPCallback(BLIP(off_policy.policy)))


def test_a_consolidation_that_fails_leaves_nothing_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ppo(Echo(ACTIONS["categorical"]))
    blip = BLIP(model.policy, budget=0.3)
    callback = BLIPCallback(blip)
    model.learn(96, callback=callback)
    assert_detached_after_failing(blip, lambda: model.learn(96, callback=callback), monkeypatch)
