"""What BLIP adds to a training step, against the same step without it and against intervals derived at every step."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from measure import ratio


def measure_step(model: nn.Module, x: Tensor, y: Tensor, steps: int, rounds: int) -> tuple[float, float]:
    """(step with BLIP / without, step with intervals derived anew / without), after a first task has frozen bits."""
    torch.manual_seed(0)
    blip = BLIP(model, rules=Rules.strict())
    blip.consolidate([(x, y)])

    def plain_steps() -> None:
        _train(plain, plain_optimizer, x, y, steps)

    def blip_steps() -> None:
        with blip.attach():
            _train(model, optimizer, x, y, steps)

    def derived_steps() -> None:
        _train(derived, derived_optimizer, x, y, steps, after=lambda: _derive_and_clamp(frozen))

    plain, derived = copy.deepcopy(model), copy.deepcopy(model)
    optimizer, plain_optimizer, derived_optimizer = (
        torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, plain, derived)
    )
    bits = blip.frozen_bits()
    frozen = [(p, p.detach().clone(), bits[name].long()) for name, p in derived.named_parameters()]
    return ratio(blip_steps, plain_steps, rounds)[0], ratio(derived_steps, plain_steps, max(2, rounds // 2))[0]


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int,
    after: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()


@torch.no_grad()
def _derive_and_clamp(frozen: list[tuple[nn.Parameter, Tensor, Tensor]], bound: float = 0.25) -> None:
    """The way of the released code: the interval from centre and bit count, then the range, at every step."""
    for parameter, centre, bits in frozen:
        reach = bound / 2.0**bits
        clipped = torch.max(torch.min(parameter, centre + reach), centre - reach)
        parameter.copy_(clipped.clamp(-bound * (1 - 2.0**-20), bound * (1 - 2.0**-20)))
