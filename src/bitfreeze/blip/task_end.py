"""The end of a task for ``Directions``: states of layers and tensors after it, and their reports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..fisher import FisherEstimate
from ..fisher.factors import split_joined
from ..fisher.measuring import NOT_USED
from ..fisher.turned_fisher import TurnedFisher
from ..model.ranks import Ranks
from .consolidation import TensorReport, bit_counts, shared, tensor_report
from .guards import Measured
from .held_tensor import HeldTensor, bits_of
from .turned_layer import TurnedLayer
from .turning import Task, Turning, carry_over, damped

Counted = tuple[Tensor, Tensor, Tensor, float]  # Fisher of earlier tasks, all tasks, this task; share that counts


@dataclass
class TaskEnd:
    """Collects the states after a task. The states before it stay as they are."""

    before: Mapping[str, HeldTensor]
    turnings_before: Mapping[str, Turning]
    apart: Iterable[TurnedLayer]  # held along directions so far, entry by entry from now on
    prior: float
    damping: float
    over_tasks: str  # Fisher of all tasks: ``sum`` or ``mean``
    ranks: Ranks
    states: dict[str, HeldTensor] = field(default_factory=dict)
    turnings: dict[str, Turning] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    edges: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fisher_apart = {
            part.slot.name: fisher
            for layer in self.apart
            for part, fisher in zip(layer.parts, layer.fisher_of_entries(), strict=True)
        }

    def add_layer(
        self, name: str, weight: HeldTensor, bias: HeldTensor | None, turning: Turning, found: TurnedFisher,
        layer: TurnedLayer | None,
    ) -> None:  # fmt: skip
        """Add a layer that is held along directions. ``layer``: the same layer as it was held in this task."""
        parts, module = [part for part in (weight, bias) if part is not None], weight.slot.module
        means = {part: total / found.samples for part, total in found.totals.items()}
        task = damped(Task(turning.inputs, turning.outputs, means), self.damping)
        fishers = [
            turning.matrix(torch.zeros_like(part.local) if part.fisher is None else part.fisher) for part in parts
        ]
        held_before = any(part.fisher is not None for part in parts)
        rest_before = torch.cat(fishers, -1).detach().to(turning.inputs) if held_before else None
        before = self.turnings_before.get(name)
        carried = carry_over(None if before is None else before.to(turning.inputs), rest_before, task)
        totals = {part: self._sum(carried[part], new, weight.tasks) for part, new in task.parts.items()}
        # half precision is enough for a radius
        kept = {part: total if part == "turned" else total.to(torch.bfloat16) for part, total in totals.items()}
        own = {part: self.ranks.broadcast_(kept[part].contiguous()) for part in kept if part != "rest"}
        self.turnings[name] = replace(turning, fisher=own["turned"], by_output=own.get("by_output")).packed()
        split = split_joined(module, kept["rest"]) if "rest" in kept else {}
        for part in parts:
            self._take(part.after_task(split.get(part.slot.owners[0][1]), self.prior))
        shares = turning.shares()
        bits = [(carried[part], totals[part], new, shares[part]) for part, new in task.parts.items()]
        self._count(name, weight, bits, "along directions", None if layer is None else layer.at_edge())

    def add_idle_layer(self, name: str, weight: HeldTensor, bias: HeldTensor | None) -> None:
        """Add a layer that this task does not use: it keeps its coordinates and their Fisher."""
        self.turnings[name] = turning = self.turnings_before[name]
        for part in (weight, bias):
            if part is not None:
                self._take(part.after_task(part.fisher, self.prior))
        fishers = {"turned": turning.fisher}
        if turning.by_output is not None:
            fishers["by_output"] = turning.by_output
        rest = [part.fisher for part in (weight, bias) if part is not None and part.fisher is not None]
        if rest:
            fishers["rest"] = torch.cat([turning.matrix(fisher) for fisher in rest], -1)
        shares = turning.shares()
        bits = [(f, f, torch.zeros_like(f), shares[part]) for part, f in fishers.items()]
        self._count(name, weight, bits, NOT_USED, None)

    def add_tensor(self, name: str, state: HeldTensor, fisher: Tensor, way: str) -> None:
        """Add a tensor that is held entry by entry. One that this task does not use keeps its Fisher, as layers do."""
        before = self.fisher_apart.get(name, state.fisher)
        old = torch.zeros_like(fisher) if before is None else before.to(fisher)
        unused = way == NOT_USED and not state.layout.largest(float(fisher.any()))
        total = old if unused else self._sum(old, fisher, state.tasks)
        edge = None if state.fisher is None or name in self.fisher_apart else state.at_edge()
        self._take(state.after_task(total, self.prior))
        self._count(name, state, [(old, total, fisher, 1.0)], way, edge)

    def _sum(self, old: Tensor, new: Tensor, tasks: int) -> Tensor:
        return old + new if self.over_tasks == "sum" else (tasks * old + new) / (tasks + 1)

    def _take(self, state: HeldTensor) -> None:
        state.take_from_first_(self.ranks)
        self.states[state.slot.name] = state

    def _count(self, name: str, state: HeldTensor, parts: list[Counted], way: str, edge: int | None) -> None:
        """Count bits of coordinates from their Fisher."""
        if state.layout.counts_here(self.ranks):
            counts = []
            for old, total, task, share in parts:
                before, after = (bits_of(f, self.prior, state.bound, state.depth) for f in (old, total))
                counts.append(shared(bit_counts(before, after, task > 0, state.depth), share))
            self.counts[name] = torch.stack(counts).sum(0)
        else:
            self.counts[name] = torch.zeros(3, state.depth + 1, dtype=torch.int64)
            edge = None if edge is None else 0
        self.ways[name], self.edges[name] = way, edge

    def measured(self, estimate: FisherEstimate, positions: float) -> Measured:
        names = [name for name in self.before if name in self.counts]
        counts = self.ranks.sum_(torch.stack([self.counts[name] for name in names]))
        edges = self.ranks.sum_(torch.tensor([self.edges[name] or 0 for name in names], device="cpu"))
        reports: dict[str, TensorReport] = {}
        for k, name in enumerate(names):
            label = name.removesuffix(".weight") if name in self.turnings else name
            edge = None if self.edges[name] is None else int(edges[k])
            reports[label] = tensor_report(label, self.before[name].depth, self.ways[name], counts[k], edge)
        states = {name: self.states[name] for name in self.before}
        away = {name: turning for name, turning in self.turnings_before.items() if name not in self.before}
        after: Any = states, {**away, **self.turnings}, self.prior, positions
        return Measured(after, reports, counts[:, 0].sum(0).tolist(), estimate)
