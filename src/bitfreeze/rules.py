"""The choices that make a BLIP: ours in two forms, the released code's, and the paper's main text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """How bits and intervals follow from the Fisher.

    Use a preset: ``strict()``, ``following()``, ``released()`` or ``text()``.
    """

    centre: str = "nested"
    """Where the next interval lies. ``nested``: around the parameter, inside the interval before it. ``following``:
    around the parameter wherever it is. ``rounded``: around Q(theta, S), with the new bit count. ``rounded_before``:
    the same with the old bit count (Algorithm 1)."""

    gain: str = "appendix"
    """Information gain of the ``appendix`` or of the main text's ``eq8``: see bits.information_gain."""

    rounding: str = "each"
    """What is rounded up to whole bits: the gain of ``each`` task, as the paper has it, or the ``total`` gain of all so
    far, so that what rounding adds does not add up over tasks."""

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

    straight_through: bool = False
    """Forward and backward passes see Q(theta, N); the optimizer steps theta (straight-through estimator)."""

    def __post_init__(self) -> None:
        for name, known in (
            ("centre", ("nested", "following", "rounded", "rounded_before")),
            ("gain", ("appendix", "eq8")),
            ("rounding", ("each", "total")),
            ("fisher", ("mean", "sum")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"Rules.{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.rounding == "total" and self.fisher != "mean":
            raise ValueError("the total gain is that of a mean Fisher: use rounding='each' with fisher='sum'")
        if self.centre == "nested" and not self.power_of_two:
            raise ValueError("nested intervals are exact only with power_of_two bounds: leave power_of_two=True")

    @classmethod
    def strict(cls) -> "Rules":
        """The default: an interval never grows and never leaves the one before it, exactly, for any number of tasks."""
        return cls()

    @classmethod
    def following(cls) -> "Rules":
        """As strict, but every task leaves its interval centred on the parameter, also where no bit was added.

        So no task moves a parameter by more than the radius that its information asks for, where under strict rules one
        at an end of its interval may move to the other, by twice that. The price: an interval may leave the one before
        it, and over many tasks a parameter can drift.
        """
        return cls(centre="following")

    @classmethod
    def released(cls) -> "Rules":
        """What the published figures were made with: weights snapped to Q(theta, S), intervals centred there anew."""
        return cls(centre="rounded", snap=True, power_of_two=False, fan_in_bias_prior=True, open_range=True)

    @classmethod
    def text(cls, *, algorithm1: bool = False, straight_through: bool = False) -> "Rules":
        """The paper's main text: as released, but weights are not snapped and the gain is Eq. 8.

        ``algorithm1`` and ``straight_through`` together follow Algorithm 1 to the letter. The first: the centre has the
        old bit count (so that a parameter may lie outside its new interval until the next step clamps it) and the
        Fisher is a sum. The second: passes see Q(theta, N), which the appendix says was not done.
        """
        return cls(
            centre="rounded_before" if algorithm1 else "rounded",
            gain="eq8",
            fisher="sum" if algorithm1 else "mean",
            power_of_two=False,
            fan_in_bias_prior=True,
            open_range=not algorithm1,
            straight_through=straight_through,
        )
