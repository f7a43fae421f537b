"""20-split mini-ImageNet: its hundred classes, shuffled by the seed, as twenty tasks of five."""

from functools import cache

import numpy as np
import torch

from ..data import load_mini_imagenet
from .stream import Split, Stream, Task, TaskData, first_tasks, validation_of

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
TRAIN_SHARE = 5 / 6  # 500 of 600 pictures


def class_order(seed: int) -> list[list[int]]:
    """The five classes of each task."""
    return np.random.RandomState(seed).permutation(100).reshape(20, 5).tolist()


def picture_orders(counts: list[int]) -> list[list[int]]:
    """The order of each class's pictures, the training ones first: shuffled one class after another, always alike."""
    random = np.random.RandomState(1234)
    orders = [np.arange(count) for count in counts]
    for order in orders:
        random.shuffle(order)
    return [order.tolist() for order in orders]


def mini_imagenet20(*, seed: int = 0, validation: str = "holdout", channels: str = "rgb", tasks: int = 20) -> Stream:
    """``channels="bgr"``: blue first, as the released code feeds them; 2 % of the training samples are held out."""
    if channels not in ("rgb", "bgr"):
        raise ValueError(f"channels={channels!r} is not known: use 'rgb' or 'bgr'")
    order = class_order(seed)
    classes = [order[k] for k in first_tasks(list(range(20)), tasks)]
    read = cache(load_mini_imagenet)
    orders = cache(lambda: picture_orders(read().counts()))

    def load(task: Task) -> TaskData:
        parts: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        labels: tuple[list[int], list[int]] = ([], [])
        for local, label in enumerate(classes[task.index]):
            pictures, shuffled = read().pictures(label), orders()[label]
            count = round(TRAIN_SHARE * len(shuffled))
            for part, y, rows in zip(parts, labels, (shuffled[:count], shuffled[count:]), strict=True):
                part.append(pictures[rows])
                y += [local] * len(rows)
        train, test = (
            Split(_in_order(torch.cat(part), channels), torch.tensor(y), MEAN, STD)
            for part, y in zip(parts, labels, strict=True)
        )
        fit, valid = validation_of(train, validation, seed, share=0.02)
        return TaskData(fit, valid, test)

    named = tuple(Task(k, f"classes {', '.join(map(str, mine))}", 5) for k, mine in enumerate(classes))
    return Stream("mini_imagenet20", (3, 84, 84), named, load)


def _in_order(pictures: torch.Tensor, channels: str) -> torch.Tensor:
    return pictures.flip(1) if channels == "bgr" else pictures
