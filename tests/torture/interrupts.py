"""Ctrl-C at every line of consolidate and of the guards, and two threads on one model."""

import copy
import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

import bitfreeze
from bitfreeze import BLIP, diagonal_fisher
from bitfreeze.model.undo import ONE_AT_A_TIME
from support.protected_nets import Net, make_task, train_sgd
from torture.attacks import WRONG, Outcomes, Setting, attack
from torture.blip_states import KINDS

OURS = str(Path(bitfreeze.__file__).parent)


class Mixed(Net):
    """Parts with a rule, with running statistics, and one that only torch.func or single samples can measure."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(6, 10), nn.BatchNorm1d(10), nn.PReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Dropout(0.1)
        )


class Grown(Net):
    """A network whose head is replaced by a larger one before the task ends."""


def world(kind: str, net: type[Net]) -> tuple[Net, BLIP]:
    """A network in the middle of its second task."""
    model = net()
    settings = {**KINDS[kind], **({"freeze_statistics": True} if net is Mixed else {})}
    blip = BLIP(model, **settings)
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=3.0)
    if net is Grown:
        blip.clamp_()
        larger = nn.Linear(8, 5)
        with torch.no_grad():
            larger.weight[:3], larger.bias[:3] = model.heads[0].weight, model.heads[0].bias
        model.heads[0] = larger
    return model, blip


def picture(model: nn.Module, blip: BLIP) -> dict[str, Any]:
    """All that must be as before or as after."""
    return {
        "weights": [raw(value) for value in model.state_dict().values()],
        "state": blip.state_dict()["digest"],
        "modes": [(module.training, "train" in vars(module)) for module in model.modules()],
        "learning": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [parameter.grad is None for parameter in model.parameters()],
        "parameters": [[id(p) for p in module._parameters.values()] for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "global hooks": (len(_global_forward_hooks), len(_global_forward_pre_hooks)),
        "random": raw(torch.get_rng_state()),
        "modes of torch": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()),
        "functions": torch.overrides._get_current_function_mode() is None,
        "lock": ONE_AT_A_TIME._is_owned(),
        "underway": (blip._just_ended, [a.steps for a in blip._attachments]),
    }


def raw(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


Look = Callable[[FrameType], None]
Place = tuple[str, int]
BEFORE, AFTER, BETWEEN, OTHER = range(4)
OUTCOMES = {BEFORE: "as before", AFTER: "as after", BETWEEN: f"{WRONG}, between", OTHER: f"{WRONG} end"}


def traced(act: Callable[[], object], look: Look, opcodes: bool) -> None:
    """Carry something out, and look at each line of the library, or at each instruction, before it is done."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = opcodes
        if event == ("opcode" if opcodes else "line"):
            look(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)


def place_of(frame: FrameType, opcodes: bool) -> Place:
    code = frame.f_code
    return (f"{code.co_filename}:{code.co_name}", frame.f_lasti) if opcodes else (code.co_filename, frame.f_lineno)


def passages(act: Callable[[], object], opcodes: bool) -> list[Place]:
    """The places that a call passes, in order."""
    passed: list[Place] = []
    traced(act, lambda frame: passed.append(place_of(frame, opcodes)), opcodes)
    return passed


def some_of(passed: list[Place], count: int, rng: random.Random) -> set[int]:
    """Numbers of passages: each place at one of its passages, then others, as many as there may be."""
    order = rng.sample(range(len(passed)), len(passed))
    at_each = {passed[number]: number for number in order}
    others = [number for number in order if at_each[passed[number]] != number]
    return set([*at_each.values(), *others][:count])


class Stopper:
    """Stops a call at chosen passages, each in a forked process of its own, while the call itself goes on.

    So a passage costs a fork and what the stopped call puts back, not another call.
    """

    def __init__(self, wanted: set[int], setting: Setting, opcodes: bool) -> None:
        self.wanted, self.setting, self.opcodes, self.passed = wanted, setting, opcodes, 0
        self.is_child, self.said = False, setting.folder / "said"

    def run(self, act: Callable[[], object], judge: Callable[[], tuple[int, str]], found: Outcomes) -> None:
        def look(frame: FrameType) -> None:
            number, self.passed = self.passed, self.passed + 1
            if self.is_child or number not in self.wanted or self.setting.is_over:
                return
            file, at = place_of(frame, self.opcodes)
            child = os.fork()
            if child == 0:
                self.is_child = True
                raise KeyboardInterrupt
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            why = self.said.read_text() if code not in (BEFORE, AFTER) else ""
            found.note(OUTCOMES.get(code, f"{WRONG} end"), f"{Path(file).name}:{at} {why}")

        code, why = OTHER, ""
        try:
            traced(act, look, self.opcodes)
            code, why = judge() if self.is_child else (AFTER, "")
        except BaseException as error:
            if not self.is_child:
                raise
            code, why = judge() if isinstance(error, KeyboardInterrupt) else (OTHER, repr(error))
        finally:
            if self.is_child:
                self.said.write_text(why)
                os._exit(code)


def cases() -> Iterator[tuple[str, type[Net]]]:
    for kind in KINDS:
        yield from ((kind, net) for net in (Net, Mixed, Grown) if not (kind == "levels" and net is Mixed))


def stop_everywhere(setting: Setting, found: Outcomes, opcodes: bool) -> None:
    chosen = list(cases())
    setting.rng.shuffle(chosen)
    chosen = chosen[: max(1, min(len(chosen), setting.rounds // 40))]
    warnings.simplefilter("ignore")
    for case, (kind, net) in enumerate(chosen):
        base = world(kind, net)
        rounds = setting.rounds // len(chosen) + (case < setting.rounds % len(chosen))
        torch.manual_seed(7)
        rehearsed = copy.deepcopy(base)
        passed = passages(partial(end_task, rehearsed), opcodes)
        torch.manual_seed(7)
        after = picture(*rehearsed)
        pair = copy.deepcopy(base)
        before = picture(*pair)

        after["parameters"] = before["parameters"]
        stopper = Stopper(some_of(passed, rounds, setting.rng), setting, opcodes)
        judge = partial(judged, pair, before, after, f"{kind} {net.__name__}")
        stopper.run(partial(end_task, pair), judge, found)
    gc.collect()


def judged(pair: tuple[Net, BLIP], before: Any, after: Any, case: str) -> tuple[int, str]:
    """Whether network and BLIP are as before or as after, and what is not."""
    now = picture(*pair)
    unlike = [key for key in now if now[key] != before[key]]
    if not unlike:
        return BEFORE, ""
    return (AFTER, "") if now == after else (BETWEEN, f"{case}: {unlike}")


def end_task(pair: tuple[Net, BLIP]) -> None:
    torch.manual_seed(7)
    pair[1].consolidate([make_task(1)], outside="mend")


@attack("interrupts", short=80, long=20_000)
def stop_at_lines(setting: Setting, found: Outcomes) -> None:
    """Ctrl-C at a line of the library inside consolidate, for all guards"""
    stop_everywhere(setting, found, opcodes=False)


@attack("interrupts-opcodes", short=20, long=5_000)
def stop_at_opcodes(setting: Setting, found: Outcomes) -> None:
    """the same between two instructions of Python"""
    stop_everywhere(setting, found, opcodes=True)


@attack("threads", short=2, long=200)
def estimate_in_threads(setting: Setting, found: Outcomes) -> None:
    """two Fisher estimates on one model at once, in two threads"""
    warnings.simplefilter("ignore")
    model = Mixed().train()
    batches = [make_task(seed) for seed in range(6)]
    alone = diagonal_fisher(model, batches, labels="exact")
    for _ in setting.turns():
        results: list[Any] = []

        def work(into: list[Any] = results) -> None:
            into.append(diagonal_fisher(model, batches, labels="exact"))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        right = len(results) == 2 and all(torch.equal(each[name], alone[name]) for each in results for name in alone)
        whole = all(module.training for module in model.modules())
        found.note("same bytes" if right and whole else f"{WRONG} Fisher", [len(results), right, whole])
