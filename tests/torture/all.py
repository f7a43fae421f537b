"""All attacks, in the order in which they are carried out."""

from torture import blip_states, commands, damage, interrupts, kills  # noqa: F401 - importing registers
from torture.attacks import ATTACKS

__all__ = ["ATTACKS"]
