"""ResNet-18: its size, its layers one by one, and statistics that no later task touches."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.nets.norms import TaskNorm
from bitfreeze.lab.tasks import Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training

SHAPE = (3, 20, 20)
TASKS = tuple(Task(k, f"task {k}", 2) for k in range(3))
REFUSED = {
    "hat": "nn.Sequential, got a ResNet",
    "blip_lora": "needs a backbone with linear layers",
    "lora": "needs a backbone with linear layers",
    "osf": "needs a backbone with linear layers",
}
OWN_NETWORKS = ("acl", "acl_r")


def narrow(statistics: str = "first") -> MultiHead:
    torch.manual_seed(0)
    return build_network({"kind": "resnet18", "width": 0.125, "statistics": statistics}, SHAPE, [2] * 3)


@pytest.mark.parametrize(("width", "parameters"), [(1.0, 11_210_532), (1.5, 25_183_876)])
def test_has_as_many_parameters_as_the_released_network(width, parameters):
    net = build_network({"kind": "resnet18", "width": width}, (3, 84, 84), [5] * 20)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net.heads[0].in_features == 512 * width


def by_hand(net: MultiHead, x: Tensor, task: int) -> Tensor:
    """The paper's figure of it, from the weights by name; statistics of the batch."""
    weights = dict(net.backbone.named_parameters())

    def layer(x: Tensor, name: str, stride: int, padding: int = 1) -> Tensor:
        x = F.conv2d(x, weights[f"{name}.weight"], stride=stride, padding=padding)
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt()

    x = layer(x, "conv", 2).relu()
    for number in range(8):
        stride = 2 if number in (2, 4, 6) else 1
        h = layer(layer(x, f"blocks.{number}.conv1", stride).relu(), f"blocks.{number}.conv2", 1)
        x = (h + (layer(x, f"blocks.{number}.shortcut.1", stride, 0) if stride == 2 else x)).relu()
    size = min(4, x.shape[2])
    return net.heads[task](x[:, :, :size, :size].mean((2, 3)))


def test_computes_what_its_layers_do_by_hand():
    torch.manual_seed(0)
    net = build_network({"kind": "resnet18", "width": 0.125}, (3, 84, 84), [2]).double()
    x, y = torch.randn(6, 3, 84, 84, dtype=torch.float64), torch.arange(6) % 2
    torch.testing.assert_close(net(x, 0), by_hand(net, x, 0))
    gradients = [
        torch.autograd.grad(F.cross_entropy(scores, y), list(net.parameters()))
        for scores in (net(x, 0), by_hand(net, x, 0))
    ]
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain)


def test_norms_of_the_first_task_are_those_of_batch_norm_in_training_and_in_eval():
    torch.manual_seed(0)
    ours, plain = TaskNorm(4, 3, "first"), nn.BatchNorm2d(4, affine=False)
    for _ in range(3):
        x = 2 + 3 * torch.randn(8, 4, 5, 5)
        torch.testing.assert_close(ours(x), plain(x))
    torch.testing.assert_close(ours.means[0], plain.running_mean)
    torch.testing.assert_close(ours.variances[0], plain.running_var)
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x))
    ours.train().task = 2
    torch.testing.assert_close(ours(x), plain(x))  # a later task: as in eval


@pytest.mark.parametrize("statistics", ["first", "per_task"])
def test_no_task_changes_what_another_left(statistics):
    torch.manual_seed(0)
    norm = TaskNorm(4, 3, statistics)
    left: dict[int, Tensor] = {}
    for task in range(3):
        for owner in (task, *range(task)):  # its own pictures, and those of a memory
            norm.task = owner
            norm(task + torch.randn(8, 4, 5, 5))
        for owner, before in left.items():
            assert torch.equal(norm.means[owner], before)
        if statistics == "per_task" or task == 0:
            left[task] = norm.means[task].clone()
            assert left[task].any()
    again = copy.deepcopy(norm)
    fresh = TaskNorm(4, 3, statistics)
    fresh.load_state_dict(norm.state_dict())
    for other in (again, fresh):  # taken up after a checkpoint: pictures of the first task still change nothing
        other.task = 0
        other(torch.randn(8, 4, 5, 5))
        assert torch.equal(other.means, norm.means)


def test_a_network_that_begins_with_a_later_task_takes_statistics_in_it():
    """As each of the reference `single` does."""
    norm = TaskNorm(4, 3, "first")
    norm.task = 2
    norm(5 + torch.randn(8, 4, 5, 5))
    assert norm.means.any()


def pictures(task: Task) -> TaskData:
    generator = torch.Generator().manual_seed(task.index)
    x = torch.randint(256, (16, *SHAPE), generator=generator, dtype=torch.uint8)
    split = Split(x, torch.arange(16) % 2, (0.5, 0.4, 0.3), (0.3, 0.3, 0.3))
    return TaskData(split, split, split)


@pytest.mark.filterwarnings("ignore:no weight reached the edge")  # a few steps move weights by little
@pytest.mark.parametrize("statistics", ["first", "per_task"])
@pytest.mark.parametrize("name", [name for name in methods if name not in OWN_NETWORKS])
def test_methods_train_it_and_leave_statistics_of_earlier_tasks_alone(name, statistics):
    quick = {"vcl": {"samples": 2, "prediction_samples": 2}, "ucb": {"samples": 2}}
    method = make_method(name, quick.get(name, {}))
    refused = {**REFUSED, **({"lwf": "use network.statistics=first"} if statistics == "per_task" else {})}
    if name in refused:
        with pytest.raises(ValueError, match=refused[name]):
            method.build(narrow(statistics), TASKS)
        return
    net = method.build(narrow(statistics), TASKS)
    shown = pictures(TASKS[0]).test.take(slice(None))[0]
    left = {}
    for task in TASKS[:2]:
        data = pictures(task)
        epochs = list(Training(method, net, task, data, Settings(lr=0.05, batch=8, epochs=1), seed=0).epochs())
        method.end_task(task, data)
        assert len(epochs) == 1
        net.eval()
        assert method.logits(shown, task).isfinite().all()
        means = {key: value[0].clone() for key, value in net.state_dict().items() if key.endswith(".means")}
        assert all(value.any() for key, value in means.items() if not key.startswith(("1.", "2.")))
        left = left or means
    assert all(torch.equal(means[key], value) for key, value in left.items() if not key.startswith("1."))


def test_the_memory_of_agem_is_seen_through_the_statistics_of_its_own_tasks():
    net = narrow("per_task")
    method = make_method("agem", {})
    method.build(net, TASKS)
    memory = {k: ((k + 1) * torch.randn(6, *SHAPE), torch.arange(6) % 2) for k in range(2)}
    for task, (x, _) in memory.items():
        net(x, task)
    net.eval()
    each = [F.cross_entropy(net(x, task), y) for task, (x, y) in memory.items()]
    assert each[0] != F.cross_entropy(net(memory[0][0], 1), memory[0][1])
    torch.testing.assert_close(method._memory_loss(memory), torch.stack(each).mean())


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((784,), {}, r"inputs of resnet18 must be pictures, got shape \(784,\)"),
        (SHAPE, {"width": 0.01}, "network.width must be at least 1/64, got 0.01"),
        (SHAPE, {"statistics": "last"}, "network.statistics must be first or per_task, got 'last'"),
    ],
)
def test_options_out_of_range_are_refused(shape, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_network({"kind": "resnet18", **options}, shape, [2])
