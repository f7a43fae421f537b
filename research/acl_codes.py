"""What ACL's two codes tell: `python research/acl_codes.py RUN`, of a finished run of acl or acl_r.

For each task, on its test data, the accuracy as it is, with the shared code taken away and with the private one, and by
how much each number of a code differs from picture to picture (its standard deviation, the mean over the code).
"""

import sys
from dataclasses import dataclass

import torch

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.nets.adversarial import SharedPrivate
from bitfreeze.lab.results.stored import StoredRun, find_runs
from bitfreeze.lab.runs.checkpoint import load_checkpoint
from bitfreeze.lab.runs.folder import runs_root
from bitfreeze.lab.streams import Stream, make_stream
from bitfreeze.lab.tasks import Split


@dataclass(frozen=True)
class Codes:
    """Accuracies in percent, and spreads."""

    accuracy: float
    without_shared: float
    without_private: float
    shared_spread: float
    private_spread: float


def network_of(run: StoredRun, stream: Stream) -> SharedPrivate:
    """As it was in the end."""
    net = build_network(run.config["network"], stream.shape, [task.classes for task in stream.tasks])
    built = make_method(run.method, run.config["method_options"]).build(net, stream.tasks)
    saved = load_checkpoint(run.folder.checkpoints)
    if not isinstance(built, SharedPrivate) or saved is None:
        raise SystemExit(f"{run.folder.path} is no run of ACL with a checkpoint")
    built.load_state_dict(saved.state["net"])
    return built.eval()


@torch.no_grad()
def codes(net: SharedPrivate, task: int, split: Split, batch: int = 500) -> Codes:
    right, shared, private = torch.zeros(3), [], []
    for x, y in split.batches(batch):
        s, p = net.codes(x, task)
        for k, pair in enumerate(((s, p), (torch.zeros_like(s), p), (s, torch.zeros_like(p)))):
            right[k] += (net.classify(*pair, task).argmax(1) == y).sum()
        shared.append(s)
        private.append(p)
    spreads = (torch.cat(found).std(0).mean().item() for found in (shared, private))
    return Codes(*(100 * right / len(split)).tolist(), *spreads)


def main() -> None:
    for run in find_runs(runs_root(), sys.argv[1:]):
        print(run.title)
        stream = make_stream(run.stream, **run.config["stream_options"])
        net = network_of(run, stream)
        for task in stream.tasks:
            found = codes(net, task.index, stream.load(task).test)
            print(
                f"  {task.name}: accuracy {found.accuracy:.2f}, without the shared code {found.without_shared:.2f}, "
                f"without the private one {found.without_private:.2f}; spread of the shared code "
                f"{found.shared_spread:.2g}, of the private one {found.private_spread:.2g}"
            )


if __name__ == "__main__":
    main()
