"""Runs made up on disk: what a real one writes, without the training."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bitfreeze.bits import nested_centre, radius
from bitfreeze.lab.results.stored import StoredRun, find_runs
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.events import AccuracyResult, EpochDone, Started, TaskTested
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.provenance import environment
from bitfreeze.lab.runs.values import to_toml

DEPTH = 20
SHAPES = {"backbone.1.weight": (6, 5), "backbone.1.bias": (6,), "backbone.10.weight": (4, 6, 2)}


def make_run(
    root: Path, method: str = "ft", *, variant: str = "", seed: int = 0, changes: Sequence[str] = (),
    accuracies: Sequence[Sequence[float]] = ((90.0,), (80.0, 95.0)), tasks: Sequence[str] = ("0 or 1", "2 or 3"),
    finished: bool = True,
) -> StoredRun:  # fmt: skip
    """A run of digits5 with these accuracies after each task; blip has bits too."""
    config = make_config("digits5", method, variant, seed, changes)
    folder = RunFolder(root / config.name)
    folder.path.mkdir(parents=True)
    (folder.path / "config.toml").write_text(to_toml({**asdict(config), "environment": environment()}))
    folder.event(Started(tasks=list(tasks), learned=0, epochs_cap=config.settings.epochs))
    matrix: list[list[float]] = []
    for t, row in enumerate(accuracies):
        for epoch in (1, 2):
            seconds = 10.0 * (2 * t + epoch)
            folder.event(
                EpochDone(task=t, epoch=epoch, lr=0.1, train_loss=1 / epoch, valid_loss=2 / epoch, seconds=seconds)
            )
        matrix.append(list(row))
        folder.write_matrix(matrix, "accuracy")
        report = {"capacity": 0.1 * (t + 1)} if method == "blip" else {}
        folder.event(TaskTested(task=t, accuracy=list(row), extra_bytes=1000, buffer_bytes=0, report=report))
    if method == "blip":
        write_bits(folder, len(matrix), seed)
    if finished:
        last = matrix[-1]
        change = (last[0] - matrix[0][0]) if len(matrix) > 1 else 0.0
        folder.event(
            AccuracyResult(
                acc=sum(last) / len(last), bwt=change, bwt_T=change / 2, forgetting=-change,
                learning_acc=sum(m[-1] for m in matrix) / len(matrix), model_bytes=4000, extra_bytes=1000,
                buffer_bytes=0, seconds=42.0,
            )
        )  # fmt: skip
    (run,) = find_runs(root, [str(folder.path)])
    return run


def write_bits(folder: RunFolder, tasks: int, seed: int) -> None:
    """Nested intervals with random bits. Row 2 of the first tensor is a dead unit: its Fisher is 0 in every task."""
    torch.manual_seed(seed)
    state = {name: (torch.zeros(s, dtype=torch.uint8), torch.zeros(s, dtype=torch.int32)) for name, s in SHAPES.items()}
    for t in range(tasks):
        shown = {}
        nothing = 0.5 * torch.log2(torch.tensor((t + 1) / (t + 2)))
        for name, (bits, centre) in state.items():
            extra = torch.randint(0, 4, bits.shape, dtype=torch.uint8)
            if name == "backbone.1.weight":
                extra[2] = 0
            new = bits + extra
            value = (torch.rand(bits.shape) * 2 - 1) * radius(bits, DEPTH) * 2.0**-DEPTH + centre * 2.0**-DEPTH
            moved = nested_centre(value, centre, bits, new, DEPTH, 1.0)
            gain = torch.where(extra > 0, extra - 0.3, nothing / 2)
            if name == "backbone.1.weight":
                gain[2] = nothing
            offset = ((value * 2.0**DEPTH - moved) / radius(new, DEPTH) * 127).round().clamp(-127, 127)
            shown |= {
                f"{name}/bits": new, f"{name}/centre": moved, f"{name}/gain": gain.half(),
                f"{name}/bound": torch.tensor(1.0), f"{name}/offset": offset.to(torch.int8),
            }  # fmt: skip
            state[name] = (new, moved)
        folder.write_tensors("bits", t, shown)
