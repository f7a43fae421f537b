"""What methods keep, measured after each of ten tasks, against what their records say: the paper's column MO."""

import pytest
import torch

from bitfreeze.lab.methods import Method, make_method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.streams import Stream, make_stream
from bitfreeze.lab.tasks import Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training

TASKS = 10
SETTINGS = Settings(lr=0.1, batch=50, epochs=1)


def ten_tasks() -> Stream:
    """Odd or even: 600 digits, with their pixels in another order for each task."""
    digits = make_stream("digits5")
    pairs = [digits.load(task).train for task in digits.tasks]
    mixed = torch.randperm(sum(map(len, pairs)), generator=torch.Generator().manual_seed(0))[:600]
    x, y = (torch.cat(parts)[mixed] for parts in ([p.x for p in pairs], [p.y for p in pairs]))

    def load(task: Task) -> TaskData:
        order = torch.randperm(64, generator=torch.Generator().manual_seed(task.index))
        split = Split(x.flatten(1)[:, order].reshape(x.shape), y, pairs[0].mean, pairs[0].std)
        return TaskData(split, split, split)

    return Stream("permuted digits", digits.shape, tuple(Task(k, f"order {k}", 2) for k in range(TASKS)), load)


def tensor_bytes(state) -> int:
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(map(tensor_bytes, state.values()))
    return sum(map(tensor_bytes, state)) if isinstance(state, list | tuple) else 0


def build(name: str, stream: Stream, tasks: int) -> tuple[Method, torch.nn.Module, int]:
    torch.manual_seed(0)
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, [2] * tasks)
    plain = tensor_bytes(net.state_dict())
    method = make_method(name, {})
    return method, method.build(net, stream.tasks[:tasks]), plain


def kept(method: Method) -> int:
    return method.extra_bytes() + method.buffer_bytes()


def growth(sizes: list[float]) -> float:
    """Of the line fitted to the sizes by least squares: its rise over all tasks, as a share of the mean size."""
    y = torch.tensor(sizes, dtype=torch.float64)
    number = torch.arange(1.0, len(y) + 1, dtype=torch.float64)
    slope = torch.linalg.lstsq(torch.stack([number, torch.ones_like(number)], 1), y[:, None]).solution[0].item()
    return slope * (len(y) - 1) / y.mean().item()


def sizes_after_each_task(name: str) -> tuple[list[float], list[float]]:
    """In plain networks: what the tasks so far have added, and what was made at the start for that many tasks.

    A network for k tasks has k heads, so what is kept for each of its weights is not growth of the method's own. The
    two are apart because a mask of a bit a weight is little beside what may be kept of each weight from the start.
    """
    stream = ten_tasks()
    method, net, plain = build(name, stream, TASKS)
    at_start, added, made = kept(method), [], []
    for task in stream.tasks:
        data = stream.load(task)
        for _ in Training(method, net, task, data, SETTINGS, seed=task.index).epochs():
            pass
        method.end_task(task, data)
        shorter, _, shorter_plain = build(name, stream, task.index + 1)
        added.append((kept(method) - at_start) / plain)
        made.append(kept(shorter) / shorter_plain)
        assert (method.buffer_bytes() > 0) == method.record.replays
    state = tensor_bytes(method.state_dict()) + tensor_bytes(net.state_dict()) - plain
    assert kept(method) >= 0.99 * state, "the state holds more than is counted"
    return added, made


def order_of(*parts: list[float]) -> str:
    """The order of the part that grows most."""
    most = max((growth(sizes) for sizes in parts if any(sizes)), default=None)
    if most is None:
        return "none"
    return "O(1)" if most < 0.05 else "O(T)" if most > 0.3 else "in between"


@pytest.mark.filterwarnings("ignore:no weight reached the edge")  # one epoch a task moves weights by little
@pytest.mark.parametrize("name", methods)
def test_memory_grows_over_ten_tasks_as_the_record_says(name):
    sizes = sizes_after_each_task(name)
    assert order_of(*sizes) == methods[name].record.memory.removesuffix(", bounded"), sizes


def test_the_fit_tells_a_constant_from_a_line():
    assert growth([5.0] * 10) == pytest.approx(0, abs=1e-12)
    assert growth([3.0 * k for k in range(1, 11)]) == pytest.approx(27 / 16.5)
    assert order_of([0.0] * 10) == "none"
    assert order_of([2.0, *[2.01] * 9]) == "O(1)"
    assert order_of([1 + 0.1 * k for k in range(10)]) == "O(T)"
    assert order_of([1 + 0.01 * k for k in range(10)]) == "in between"
    assert order_of([0.0] * 10, [5.0] * 10) == "O(1)"
    assert order_of([5.0] * 10, [0.01 * k for k in range(10)]) == "O(T)"
