"""Ctrl-C at every line of consolidate and of the guards, and two threads on one model."""

import copy
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
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


def world(kind: str, net: type[Net]) -> tuple[Net, BLIP]:
    """A network in the middle of its second task."""
    model = net()
    settings = {**KINDS[kind], **({"freeze_statistics": True} if net is Mixed else {})}
    blip = BLIP(model, **settings)
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=3.0)
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


def traced(act: Callable[[], object], look: Callable[[FrameType, str], None], opcodes: bool) -> None:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = opcodes
        if event == ("opcode" if opcodes else "line"):
            look(frame, event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)


def points(act: Callable[[], object], opcodes: bool) -> list[tuple[str, int, int]]:
    """Each place that the call passes, with the number of times."""
    seen: dict[tuple[str, int], int] = {}

    def look(frame: FrameType, _: str) -> None:
        place = frame.f_code.co_filename, frame.f_lasti if opcodes else frame.f_lineno
        seen[place] = seen.get(place, 0) + 1

    traced(act, look, opcodes)
    return [(*place, times) for place, times in seen.items()]


def interrupted(act: Callable[[], object], place: tuple[str, int], time: int, opcodes: bool) -> bool:
    """Whether the call was stopped at the ``time``-th passage of a place."""
    left = [time]

    def look(frame: FrameType, _: str) -> None:
        here = frame.f_code.co_filename, frame.f_lasti if opcodes else frame.f_lineno
        if here == place:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    try:
        traced(act, look, opcodes)
    except KeyboardInterrupt:
        return True
    return False


def cases() -> Iterator[tuple[str, type[Net]]]:
    for kind in KINDS:
        yield from ((kind, net) for net in (Net, Mixed) if not (kind == "levels" and net is Mixed))


def stop_everywhere(setting: Setting, found: Outcomes, opcodes: bool) -> None:
    chosen = list(cases())
    setting.rng.shuffle(chosen)
    chosen = chosen[: max(1, min(len(chosen), setting.rounds // 40))]
    for case, (kind, net) in enumerate(chosen):
        warnings.simplefilter("ignore")
        base = world(kind, net)

        def end_task(pair: tuple[Net, BLIP]) -> Any:
            torch.manual_seed(7)
            return pair[1].consolidate([make_task(1)], outside="mend")

        torch.manual_seed(7)
        first = copy.deepcopy(base)
        before = picture(*first)
        passed = points(lambda pair=first: end_task(pair), opcodes)  # type: ignore[misc]
        torch.manual_seed(7)
        after = picture(*first)
        rounds = setting.rounds // len(chosen) + (case < setting.rounds % len(chosen))
        places = setting.rng.sample(passed, rounds) if rounds < len(passed) else passed
        for file, at, times in places:
            if setting.is_over:
                break
            pair = copy.deepcopy(base)
            torch.manual_seed(7)
            expected = {**before, "parameters": picture(*pair)["parameters"]}
            stopped = interrupted(lambda p=pair: end_task(p), (file, at), setting.rng.randint(1, times), opcodes)  # type: ignore[misc]
            now = picture(*pair)
            cause = f"{kind} {net.__name__} {Path(file).name}:{at}"
            if not stopped:
                found.note("not stopped there")
            elif now == expected:
                found.note("as before")
            elif now == {**after, "parameters": expected["parameters"]}:
                found.note("as after")
            else:
                unlike = [key for key in now if now[key] != expected[key]]
                found.note(f"{WRONG}, between", f"{cause}: {unlike}")
    gc.collect()


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
