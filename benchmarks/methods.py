"""What each method costs: `python benchmarks/methods.py` prints a table for all of the registry, or for those named.

MNIST's network (784-1200, ten heads of ten classes) on ten tasks of random pictures. A step is measured beside one of
fine-tuning, interleaved, best of several rounds, in the third task, when there is something to protect.
"""

import sys

import torch

from bitfreeze.lab.methods import Method, make_method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.streams import Stream
from bitfreeze.lab.tasks import Batch, Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training
from measure import ratio, seconds

TASKS, SAMPLES, BATCH, STEPS, ROUNDS = 10, 2000, 64, 10, 5
COUNTED = (1, 5, 10)
ROWS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in methods},
    "blip, rules=released": ("blip", {"rules": "released", "prior": 1e-11}),
    "blip, rules=following, levels=true": ("blip", {"rules": "following", "levels": True, "budget": 0.1}),
}


def random_stream() -> Stream:
    tasks = tuple(Task(k, f"random {k}", 10) for k in range(TASKS))

    def load(task: Task) -> TaskData:
        generator = torch.Generator().manual_seed(task.index)
        x = torch.randint(256, (SAMPLES, 1, 28, 28), dtype=torch.uint8, generator=generator)
        split = Split(x, torch.randint(10, (SAMPLES,), generator=generator), (0.1307,), (0.3081,))
        return TaskData(split, split, split)

    return Stream("random", (1, 28, 28), tasks, load)


class Learner:
    """A method on the random stream, task by task."""

    def __init__(self, row: str, stream: Stream) -> None:
        torch.manual_seed(0)
        self.stream = stream
        self.method: Method = make_method(*ROWS[row])
        net = build_network({"kind": "mlp", "hidden": [1200]}, stream.shape, [t.classes for t in stream.tasks])
        self.net = self.method.build(net, stream.tasks)
        self.sizes: list[int] = []
        self.end_seconds = 0.0

    def learn(self, task: Task) -> None:
        data = self.stream.load(task)
        for _ in Training(self.method, self.net, task, data, Settings(lr=0.01, batch=BATCH, epochs=1), 0).epochs():
            pass
        self.end_seconds = seconds(lambda: self.method.end_task(task, data))
        self.sizes.append(self.method.extra_bytes() + self.method.buffer_bytes())

    def prepare_steps(self, task: Task) -> None:
        data = self.stream.load(task)
        self.method.begin_task(task, data)
        self.optimizers = self.method.optimizers(task, 0.01)
        self.batch = Batch(*data.train.take(slice(BATCH)), task)
        self.net.train()

    def steps(self) -> None:
        for step in range(STEPS):
            self.method.train_batch(self.batch, step / STEPS, self.optimizers)


def measure_method(row: str, stream: Stream) -> tuple[float, float, list[int]]:
    """(step / step of fine-tuning, seconds at a task's end, bytes kept after each task)."""
    ours, plain = Learner(row, stream), Learner("ft", stream)
    for task in stream.tasks[:2]:
        ours.learn(task)
    for learner in (ours, plain):
        learner.prepare_steps(stream.tasks[2])
    step = ratio(ours.steps, plain.steps, ROUNDS)[0]
    for task in stream.tasks[2:]:
        ours.learn(task)
    return step, ours.end_seconds, ours.sizes


def main() -> None:
    torch.set_num_threads(1)
    stream = random_stream()
    print(f"torch {torch.__version__}, 1 thread, {torch.backends.cpu.get_cpu_capability()}\n")
    print(
        "| method | step / step of ft | seconds at a task's end | " + " | ".join(f"MB after {k}" for k in COUNTED), "|"
    )
    print("| --- | --- | --- |" + " --- |" * len(COUNTED))
    for row in sys.argv[1:] or ROWS:
        step, end, sizes = measure_method(row, stream)
        megabytes = " | ".join(f"{sizes[k - 1] / 1e6:.3g}" for k in COUNTED)
        print(f"| {row} | {step:.2f} | {end:.2f} | {megabytes} |", flush=True)


if __name__ == "__main__":
    main()
