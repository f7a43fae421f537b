"""Throughput of PPO end to end against Stable-Baselines3's, which needs the extras 'atari' and 'sb3'.

``python benchmarks/ppo.py [small|nature|paper]``: the same games through the same vector environment, the same network,
optimizer and settings; playing and learning, without evaluation. Updates are interleaved, and the best of each counts.
"""

import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO as TheirPPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.rl import PPO, Environments, GameSpec, Settings
from bitfreeze.lab.tasks import Task
from measure import ratio

GAME = "ALE/KungFuMaster-v5"


class Plain(torch.nn.Module):
    """How pictures usually go into a network."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float() / 255


class Features(BaseFeaturesExtractor):
    """The same layers as SB3 wants them, with channels where they usually are in memory."""

    def __init__(self, space: gymnasium.spaces.Box, kind: str) -> None:
        net = build_network({"kind": kind}, space.shape, [2])
        super().__init__(space, net.heads[0].in_features)
        self.backbone = torch.nn.Sequential(Plain(), *net.backbone[1:])

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x)


class ForSB3(VecEnv):
    """Our environments as SB3 wants them."""

    def __init__(self, environments: Environments) -> None:
        self.environments = environments
        seen = gymnasium.spaces.Box(0, 255, environments.shape, np.uint8)
        super().__init__(environments.count, seen, gymnasium.spaces.Discrete(environments.actions.outputs))

    def reset(self) -> np.ndarray:
        return self.environments.reset(0)

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        step = self.environments.step(self.actions)
        return step.seen, np.sign(step.reward), step.ended, [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        self.environments.close()

    def seed(self, seed: int | None = None) -> list[int | None]:
        return [seed] * self.num_envs

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError


def our_agent(kind: str, settings: Settings, spec: GameSpec) -> PPO:
    torch.manual_seed(0)
    environments = spec.make(settings.copies)
    task, method = Task(0, GAME, environments.actions.outputs), make_method("ft", {})
    method.build(build_network({"kind": kind}, environments.shape, [environments.actions.outputs]), (task,))
    return PPO(method, task, environments, settings, 0)


def their_agent(kind: str, settings: Settings, spec: GameSpec) -> TheirPPO:
    s = settings
    return TheirPPO(
        "CnnPolicy", ForSB3(spec.make(s.copies)), learning_rate=s.lr, n_steps=s.rollout,
        batch_size=s.batch // s.minibatches, n_epochs=s.epochs, gamma=s.gamma, gae_lambda=s.gae_lambda,
        clip_range=s.clip, clip_range_vf=s.clip, ent_coef=s.entropy_weight, vf_coef=s.value_weight / 2,
        max_grad_norm=s.max_grad_norm, seed=0, device="cpu",
        policy_kwargs={
            "features_extractor_class": Features, "features_extractor_kwargs": {"kind": kind}, "net_arch": [],
            "normalize_images": False, "optimizer_kwargs": {"eps": s.adam_eps},
        },
    )  # fmt: skip


def measure_ppo(kind: str, rounds: int, rollout: int = 125, game: str = GAME) -> tuple[float, float, float]:
    """Our steps a second by theirs, and both."""
    settings = Settings(steps=10**9, rollout=rollout)
    updates, theirs_to_train = (
        our_agent(kind, settings, GameSpec(game)).updates(),
        their_agent(kind, settings, GameSpec(game)),
    )
    quotient, ours, theirs = ratio(
        lambda: next(updates), lambda: theirs_to_train.learn(settings.batch, reset_num_timesteps=False), rounds
    )
    return 1 / quotient, settings.batch / ours, settings.batch / theirs


def main() -> None:
    torch.set_num_threads(1)
    kind = sys.argv[1] if len(sys.argv) > 1 else "small"
    started = time.perf_counter()
    times, ours, theirs = measure_ppo(kind, rounds=5)
    print(f"{kind}: {times:.2f} times as fast as Stable-Baselines3 ({ours:.0f} and {theirs:.0f} steps a second; "
          f"{time.perf_counter() - started:.0f} s)")  # fmt: skip


if __name__ == "__main__":
    main()
