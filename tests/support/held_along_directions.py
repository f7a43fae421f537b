"""A network that has learned one task and is held along directions, for the tests of Directions."""

from typing import Any

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import Directions
from support.protected_nets import Net, make_task, train_sgd

ALL = Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=1)


def guard_of(blip: BLIP) -> Directions:
    """The guard of a BLIP with such rules."""
    assert isinstance(blip._tensors, Directions)
    return blip._tensors


def started(rules: Rules = ALL, tolerance: float = 0.02, seed: int = 0, **settings: Any) -> tuple[Net, BLIP]:
    """The network, and the BLIP that is attached to it."""
    model = Net(seed)
    blip = BLIP(model, rules=rules, tolerance=tolerance, **settings)
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)], labels="exact")
    return model, blip
