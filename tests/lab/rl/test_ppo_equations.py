"""The advantages and the loss of PPO against closed forms and sums by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.rl import Settings
from bitfreeze.lab.rl.actions import Choice
from bitfreeze.lab.rl.ppo import Samples, advantages, ppo_loss


@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.9, 0.5]))
def test_advantages_at_lambda_one_are_returns_minus_values(seed, gamma):
    random = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(7, 3, generator=random) for _ in range(2))
    after, alive = torch.randn(3, generator=random), (torch.rand(7, 3, generator=random) > 0.3).float()
    returns, following = torch.zeros(7, 3), after
    for t in reversed(range(7)):
        following = reward[t] + gamma * alive[t] * following
        returns[t] = following
    torch.testing.assert_close(advantages(reward, value, after, alive, gamma, 1.0), returns - value)


@given(st.integers(0, 10**6))
def test_advantages_at_lambda_zero_are_errors_of_one_step(seed):
    random = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(7, 3, generator=random) for _ in range(2))
    after, alive = torch.randn(3, generator=random), (torch.rand(7, 3, generator=random) > 0.3).float()
    following = torch.cat([value[1:], after[None]])
    expected = reward + 0.9 * alive * following - value
    torch.testing.assert_close(advantages(reward, value, after, alive, 0.9, 0.0), expected)


@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.5, 0.95]))
def test_advantages_between_are_the_sum_of_discounted_errors(seed, decay):
    """A_t = sum over k of (gamma lambda)^k delta_{t+k}, as far as the episode goes."""
    random = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(7, 3, generator=random) for _ in range(2))
    after, alive = torch.randn(3, generator=random), (torch.rand(7, 3, generator=random) > 0.3).float()
    errors = reward + 0.9 * alive * torch.cat([value[1:], after[None]]) - value
    expected = torch.zeros(7, 3)
    for n in range(3):
        for t in range(7):
            for k in range(7 - t):
                expected[t, n] += (0.9 * decay) ** k * errors[t + k, n]
                if not alive[t + k, n]:
                    break
    found = advantages(reward, value, after, alive, 0.9, decay)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("clip_value", [True, False])
def test_the_loss_is_that_of_the_paper_sample_by_sample(clip_value):
    settings = Settings(clip=0.2, clip_value=clip_value, value_weight=0.7, entropy_weight=0.03)
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, generator=random)
    action = torch.randint(3, (50,), generator=random)
    log_p, value, before, target, advantage = (torch.randn(50, generator=random) for _ in range(5))
    log_p -= 1.5
    expected, entropy = 0.0, 0.0
    for n in range(50):
        p = torch.exp(logits[n]) / torch.exp(logits[n]).sum()
        ratio = (p[action[n]] / log_p[n].exp()).item()
        bounded = min(max(ratio, 0.8), 1.2)
        expected -= min(ratio * advantage[n].item(), bounded * advantage[n].item())
        near = before[n].item() + min(max((value[n] - before[n]).item(), -0.2), 0.2)
        errors = [(value[n].item() - target[n].item()) ** 2, (near - target[n].item()) ** 2]
        expected += 0.7 * 0.5 * (max(errors) if clip_value else errors[0])
        entropy -= (p * p.log()).sum().item()
    samples = Samples(torch.zeros(50, 1), action, log_p, before, torch.zeros(50))
    actions = Choice(3)
    measured = actions.entropy(logits).mean()
    loss = ppo_loss(actions.log_prob(logits, action), measured, value, samples, advantage, target, settings)
    assert loss.item() == pytest.approx((expected - 0.03 * entropy) / 50, rel=1e-4)
    assert measured.item() == pytest.approx(entropy / 50, rel=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(1.3, 1, False), (1.3, -1, True), (0.7, -1, False), (1.05, 1, True)]
)
def test_nothing_pulls_a_probability_beyond_its_bounds(ratio, advantage, moves):
    logits = torch.zeros(1, 2, requires_grad=True)
    log_p = torch.tensor([0.5 / ratio]).log()
    samples = Samples(torch.zeros(1, 1), torch.tensor([0]), log_p, torch.zeros(1), torch.zeros(1))
    settings = Settings(clip=0.1, value_weight=0.0, entropy_weight=0.0)
    chosen, zero = Choice(2).log_prob(logits, samples.action), torch.zeros(1)
    loss = ppo_loss(chosen, zero.sum(), zero, samples, torch.tensor([float(advantage)]), zero, settings)
    loss.backward()
    assert bool(logits.grad.any()) == moves
