"""20-split mini-ImageNet: its hundred classes, shuffled by the seed, in twenty tasks of five."""

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ..data import load_mini_imagenet
from ..tasks import Split, Task, TaskData
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, Validation, first_tasks, validation_of

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
TRAIN_SHARE = 5 / 6  # 500 of 600 pictures
Channels = Annotated[Literal["rgb", "bgr"], "order of the colours; the released code feeds blue first"]


def class_order(seed: int) -> list[list[int]]:
    """The five classes of each task."""
    return np.random.RandomState(seed).permutation(100).reshape(20, 5).tolist()


def picture_orders(counts: list[int]) -> list[list[int]]:
    """The order of each class's pictures, training pictures first. It is the same for every seed."""
    random = np.random.RandomState(1234)
    return [random.permutation(count).tolist() for count in counts]


def mini_imagenet20(
    *, seed: Seed = 0, validation: Validation = "holdout", channels: Channels = "rgb", tasks: TaskCount = 20
) -> Stream:
    """mini-ImageNet in twenty tasks. 2 % of the training samples are held out."""
    order = class_order(seed)
    classes = [order[k] for k in first_tasks(list(range(20)), tasks)]
    read = cache(load_mini_imagenet)
    orders = cache(lambda: picture_orders(read().counts()))

    def load(task: Task) -> TaskData:
        parts = []
        for label in classes[task.index]:
            pictures = read().pictures(label)[orders()[label]]
            count = round(TRAIN_SHARE * len(pictures))
            parts.append((pictures[:count], pictures[count:]))
        train, test = (_labelled(part, channels) for part in zip(*parts, strict=True))
        return TaskData(*validation_of(train, validation, seed, share=0.02), test)

    named = tuple(Task(k, f"classes {', '.join(map(str, mine))}", 5) for k, mine in enumerate(classes))
    return Stream("mini_imagenet20", (3, 84, 84), named, load)


def _labelled(pictures: Sequence[Tensor], channels: Channels) -> Split:
    """One split of the pictures of class 0, class 1, ..."""
    x = torch.cat(list(pictures))
    y = torch.arange(len(pictures)).repeat_interleave(torch.tensor([len(mine) for mine in pictures]))
    return Split(x.flip(1) if channels == "bgr" else x, y, MEAN, STD)


register_stream("mini_imagenet20", "mini-ImageNet in twenty five-class tasks", ("mini_imagenet",), mini_imagenet20)
