"""The state of a BLIP: how it is saved, and how a saved one is taken up."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..model.undo import LAST, ONE_AT_A_TIME, turn_over
from . import checks
from .digest import KEY, digest
from .memento import Memento
from .older_states import with_parts_by_output
from .saved_state import STATE_FORMAT, require_format, require_valid

if TYPE_CHECKING:
    from .blip import BLIP


def saved(blip: "BLIP", sharded: bool) -> dict[str, Any]:
    """What ``BLIP.state_dict`` returns."""
    state: dict[str, Any] = {
        "format": STATE_FORMAT,
        "settings": blip._settings(),
        "tasks": blip.tasks,
        **{key: value for guard in blip._guards for key, value in guard.state_dict(sharded).items()},
    }
    return {**state, KEY: digest(state)}


def take_up(blip: "BLIP", state: Mapping[str, Any], rename: Mapping[str, str] | Callable[[str], str] | None) -> None:
    """Take up a saved state, all of it or nothing, as ``BLIP.load_state_dict`` says."""
    require_format(state)
    _require_same_settings(state["settings"], blip._settings())
    require_valid(state, blip.depth, blip.rules)
    if "directions" in state:
        state = with_parts_by_output(state)
    new_names = checks.renamed([*state["tensors"], *state["absent"]], rename)
    before = Memento(blip, False, blip._with_statistics())
    with turn_over(), ONE_AT_A_TIME, before, before, LAST:
        for guard in reversed(blip._guards):
            guard.load_state_dict(state, new_names.__getitem__)
        blip.tasks, blip._just_loaded, blip._just_ended = state["tasks"], True, False
        blip._hold_statistics()
        before.done = True
    _warn_of_unknown(blip, new_names.values())
    blip._look_out()


def _require_same_settings(given: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    # absent from older states, which were all by weight
    older = {"freeze_statistics": mine["freeze_statistics"], "rounding": "each", "levels": False}
    older = {name: value for name, value in older.items() if name in mine}
    theirs = {**older, **given}
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    differences = [f"{name}={theirs.get(name)!r} there, {mine.get(name)!r} here" for name in names]
    if differences:
        raise ValueError(f"the state must have the same settings, got {'; '.join(differences)}; use the same")


def _warn_of_unknown(blip: "BLIP", known: Iterable[str]) -> None:
    unknown = sorted(set(blip._tensors.current()) - set(known))
    if unknown and blip.tasks:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        warnings.warn(
            f"'{unknown[0]}'{more} is watched here and not in the state, so it is not protected yet; watch the "
            "part that the state was saved for, if you did not add to the model",
            stacklevel=4,  # the caller of load_state_dict
        )
