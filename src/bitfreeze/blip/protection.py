"""What a model knows, as a small table that belongs to its weights: a saved state of a BLIP without the weights.

The table has the directions of each layer in half precision and the Fisher along them. Of the other parts of the
Fisher, which would be as large as the weights, it has the sums over rows and columns, whose product stands for the
entries. In place of the centres, which are the weights themselves, it has a hash of each tensor. Functions here map a
state dict of a BLIP to a table and back, and know no model.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from .digest import KEY, digest, require_digest, weights_hash
from .rules import DirectionRules
from .saved_state import STATE_FORMAT
from .turning import Task, Turning, carry_over

FORMAT = 1
DENSE = 8  # entries by number of rows and columns, up to which a matrix of entries is kept as it is
POLISHES = 2  # steps that make directions orthonormal to float32 after half precision

Table = dict[str, Any]


# from a state of a BLIP


def table_of(state: Mapping[str, Any], strongest: int | None = None, vocabulary: str = "") -> Table:
    """The table of a state, with at most so many directions of each side of a layer.

    The ``vocabulary`` is the hash of a language model's embeddings, or empty.
    """
    turnings = {name: Turning.loaded(saved) for name, saved in state["directions"].items()}
    tensors = {name: dict(saved) for name, saved in state["tensors"].items() if saved["tasks"]}
    if strongest is not None:
        for name, turning in turnings.items():
            turnings[name] = _with_fewer(turning, strongest, parts_of(name, turning, tensors))
    table = {
        "protection": FORMAT,
        "settings": state["settings"],
        "tasks": state["tasks"],
        "prior": state["prior"] / state["settings"]["tolerance"],
        "positions": state["positions"],
        "tensors": {name: _without_weights(saved) for name, saved in tensors.items()},
        "directions": {name: _halved(turning) for name, turning in turnings.items()},
        **({"vocabulary": vocabulary} if vocabulary else {}),
    }
    return {**table, KEY: digest(table)}


def parts_of(name: str, turning: Turning, tensors: Mapping[str, Table]) -> list[Table]:
    """Saved states of a layer's weight and, if the directions have a place for it, of its bias."""
    weight, module = tensors[name], name.rpartition(".")[0]
    rows = turning.by_rows(weight["centre"])
    has_bias = rows[0].numel() < turning.inputs.shape[1]
    beside = [saved for other, saved in tensors.items() if other.rpartition(".")[0] == module and other != name]
    biases = [saved for saved in beside if "centre" in saved and saved["centre"].shape == rows.shape[:1]]
    return [weight, *biases[:has_bias]]


def _with_fewer(turning: Turning, strongest: int, parts: list[Table]) -> Turning:
    """A layer with the strongest directions only. What lies along the others goes to the other parts."""
    groups, outputs, inputs = *turning.outputs.shape[:2], turning.inputs.shape[1]
    fishers = [part["fisher"] for part in parts if "fisher" in part]
    rest = torch.cat([turning.matrix(fisher.float()) for fisher in fishers], -1) if fishers else None
    u, v = turning.inputs[..., :strongest].contiguous(), turning.outputs[..., :strongest].contiguous()
    nothing = {"turned": torch.zeros(groups, v.shape[-1], u.shape[-1], dtype=u.dtype)}
    if v.shape[-1] < outputs:
        nothing["by_output"] = torch.zeros(groups, outputs, u.shape[-1], dtype=u.dtype)
    if u.shape[-1] < inputs:
        nothing["rest"] = torch.zeros(groups, outputs, inputs, dtype=u.dtype)
    kept = carry_over(turning, rest, Task(u, v, nothing))
    if "rest" in kept:
        for part, own in zip(parts, turning.split(kept["rest"], [part["centre"] for part in parts]), strict=True):
            part["fisher"] = own
    of_inputs, of_outputs = turning.input_energy[..., :strongest], turning.output_energy[..., :strongest]
    return replace(
        turning,
        inputs=u,
        outputs=v,
        input_energy=of_inputs.contiguous(),
        output_energy=of_outputs.contiguous(),
        fisher=kept["turned"],
        by_output=kept.get("by_output"),
    )


def _without_weights(saved: Mapping[str, Any]) -> Table:
    kept = {key: value for key, value in saved.items() if key not in ("centre", "fisher")}
    if "centre" in saved:
        kept |= {"weights": weights_hash(saved["centre"]), "shape": list(saved["centre"].shape)}
    if "fisher" in saved:
        kept["fisher"] = _summed(saved["fisher"])
    return kept


def _summed(fisher: Tensor) -> Table:
    """Sums of a Fisher over rows and over columns, or the Fisher itself if it is small."""
    matrix = fisher.float().reshape(len(fisher), -1) if fisher.ndim else fisher.float().reshape(1, 1)
    if matrix.numel() <= DENSE * sum(matrix.shape):
        return {"entries": fisher.float()}
    total = matrix.sum()
    return {"rows": matrix.sum(1), "columns": matrix.sum(0) / (total if total > 0 else 1)}


def _halved(turning: Turning) -> Table:
    saved = turning.state_dict()
    halves = {key: saved[key].to(torch.bfloat16) for key in ("inputs", "outputs", "fisher")}
    by_output = {} if turning.by_output is None else {"by_output": _summed(turning.by_output.flatten(0, 1))}
    return {**saved, **halves, **by_output}


# back to a state of a BLIP


def require_table(table: Any, path: Any) -> Table:
    """Refuse what is no table, or a damaged one."""
    if not isinstance(table, dict) or table.get("protection") != FORMAT or KEY not in table:
        raise ValueError(
            f"{path} must be a protection, got another file; write one with bitfreeze.save_protection(blip, path)"
        )
    require_digest(table)
    return table


def rules_of(table: Table) -> DirectionRules:
    """The rules that the table was measured with."""
    names = [field.name for field in fields(DirectionRules)]
    return DirectionRules(**{name: value for name, value in table["settings"].items() if name in names})


def state_of(table: Table, weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Table:
    """The state of a BLIP with these weights, by name, and these settings, whose tolerance is in force."""
    directions = {name: loaded_turning(saved).state_dict() for name, saved in table["directions"].items()}
    state = {
        "format": STATE_FORMAT,
        "settings": dict(settings),
        "tasks": table["tasks"],
        "prior": table["prior"] * settings["tolerance"],
        "positions": table["positions"],
        "directions": directions,
        "paces": {name: [1, 0, 0.0] for name in directions},
        "unread": {},
        "unread_steps": 0,
        "width": [1.0, 0],
        "stepped": [],
        "clamped": [],
        "tensors": {name: _with_weights(saved, weights[name]) for name, saved in table["tensors"].items()},
        "absent": {},
    }
    return {**state, KEY: digest(state)}


def _with_weights(saved: Table, weights: Tensor) -> Table:
    kept = {key: value for key, value in saved.items() if key not in ("weights", "shape", "fisher")}
    if "weights" in saved:
        kept["centre"] = weights.detach().cpu().contiguous()
    if "fisher" in saved:
        fisher = entries_of(saved["fisher"], saved["shape"])
        kept["fisher"] = fisher.to(torch.bfloat16) if fisher.ndim > 1 else fisher
    return kept


def entries_of(fisher: Table, shape: list[int]) -> Tensor:
    """The Fisher of single entries, from its sums."""
    if "entries" in fisher:
        found: Tensor = fisher["entries"]
        return found
    return torch.outer(fisher["rows"], fisher["columns"]).reshape(shape)


def loaded_turning(saved: Table) -> Turning:
    """Directions in float32, orthonormal again after half precision."""
    values = {key: value.float() if isinstance(value, Tensor) else value for key, value in saved.items()}
    if "by_output" in saved:
        groups, outputs, _ = values["outputs"].shape
        by_output = entries_of(saved["by_output"], [groups * outputs, values["inputs"].shape[2]])
        values["by_output"] = by_output.reshape(groups, outputs, -1).to(torch.bfloat16)
    turning = Turning.loaded(values)
    return replace(turning, inputs=_orthonormal(turning.inputs), outputs=_orthonormal(turning.outputs))


def _orthonormal(columns: Tensor) -> Tensor:
    """The orthonormal columns that are nearest to these nearly orthonormal ones (Newton's iteration)."""
    for _ in range(POLISHES):
        columns = 1.5 * columns - 0.5 * columns @ (columns.mT @ columns)
    return columns
