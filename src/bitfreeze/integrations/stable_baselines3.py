"""BLIP as a callback of Stable-Baselines3's on-policy algorithms (PPO, A2C): a task is a ``learn()``."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from ..missing import install

try:
    from stable_baselines3.common import distributions as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.utils import obs_as_tensor
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"this needs the extra 'sb3': {install('sb3')}") from missing

from ..attachment import Attachment
from ..blip import BLIP
from ..consolidation import Consolidation
from ..likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Product

BATCH = 256

LIKELIHOODS: dict[type, Callable[[Any], Likelihood]] = {
    sb3.CategoricalDistribution: lambda actions: Categorical(actions.distribution.logits),
    sb3.MultiCategoricalDistribution: lambda actions: Product([Categorical(d.logits) for d in actions.distribution]),
    sb3.BernoulliDistribution: lambda actions: Bernoulli(actions.distribution.logits),
    sb3.DiagGaussianDistribution: lambda actions: Gaussian(actions.distribution.mean, actions.distribution.stddev),
}


class BLIPCallback(BaseCallback):
    """Clamps after each step of a ``learn()``, and at its end consolidates the policy's actions on what was last seen.

    blip: a BLIP of the algorithm's policy, best with ``watch`` on the part that acts.
    samples: how many observations to use, the newest first. The paper used 1,984.
    """

    def __init__(self, blip: BLIP, *, samples: int = 2000, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.blip, self.samples = blip, samples
        self.report: Consolidation | None = None
        self._rollouts: deque[Any] = deque()
        self._attachment: Attachment | None = None

    def _init_callback(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise TypeError(f"BLIPCallback needs an on-policy algorithm such as PPO, not {type(self.model).__name__}")
        if self.blip.model is not self.model.policy:
            raise ValueError("BLIP watches another policy: build it from model.policy (after a load, from the new one)")
        if type(self.model.policy.action_dist) not in LIKELIHOODS:
            known = ", ".join(kind.__name__ for kind in LIKELIHOODS)
            raise ValueError(f"actions with {type(self.model.policy.action_dist).__name__} are not known: use {known}")

    def _on_training_start(self) -> None:
        self._rollouts.clear()
        self._attachment = self.blip.attach()

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        steps = buffer.buffer_size * buffer.n_envs
        # a reset makes new arrays, so these stay what they are
        self._rollouts.append(_as_rows(buffer.observations))
        while (len(self._rollouts) - 1) * steps >= self.samples:
            self._rollouts.popleft()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        policy = self.model.policy

        def forward(observations: Any) -> Likelihood:
            actions = policy.get_distribution(observations)
            return LIKELIHOODS[type(actions)](actions)

        self.report = self.blip.consolidate(self._batches(), forward, samples=self.samples)
        self._rollouts.clear()
        assert self._attachment is not None
        self._attachment.remove()

    def _batches(self) -> Iterator[tuple[Any]]:
        """The newest rollout first. In tuples, for a bare observation may itself be a dict."""
        for rows in reversed(self._rollouts):
            number = len(next(iter(rows.values())) if isinstance(rows, dict) else rows)
            for start in range(0, number, BATCH):
                some = slice(start, start + BATCH)
                batch = {key: x[some] for key, x in rows.items()} if isinstance(rows, dict) else rows[some]
                yield (_observations(batch, self.model.device),)


def _observations(batch: Any, device: Any) -> Tensor | dict[str, Tensor]:
    tensors: Tensor | dict[str, Tensor] = obs_as_tensor(batch, device)
    return tensors


def _as_rows(observations: Any) -> Any:
    """[steps, environments, ...] as [rows, ...]."""
    if isinstance(observations, dict):
        return {key: _as_rows(value) for key, value in observations.items()}
    array: np.ndarray[Any, Any] = observations
    return array.reshape(-1, *array.shape[2:])
