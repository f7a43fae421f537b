"""Protecting a pretrained model before its first task: measure what it knows, or load what somebody else measured."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..model.parameters import Slot, Watch, find_parameters
from ..model.trees import read_tree, write_tree
from .blip import BLIP
from .digest import ANYTHING, weights_hash
from .protection import Table, require_table, rules_of, state_of, table_of
from .rules import DirectionRules, Rules


def protect(
    model: nn.Module,
    data: Iterable[Any] | str | os.PathLike[str],
    forward: Callable[[Any], Any] | None = None,
    *,
    tolerance: float | None = None,
    watch: Watch = None,
    rules: Rules | None = None,
    freeze_statistics: bool = False,
    **measuring: Any,
) -> BLIP:
    """Hold what a pretrained model knows, before it is fine-tuned on anything.

    Args:
        model: a pretrained model.
        data: a few hundred samples of what the model is to keep, in batches as for ``BLIP.consolidate``: text or
            pictures like those it was trained on, or text that it wrote itself. Or the path of a file that
            ``save_protection`` wrote.
        forward: as for ``BLIP.consolidate``.
        tolerance: nats a sample (a predicted token, for sequences) that a fine-tuning may cost the model on such data,
            as far as the cost can be estimated; 0.05 by default, or what the file was measured with.
        watch: as for ``BLIP``.
        rules: as for ``BLIP``.
        freeze_statistics: as for ``BLIP``, and from the start.
        measuring: other arguments of ``BLIP.consolidate``.

    Returns:
        A BLIP that is attached: whatever optimizer steps the model, the model stays within the tolerance.

    Raises:
        FileNotFoundError: there is no file at this path.
        ValueError: the data cannot be measured, the file is no protection or is that of other weights, or an argument
            that belongs to measuring is given with a file.
        TypeError: the model has half precision.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> blip = protect(model, [torch.randn(64, 4)], tolerance=0.02)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for _ in range(20):  # any training
        ...     nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.ones(16).long()).backward()
        ...     optimizer.step()
        >>> blip.clamp_()
        >>> blip.drift() < 0.025
        True
    """
    if isinstance(data, str | os.PathLike):
        given = {"forward": forward, "watch": watch, "rules": rules, **measuring}
        _require_left_out([name for name, value in given.items() if value is not None], freeze_statistics)
        blip = _loaded(model, read_protection(data), data, tolerance)
    else:
        blip = BLIP(model, watch=watch, tolerance=tolerance, rules=rules, freeze_statistics=freeze_statistics)
        blip.consolidate(data, forward, **measuring)
    blip.attach()
    return blip


def save_protection(blip: BLIP, path: str | os.PathLike[str], *, strongest: int | None = None) -> None:
    """Write what a BLIP holds into a small file that belongs to the weights, for others who have the same weights.

    The weights are not in the file. Directions are stored in half precision, and the Fisher of single entries by its
    sums over rows and columns, so what is loaded holds nearly, not exactly, as what was saved.

    Args:
        blip: a BLIP along directions whose weights are as its last task, or ``protect``, left them.
        path: the file. ``.safetensors`` needs that package; any other name is torch's own format.
        strongest: number of directions of each side of a layer that are kept. Default: all that were measured.

    Raises:
        ValueError: the BLIP holds nothing yet, has rules by weight, or its weights have changed since.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(4, 3)
        >>> blip = protect(model, [torch.randn(64, 4)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_protection(blip, f"{folder}/base.pt")
        ...     protect(model, f"{folder}/base.pt", tolerance=0.01)
        BLIP(bits=20, tolerance=0.01, tasks=1)
    """
    if strongest is not None and strongest < 1:
        raise ValueError(f"strongest must be a whole number of at least 1, got {strongest!r}")
    if Path(path).is_dir():
        raise ValueError(f"path must be a file to write, got the folder {path}; give it a name in there")
    write_tree(Path(path), table_for(blip, strongest))


def table_for(blip: BLIP, strongest: int | None = None) -> Table:
    """What ``save_protection`` writes, with its refusals."""
    if not isinstance(blip.rules, DirectionRules):
        raise ValueError("blip must hold along directions, got rules by weight; use Rules.directions()")
    if not blip.tasks:
        raise ValueError("blip must hold something, got one that has ended no task; call consolidate or protect first")
    blip._bind()
    state = blip.state_dict()
    slots = {slot.name: slot for slot in find_parameters(blip.model, blip.watch)}
    for name, saved in state["tensors"].items():
        if "centre" in saved and not torch.equal(saved["centre"].cpu(), whole(slots[name]).cpu()):
            raise ValueError(
                f"'{name}' must be as it was measured, got other weights; save the protection before you train"
            )
    return table_of(state, strongest, vocabulary_of(blip.model))


def vocabulary_of(model: nn.Module) -> str:
    """The hash of the input embeddings of a language model, which belong to its tokenizer; empty where it has none."""
    try:
        weight = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "weight", None)
    except NotImplementedError:  # models of Transformers that read no tokens
        weight = None
    return weights_hash(weight) if isinstance(weight, Tensor) else ""


def require_vocabulary(table: Table, model: nn.Module) -> None:
    """Refuse a table of a model with other input embeddings."""
    saved, here = table.get("vocabulary", ""), vocabulary_of(model)
    if saved and here and ANYTHING not in (saved, here) and saved != here:
        raise ValueError(
            "the protection must be of a model with these input embeddings, got one with others: another tokenizer, a "
            "vocabulary that was resized, or embeddings that were trained; measure the base as it is now"
        )


def read_protection(path: str | os.PathLike[str]) -> Table:
    """The table in a file that ``save_protection`` wrote."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist; give batches of data, or a file of bitfreeze.save_protection")
    return require_table(read_tree(Path(path)), path)


def whole(slot: Slot) -> Tensor:
    """All entries of a parameter, also of one that is sharded."""
    return slot.layout.full(slot.local).detach()


def require_own(table: Table, weights: Mapping[str, Tensor]) -> None:
    """Refuse a table of other weights. ``weights`` are by the names in the table."""
    for name, saved in table["tensors"].items():
        if name not in weights:
            raise ValueError(f"the protection must be of this model, got one with '{name}', which the model lacks")
        if "shape" in saved and saved["shape"] != list(weights[name].shape):
            raise ValueError(
                f"the protection must be of this model, got '{name}' of shape {saved['shape']}, which has the shape "
                f"{list(weights[name].shape)} here"
            )
    for name, saved in table["tensors"].items():
        if "weights" in saved and saved["weights"] != weights_hash(weights[name]):
            if weights[name].dtype in (torch.float16, torch.bfloat16):
                raise ValueError(
                    f"the protection must belong to these weights, got '{name}' in "
                    f"{str(weights[name].dtype).removeprefix('torch.')}; if the model was measured in float32, these "
                    "are rounded: measure them as they are now, in float32 (model.float())"
                )
            raise ValueError(
                f"the protection must belong to these weights, got one that was measured on others ('{name}' differs); "
                "load it before you train, into the weights that it was measured on"
            )


def _loaded(model: nn.Module, table: Table, path: Any, tolerance: float | None) -> BLIP:
    slots = {slot.name: slot for slot in find_parameters(model)}
    weights = {name: whole(slots[name]) for name in table["tensors"] if name in slots}
    require_own(table, weights)
    require_vocabulary(table, model)
    settings = table["settings"]
    blip = BLIP(
        model, watch=list(table["tensors"]), tolerance=settings["tolerance"] if tolerance is None else tolerance,
        rules=rules_of(table), bits=settings["bits"], bound=settings["bound"],
        freeze_statistics=settings["freeze_statistics"],
    )  # fmt: skip
    blip.load_state_dict(state_of(table, weights, blip._settings()))
    return blip


def _require_left_out(given: list[str], freeze_statistics: bool) -> None:
    names = [*given, *(["freeze_statistics"] if freeze_statistics else [])]
    if names:
        raise ValueError(f"{names[0]} must be left out with a file, which holds what was measured with it")
