"""The choices that make a BLIP: two sets of our own, the released code's, and the paper's main text.

To add a rule for the centre of an interval: write its arithmetic in ``bits.py`` and its record in ``CENTRES`` here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from .. import bits as b

LEAST_GAIN = 1e-5  # bits: float32 cannot tell less from nothing


class CentreInputs(NamedTuple):
    """What is known of the intervals of a tensor when a task ends."""

    theta: Tensor
    centre: Tensor  # of the interval so far, in units of bound * 2^-depth
    bits: Tensor  # frozen so far
    new_bits: Tensor  # frozen from now on
    depth: int
    bound: float


@dataclass(frozen=True)
class Centre:
    """A rule for the centre of the next interval, and the facts about it that other code asks for."""

    place: Callable[[CentreInputs], Tensor]
    is_exact: bool = False  # nesting holds only where every interval end is exact in float32
    may_exclude: bool = False  # a parameter may lie outside its new interval until the next clamp
    has_digits: bool = False  # frozen bits are leading binary digits of the centre


CENTRES = {
    "nested": Centre(lambda i: b.nested_centre(i.theta, i.centre, i.bits, i.new_bits, i.depth, i.bound), is_exact=True),
    "following": Centre(lambda i: b.following_centre(i.theta, i.new_bits, i.depth, i.bound)),
    "rounded": Centre(lambda i: b.rounded_centre(i.theta, i.new_bits, i.depth, i.bound), has_digits=True),
    "rounded_before": Centre(
        lambda i: b.rounded_centre(i.theta, i.bits, i.depth, i.bound), may_exclude=True, has_digits=True
    ),
}


class Rules:
    """How intervals follow from the Fisher.

    Use a preset. ``directions()`` holds layers along the directions that their data use. The others hold weight by
    weight: ``strict()``, ``following()``, ``released()`` and ``text()``.

    Example:
        >>> Rules.released().snap
        True
    """

    @staticmethod
    def directions(**choices: Any) -> "DirectionRules":
        """The default: intervals along the directions that a layer's data use.

        Args:
            choices: fields of ``DirectionRules`` that differ from its defaults.

        Returns:
            The rules.
        """
        return DirectionRules(**choices)

    @staticmethod
    def strict() -> "WeightRules":
        """An interval never grows and never leaves the one before it, exactly, for any number of tasks."""
        return WeightRules()

    @staticmethod
    def following() -> "WeightRules":
        """As strict, but every task leaves the interval centred on the parameter, also where no bit was added.

        No task then moves a parameter by more than the radius of its interval. (Under strict rules a parameter at one
        end may move to the other, by twice the radius.) The price: an interval may leave the one before it, and over
        many tasks a parameter can drift.
        """
        return WeightRules(centre="following")

    @staticmethod
    def released() -> "WeightRules":
        """The rules of the published figures: weights are snapped to Q(theta, S), and intervals centred there."""
        return WeightRules(centre="rounded", snap=True, power_of_two=False, fan_in_bias_prior=True, open_range=True)

    @staticmethod
    def text(*, algorithm1: bool = False, straight_through: bool = False) -> "WeightRules":
        """The paper's main text: as released, but weights are not snapped and the gain is Eq. 8.

        Args:
            algorithm1: give the centre the old bit count, so that a parameter may lie outside its new interval until
                the next clamp, and make the Fisher a sum.
            straight_through: let passes see Q(theta, N), which the appendix says was not done. Both together follow
                Algorithm 1 to the letter.

        Returns:
            The rules.
        """
        return WeightRules(
            centre="rounded_before" if algorithm1 else "rounded",
            gain="eq8",
            fisher="sum" if algorithm1 else "mean",
            power_of_two=False,
            fan_in_bias_prior=True,
            open_range=not algorithm1,
            straight_through=straight_through,
        )


@dataclass(frozen=True)
class WeightRules(Rules):
    """Rules that hold each weight by itself: how its bits and its interval follow from the diagonal Fisher."""

    centre: str = "nested"
    """Where the next interval lies. ``nested``: around the parameter, inside the interval before it. ``following``:
    around the parameter wherever it is. ``rounded``: around Q(theta, S), with the new bit count. ``rounded_before``:
    the same with the old bit count (Algorithm 1)."""

    gain: str = "appendix"
    """Information gain of the ``appendix`` or of the main text's ``eq8``: see bits.information_gain."""

    rounding: str = "each"
    """Which gain is rounded up to whole bits: that of ``each`` task, as in the paper, or the ``total`` of all tasks so
    far, so that the rounding does not add up over tasks."""

    fisher: str = "mean"
    """F_{0:t} is a running ``mean`` (Eq. 7) or a ``sum`` (Algorithm 1)."""

    snap: bool = False
    """At the end of a task each parameter is set to its interval's centre; one with no frozen bit becomes 0."""

    power_of_two: bool = True
    """Round bounds up to a power of two, so that every interval end is exact in float32."""

    fan_in_bias_prior: bool = False
    """Give a bias the prior of its layer's weights, prior * fan_in (for its usual bound of 1)."""

    open_range: bool = False
    """Stay within +-bound * (1 - 2^-N) rather than +-bound."""

    levels: bool = False
    """Also hold the response of each unit to its layer's mean input, within the interval of its bias."""

    straight_through: bool = False
    """Forward and backward passes see Q(theta, N). The optimizer steps theta (straight-through estimator)."""

    def __post_init__(self) -> None:
        for name, known in (
            ("centre", CENTRES),
            ("gain", b.GAIN_OFFSETS),
            ("rounding", ("each", "total")),
            ("fisher", ("mean", "sum")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"Rules.{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.levels and self.straight_through:
            raise ValueError("levels need weights that are not rounded, got straight-through rules; leave one out")
        if self.rounding == "total" and self.fisher != "mean":
            raise ValueError("rounding='total' needs a mean Fisher, got fisher='sum'; use rounding='each'")
        if self.centre_rule.is_exact and not self.power_of_two:
            raise ValueError("nested intervals are exact only with power_of_two bounds; leave power_of_two=True")

    @property
    def centre_rule(self) -> Centre:
        """The record of the rule that ``centre`` names."""
        return CENTRES[self.centre]

    def new_bits(self, new_fisher: Tensor, old: Tensor, prior: Tensor, bits: Tensor, task: int, depth: int) -> Tensor:
        """Freeze more bits at the end of a task.

        Args:
            new_fisher: F_t of the task.
            old: F_{0:t-1}.
            prior: F_0.
            bits: frozen bits so far.
            task: number t of the task, 1 for the first.
            depth: number of bits of a parameter.

        Returns:
            Frozen bits from now on.
        """
        if self.rounding == "each":
            gain = b.information_gain(new_fisher, old, task, self.gain)
        else:
            fisher = self.accumulated(new_fisher, old, task)
            gain = b.total_gain(fisher, prior, task, self.gain) - bits.to(fisher.dtype) - LEAST_GAIN
        return bits + b.extra_bits(gain, bits, depth)

    def accumulated(self, new_fisher: Tensor, old: Tensor, task: int) -> Tensor:
        """Accumulate the Fisher over tasks.

        Args:
            new_fisher: F_t of the task.
            old: F_{0:t-1}.
            task: number t of the task, 1 for the first.

        Returns:
            F_{0:t} in float32.
        """
        return b.accumulate_fisher(new_fisher, old, task, self.fisher).float()

    def last_gain(self, total: Tensor, old: Tensor, task: int) -> Tensor:
        """Find the information gain of the last task again.

        Args:
            total: F_{0:t}.
            old: F_{0:t-1}.
            task: number t of the task, 1 for the first.

        Returns:
            The gain in bits.
        """
        return b.information_gain(b.fisher_of_task(total, old, task, self.fisher), old, task, self.gain)


@dataclass(frozen=True)
class DirectionRules(Rules):
    """Rules that hold layers along the directions of their inputs and output gradients."""

    strongest: int | None = 256
    """Number of directions of each side of a layer; None for all. What they leave out is held too: by output along the
    input directions, and entry by entry."""

    sides: str = "both"
    """Which coordinates of a layer are turned: ``inputs``, ``outputs`` or ``both``. For comparison."""

    refit: bool = True
    """Whether each task turns the coordinates anew, or those of a layer's first task are kept. For comparison."""

    every: int = 64
    """Largest number of steps between two clamps along all directions. A layer is clamped more often while its steps
    go far, and up to 16 times as often if it works at many positions (a convolution, a layer of tokens), because there
    a clamp is cheap beside a step. ``clamp_`` and ``consolidate`` always clamp."""

    leading: int = 32
    """Number of strongest directions of each side that are clamped more often; 0 for none."""

    leading_every: int = 8
    """Clamp along the leading directions after every so many steps; more often at many positions, as above."""

    fisher: str = "sum"
    """The Fisher of all tasks is a ``sum`` or a running ``mean``."""

    damping: float = 0.01
    """Share of the mean Fisher over a layer's outputs that is added to each of them. It bounds steps along directions
    of the outputs that have no gradient."""

    temperature: float = 2.0
    """By which class logits are divided for the Fisher. Above 1, answers that the network is sure of are held too."""

    moment_samples: int = 1000
    """Number of samples that the directions are found from. Their Fisher comes from all samples."""

    def __post_init__(self) -> None:
        for name, least in (
            ("strongest", 1),
            ("every", 1),
            ("leading", 0),
            ("leading_every", 1),
            ("moment_samples", 1),
        ):
            value = getattr(self, name)
            if (name != "strongest" or value is not None) and not (isinstance(value, int) and value >= least):
                raise ValueError(f"Rules.{name} must be a whole number of at least {least}, got {value!r}")
        if self.fisher not in ("sum", "mean"):
            raise ValueError(f"Rules.fisher must be 'sum' or 'mean', got {self.fisher!r}")
        if self.sides not in ("inputs", "outputs", "both"):
            raise ValueError(f"Rules.sides must be 'inputs', 'outputs' or 'both', got {self.sides!r}")
        if not self.damping >= 0:
            raise ValueError(f"Rules.damping must be at least 0, got {self.damping!r}")
        if not self.temperature > 0:
            raise ValueError(
                f"Rules.temperature must be above 0, got {self.temperature!r}; 1 leaves logits as they are"
            )


def require_rules(rules: Rules) -> WeightRules | DirectionRules:
    if not isinstance(rules, DirectionRules | WeightRules):
        presets = "Rules.directions(), Rules.strict(), Rules.following(), Rules.released() or Rules.text()"
        raise TypeError(f"rules must be {presets}, got {rules!r}")
    return rules
