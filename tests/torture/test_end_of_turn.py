"""Ctrl-C at each of the last instructions of consolidate: the lock of measurements is free afterwards."""

import copy
import random
import warnings
from functools import partial
from pathlib import Path

import torch

from support.protected_nets import Net
from torture.attacks import Outcomes, Setting
from torture.interrupts import Stopper, end_task, judged, passages, picture, world

LAST = "blip.py:consolidate"  # the function whose contexts end


def test_no_instruction_leaves_the_lock_held(tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    base = world("strict", Net)
    rehearsed, pair = copy.deepcopy(base), copy.deepcopy(base)
    torch.manual_seed(7)
    passed = passages(partial(end_task, rehearsed), opcodes=True)
    own = [number for number, (place, _) in enumerate(passed) if place.endswith(LAST)]
    torch.manual_seed(7)
    after = picture(*rehearsed)
    before = picture(*pair)
    after["parameters"] = before["parameters"]
    found = Outcomes()
    stopper = Stopper(set(own[-120:]), Setting(120, tmp_path, random.Random(0)), opcodes=True)
    stopper.run(partial(end_task, pair), partial(judged, pair, before, after, "strict"), found)
    assert not found.wrong
    assert sum(found.counts.values()) == 120
