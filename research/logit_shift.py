"""How much of what is forgotten is a constant shift of logits: `python research/logit_shift.py STREAM --method NAME`.

Trains a stream as `bitfreeze run` does, `--variant`, `--seed` and `--set` included. After each task the logits of
earlier tasks' test samples are compared with those of the time when they were learned: accuracy then, now, and now with
the mean change of each logit taken back; and the share of the squared change that this mean is.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.runs.config import Config, make_config
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.training import Settings, Training


def shift(before: Tensor, now: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    """Percent right before, now, and now without the mean change; the share of the squared change that it is."""
    change = now - before
    mean = change.mean(0)
    right = [100 * (z.argmax(1) == labels).float().mean().item() for z in (before, now, now - mean)]
    total = change.square().sum().item()
    return right[0], right[1], right[2], len(change) * mean.square().sum().item() / total if total else 0.0


def shifts(config: Config) -> Iterator[list[tuple[float, float, float, float]]]:
    """After each task, what has become of each one before it."""
    torch.manual_seed(config.seed)
    stream = make_stream(config.stream, **config.stream_options)
    net = build_network(config.network, stream.shape, [task.classes for task in stream.tasks])
    method = make_method(config.method, config.method_options)
    net = method.build(net, stream.tasks)
    learned: list[Tensor] = []
    for task in stream.tasks:
        data = stream.load(task)
        for _ in Training(method, net, task, data, config.settings, seed=task.index).epochs():
            pass
        method.end_task(task, data)
        net.eval()
        now, labels = [], []
        for earlier in stream.tasks[: task.index + 1]:
            test = stream.load(earlier).test
            with torch.no_grad():
                now.append(torch.cat([method.logits(x, earlier) for x, _ in test.batches(250)]))
            labels.append(test.y)
        yield [shift(*seen) for seen in zip(learned, now, labels, strict=False)]
        learned.append(now[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream")
    parser.add_argument("--method", required=True)
    parser.add_argument("--variant", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[])
    chosen = parser.parse_args()
    try:
        config = make_config(chosen.stream, chosen.method, chosen.variant, chosen.seed, changes=chosen.set)
    except ValueError as error:
        parser.error(str(error))
    if not isinstance(config.settings, Settings):
        parser.error(f"{config.stream} has games, and no labels: use a supervised stream")
    torch.set_num_threads(1)
    for task, earlier in enumerate(shifts(config), 1):
        for number, (before, now, back, share) in enumerate(earlier, 1):
            became = f"{before:.1f} -> {now:.1f}, without its mean shift {back:.1f} ({share:.0%} of the change)"
            print(f"after {task}: task {number} {became}", flush=True)


if __name__ == "__main__":
    main()
