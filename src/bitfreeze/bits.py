"""The arithmetic of BLIP: quantisation, information gain, and the intervals that frozen bits leave to a parameter.

A parameter lies in [-bound, bound] and has ``depth`` bits (the paper's N). With its first ``bits`` bits frozen it may
move only inside ``centre ± bound * 2^-bits``. With none frozen that is the whole range; each further bit halves it.

Centres are kept as integers, in units of ``bound * 2^-depth``. Where the bound is a power of two, every interval end
is then exact in float32 (depth <= 23), and so is the statement that one interval lies inside another.

Everything here is a pure function of tensors. No function knows of modules or optimizers.
"""

from collections.abc import Callable
from math import inf, log
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 23  # float32 carries 24 significant bits: integers up to 2^23 and their sums with a radius are exact


def quantize(x: Tensor, bits: int | Tensor, bound: float = 1.0) -> Tensor:
    """Round to the nearest multiple of ``bound * 2^-bits``: Q(theta, N) of the paper's Eq. 2, on [-bound, bound].

    Args:
        x: values in float32 or float64.
        bits: how many bits are kept, one number or one for each value. With 0 bits every value becomes 0, because the
            clip of Eq. 2 leaves [-1/2, 1/2], which rounds to 0.
        bound: values beyond it are clipped to the grid's outermost points.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` has half precision, which cannot hold the grid.

    Example:
        >>> quantize(torch.tensor([0.30, -0.80]), bits=2)
        tensor([ 0.2500, -0.7500])
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"x must be float32 or float64, got {x.dtype}, which cannot hold the grid; use x.float()")
    return _steps(x, bits, bound) * torch.exp2(-_exponent(bits, x)) * bound


def _steps(x: Tensor, bits: int | Tensor, bound: float) -> Tensor:
    """The integer of Eq. 2 before the division by 2^bits, in floating point."""
    exponent = _exponent(bits, x)
    clip = 1 - torch.exp2(-exponent - 1)
    scaled = x / bound
    return torch.round(torch.clamp(scaled, -clip, clip) * torch.exp2(exponent))


def _exponent(bits: int | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(bits, dtype=like.dtype, device=like.device)


# The gain of task t is 1/2 log2((t F + F_t) / ((t + offset) F)), with F = F_{0:t-1}: a rule is its offset.
GAIN_OFFSETS = {"appendix": 1, "eq8": 0}


def information_gain(new: Tensor, old: Tensor, task: int, rule: str = "appendix") -> Tensor:
    """Bits of information that a task adds about each parameter.

    Args:
        new: Fisher F_t of this task.
        old: Fisher F_{0:t-1} of the prior and all earlier tasks.
        task: number t of this task, 1 for the first.
        rule: ``"appendix"`` is what the published results used, 1/2 log2((t F + F_t) / ((t + 1) F)). It is positive
            only where the task tells more about the parameter than the earlier tasks did on average. ``"eq8"`` is the
            main text, 1/2 log2((t F + F_t) / (t F)).

    Returns:
        The gain in bits, of the shape that ``new`` and ``old`` broadcast to.

    Raises:
        ValueError: ``task`` is below 1, or ``rule`` names no rule.

    Example:
        >>> information_gain(torch.tensor([15.0, 1.0]), torch.tensor(1.0), task=1)
        tensor([1.5000, 0.0000])
    """
    if task < 1:
        raise ValueError(f"task must be 1 or more, got {task}; count tasks from 1")
    offset = gain_offset(rule)
    # the ratio minus 1, so that rounding loses no gain however small: (d F + x) / (d F) = 1 + x / (d F)
    return 0.5 * _log2_of_1_plus((new - offset * old) / ((task + offset) * old))


def gain_offset(rule: str) -> int:
    """The offset that makes a rule of information gain."""
    if rule not in GAIN_OFFSETS:
        raise ValueError(f"rule must be 'appendix' or 'eq8', got {rule!r}")
    return GAIN_OFFSETS[rule]


def _log2_of_1_plus(x: Tensor) -> Tensor:
    """log2(1 + x), exact in sign near 0, where log2(1 + x) rounds to 0, and at powers of two, where log1p does not."""
    return torch.where(x.abs() < 0.5, torch.log1p(x) / log(2), torch.log2(1 + x))


def total_gain(fisher: Tensor, prior: Tensor, task: int, rule: str = "appendix") -> Tensor:
    """Sum of the information gains of tasks 1 to ``task``, from F_{0:t} (a mean) and F_0. The sum telescopes."""
    times = 1 if gain_offset(rule) else task + 1
    return 0.5 * torch.log2(times * fisher / prior)


def extra_bits(gain: Tensor, frozen: Tensor, depth: int) -> Tensor:
    """n_t of the paper's Eq. 9: the gain rounded up, at least 0, at most the bits still free."""
    return torch.ceil(gain).clamp_(min=0).minimum(depth - frozen.to(gain.dtype)).to(torch.uint8)


def accumulate_fisher(new: Tensor, old: Tensor, task: int, rule: str = "mean") -> Tensor:
    """F_{0:t}. ``"mean"`` is Eq. 7, (t F + F_t) / (t + 1); ``"sum"`` is Algorithm 1, which does not divide."""
    return (task * old + new) / _fisher_divisor(rule, task)


def fisher_of_task(total: Tensor, old: Tensor, task: int, rule: str = "mean") -> Tensor:
    """F_t, from F_{0:t} and F_{0:t-1}: the inverse of ``accumulate_fisher``."""
    return total * _fisher_divisor(rule, task) - task * old


def _fisher_divisor(rule: str, task: int) -> int:
    divisors = {"mean": task + 1, "sum": 1}
    if rule not in divisors:
        raise ValueError(f"rule must be 'mean' or 'sum', got {rule!r}")
    return divisors[rule]


def radius(bits: Tensor, depth: int) -> Tensor:
    """The radius 2^-bits of Eq. 4 as an integer number of units: 2^(depth - bits)."""
    return torch.bitwise_left_shift(torch.ones_like(bits, dtype=torch.int32), depth - bits.to(torch.int32))


def rounded_centre(x: Tensor, bits: Tensor, depth: int, bound: float) -> Tensor:
    """c = Q(theta, S) of the paper, in units: it may leave the interval before it by a step of the S-bit grid."""
    return _steps(x, bits, bound).to(torch.int32) * radius(bits, depth)


def nested_centre(x: Tensor, centre: Tensor, bits: Tensor, new_bits: Tensor, depth: int, bound: float) -> Tensor:
    """The unit nearest to the parameter, moved only so far that the new interval lies inside the old one.

    In integers: ``|c' - c| <= r - r'`` is what [c' - r', c' + r'] inside [c - r, c + r] means. Exact for every number
    of tasks; where no bit was added r' = r and the centre stays.
    """
    slack = radius(bits, depth) - radius(new_bits, depth)
    return torch.clamp(_nearest_unit(x, depth, bound), centre - slack, centre + slack)


def following_centre(x: Tensor, bits: Tensor, depth: int, bound: float) -> Tensor:
    """The unit nearest to the parameter, moved only so far that the interval lies inside [-bound, bound]."""
    slack = 2**depth - radius(bits, depth)
    return torch.clamp(_nearest_unit(x, depth, bound), -slack, slack)


def _nearest_unit(x: Tensor, depth: int, bound: float) -> Tensor:
    return torch.round(x * (2.0**depth / bound)).to(torch.int32)


def interval(
    centre: Tensor, bits: Tensor, depth: int, bound: float, dtype: torch.dtype, *, open_range: bool = False
) -> tuple[Tensor, Tensor]:
    """Lower and upper end of Eq. 4. ``open_range`` keeps to the released code's +-bound * (1 - 2^-depth)."""
    reach = radius(bits, depth)
    low, high = centre - reach, centre + reach
    if open_range:
        edge = 2**depth - 1
        low, high = low.clamp_(min=-edge), high.clamp_(max=edge)
    return to_value(low, depth, bound, dtype), to_value(high, depth, bound, dtype)


def to_value(units: Tensor, depth: int, bound: float, dtype: torch.dtype) -> Tensor:
    """Units as numbers. Dividing by 2^depth first is exact, so only the product with the bound can round."""
    return (units.to(dtype) * 2.0**-depth) * bound


def prior_for_budget(
    fisher: Tensor,
    share: float,
    depth: int,
    rule: str = "appendix",
    gather: Callable[[Any], list[Any]] = lambda value: [value],
) -> tuple[float, float]:
    """The prior F_0 at which the first task freezes at most ``share`` of the bits, and the share that it freezes.

    ``fisher`` holds the positive entries of F_1, each divided by its tensor's prior scale. An entry freezes at least
    j bits where F_1 > F_0 * T_j, with T_j = d * 4^(j-1) - 1 and d the denominator of the gain at t = 1. So on sorted
    entries the bits frozen by any prior are ``depth`` binary searches, and the prior itself is found by bisection.

    Where the entries are dealt out over processes, ``gather`` collects a number from each of them.
    """
    ordered = fisher.double().sort().values
    thresholds = (1 + gain_offset(rule)) * 4.0 ** torch.arange(depth, dtype=torch.float64, device=fisher.device) - 1
    total = depth * sum(gather(len(ordered)))

    def frozen(log_prior: float) -> int:
        free = int(torch.searchsorted(ordered, thresholds * 2.0**log_prior, right=True).sum())
        return int(total - sum(gather(free)))

    smallest, largest = (ordered[0].log2().item(), ordered[-1].log2().item()) if len(ordered) else (inf, -inf)
    low = min(gather(smallest)) - 2 * depth - 2  # everything frozen
    high = max(gather(largest)) + 1  # nothing frozen that can be left free
    for _ in range(80):
        middle = (low + high) / 2
        if frozen(middle) > share * total * (1 + 1e-12):
            low = middle
        else:
            high = middle
    return 2.0**high, frozen(high) / total
