"""Where a task's loss on earlier ones comes from: `python research/where_lost.py RUN [--samples 60]`.

For finished runs of BLIP along directions. The older of their two checkpoints has the weights that the last task was
learned with, and the centres that the task before left. On validation samples of each earlier task, summed over tasks,
the KL divergence from the network with the centres to the network with the new weights is printed: with all layers
changed, with one layer changed, and with one part of one layer's change. Beside it stands BLIP's estimate.
"""

import argparse
import json
from collections.abc import Iterable, Iterator

import torch
from safetensors.torch import load_file
from torch import Tensor

from bitfreeze.blip.directions import DRIFT_FACTOR
from bitfreeze.blip.older_states import with_parts_by_output
from bitfreeze.blip.turning import Turning
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.results.play import as_it_was
from bitfreeze.lab.results.stored import StoredRun, find_runs
from bitfreeze.lab.runs.checkpoint import TENSORS, TREE
from bitfreeze.lab.runs.folder import runs_root
from bitfreeze.lab.streams import make_stream
from bitfreeze.model.trees import decode

Weights = dict[str, Tensor]
Parts = dict[str, tuple[Tensor, float]]  # change of the joined matrix [o, i], and its estimated cost


def parts_of(change: Tensor, turning: Turning, rest: Tensor | None) -> Parts:
    """The parts of a change [o, i]. ``rest`` is the Fisher of the entries of what input directions leave out."""
    u, v = turning.inputs[0], turning.outputs[0]
    along = change @ u
    turned = v.T @ along
    left = along - v @ turned
    found = {"both sides": (v @ turned @ u.T, _cost(turning.fisher[0], turned))}
    if turning.by_output is not None:
        found["by output"] = left @ u.T, _cost(turning.by_output[0], left)
    if rest is not None:
        found["rest"] = change - along @ u.T, _cost(rest, change - along @ u.T)
    return found


def _cost(fisher: Tensor, change: Tensor) -> float:
    return DRIFT_FACTOR * float((fisher.float() * change.square()).sum()) / 2


class Change:
    """What the last task of a run did to the layers of the backbone."""

    def __init__(self, run: StoredRun) -> None:
        older, _ = sorted((run.folder.path / "checkpoint").iterdir())
        tree = json.loads((older / TREE).read_text())["state"]
        saved = decode(tree, load_file(older / TENSORS))
        self.after: Weights = saved["training"]["plateau"]["best"]
        state = with_parts_by_output({"absent": {}, **saved["method"]})
        self.tensors = state["tensors"]
        self.turnings = {name: Turning.loaded(saved) for name, saved in state["directions"].items()}
        self.before = {**self.after, **{name: saved["centre"] for name, saved in self.tensors.items()}}

    def layers(self) -> Iterator[tuple[str, dict[str, Tensor], Parts]]:
        """Each layer: its name, the whole change of its tensors, and the parts of the joined one."""
        for name, turning in self.turnings.items():
            layer = name.removesuffix(".weight")
            names = [n for n in (name, f"{layer}.bias") if n in self.after]
            change = {n: self.after[n] - self.before[n] for n in names}
            fishers = [self.tensors[n]["fisher"].float() for n in names if "fisher" in self.tensors[n]]
            yield layer, change, parts_of(_joined(change.values()), turning, _joined(fishers) if fishers else None)

    def moved(self, names: list[str], joined: Tensor) -> Weights:
        """The weights before with this change of some layer's joined matrix."""
        widths = [self.before[name][0].numel() for name in names]
        split = zip(names, torch.split(joined, widths, 1), strict=True)
        return {**self.before, **{n: self.before[n] + part.reshape(self.before[n].shape) for n, part in split}}


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], 1)


@torch.no_grad()
def report(run: StoredRun, samples: int) -> Iterator[str]:
    config = as_it_was(run.config)
    stream = make_stream(config.stream, **config.stream_options)
    net = build_network(config.network, stream.shape, [task.classes for task in stream.tasks]).eval()
    seen = [(task.index, stream.load(task).valid.take(slice(0, samples))[0]) for task in stream.tasks[:-1]]
    change = Change(run)
    base = answers(net, change.before, seen)

    def lost(weights: Weights) -> float:
        pairs = zip(base, answers(net, weights, seen), strict=True)
        return sum((p.exp() * (p - q)).sum(1).mean().item() for p, q in pairs)

    yield "| changed | share of the squared change | estimate | lost |"
    yield "| --- | --- | --- | --- |"
    total, rows = 0.0, []
    for layer, whole, parts in change.layers():
        names, size = list(whole), sum(float(value.square().sum()) for value in whole.values())
        estimate = sum(cost for _, cost in parts.values())
        total += estimate
        alone = {**change.before, **{name: change.after[name] for name in names}}
        rows.append(f"| {layer} | | {estimate:.4f} | {lost(alone):.4f} |")
        for part, (matrix, cost) in parts.items():
            share = float(matrix.square().sum()) / size
            rows.append(f"| {layer}, {part} | {share:.2f} | {cost:.4f} | {lost(change.moved(names, matrix)):.4f} |")
    yield f"| all layers | | {total:.4f} | {lost(change.after):.4f} |"
    yield from rows


def answers(net: MultiHead, weights: Weights, seen: list[tuple[int, Tensor]]) -> list[Tensor]:
    net.load_state_dict(weights)
    return [net(x, task).log_softmax(1) for task, x in seen]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--samples", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for run in find_runs(runs_root(), given.runs):
        print(run.title, *report(run, given.samples), sep="\n")


if __name__ == "__main__":
    main()
