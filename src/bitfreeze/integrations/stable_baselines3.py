"""BLIP as a callback of Stable-Baselines3's on-policy algorithms (PPO, A2C). A task is a ``learn()``."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from .._messages import install

try:
    from stable_baselines3.common import distributions as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.utils import obs_as_tensor
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{__name__} needs the extra 'sb3': {install('sb3')}") from missing

from ..blip.attachment import Attachment
from ..blip.blip import BLIP
from ..blip.consolidation import Consolidation
from ..likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Product

BATCH = 256

LIKELIHOODS: dict[type, Callable[[Any], Likelihood]] = {
    sb3.CategoricalDistribution: lambda actions: Categorical(actions.distribution.logits),
    sb3.MultiCategoricalDistribution: lambda actions: Product([Categorical(d.logits) for d in actions.distribution]),
    sb3.BernoulliDistribution: lambda actions: Bernoulli(actions.distribution.logits),
    sb3.DiagGaussianDistribution: lambda actions: Gaussian(actions.distribution.mean, actions.distribution.stddev),
}


class BLIPCallback(BaseCallback):
    """Clamps after each step of a ``learn()``, and consolidates with its last observations at its end.

    The labels are the policy's actions. ``report`` holds the last ``Consolidation``.

    Args:
        blip: a BLIP of the algorithm's policy, best with ``watch`` on the part that acts.
        samples: how many observations to use, the newest first. The paper used 1,984.
        verbose: as in ``BaseCallback``.

    Raises:
        TypeError: the algorithm is not on-policy (when ``learn()`` starts).
        ValueError: BLIP watches another policy, or its actions are of an unknown kind (when ``learn()`` starts).

    Example:
        ```python
        model = PPO("MlpPolicy", tasks[0])
        acting = [model.policy.mlp_extractor.policy_net, model.policy.action_net]
        callback = BLIPCallback(BLIP(model.policy, watch=acting))
        for env in tasks:
            model.set_env(env)
            model.learn(50_000, callback=callback)
        ```
    """

    def __init__(self, blip: BLIP, *, samples: int = 2000, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.blip, self.samples = blip, samples
        self.report: Consolidation | None = None
        self._rollouts: deque[Any] = deque()
        self._attachment: Attachment | None = None

    def _init_callback(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise TypeError(f"the algorithm must be on-policy, such as PPO, got {type(self.model).__name__}")
        if self.blip.model is not self.model.policy:
            raise ValueError("BLIP must watch model.policy, got another policy; after a load, build a new BLIP")
        if type(self.model.policy.action_dist) not in LIKELIHOODS:
            known = ", ".join(kind.__name__ for kind in LIKELIHOODS)
            raise ValueError(f"actions must be one of {known}, got {type(self.model.policy.action_dist).__name__}")

    def _on_training_start(self) -> None:
        self._rollouts.clear()
        self._attachment = self.blip.attach()

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        steps = buffer.buffer_size * buffer.n_envs
        # A reset of the buffer makes new arrays and leaves these as they are.
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

        try:
            self.report = self.blip.consolidate(self._batches(), forward, samples=self.samples)
        finally:
            self._rollouts.clear()
            assert self._attachment is not None
            self._attachment.remove()

    def _batches(self) -> Iterator[tuple[Any]]:
        """Batches of observations, the newest rollout first. Each is a tuple, because an observation may be a dict."""
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
    """Observations [steps, environments, ...] as [rows, ...]."""
    if isinstance(observations, dict):
        return {key: _as_rows(value) for key, value in observations.items()}
    array: np.ndarray[Any, Any] = observations
    return array.reshape(-1, *array.shape[2:])
