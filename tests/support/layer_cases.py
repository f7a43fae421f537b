"""Convolutions of every kind: name, class, sizes, options, shape of one sample."""

from typing import Any

from torch import nn

CONVOLUTIONS: list[tuple[str, Any, Any, dict[str, Any], tuple[int, ...]]] = [
    ("plain", nn.Conv1d, (2, 3, 3), {}, (2, 7)),
    ("no-bias", nn.Conv2d, (2, 3, 3), {"bias": False}, (2, 5, 6)),
    ("plain", nn.Conv2d, (2, 3, (3, 2)), {}, (2, 5, 6)),
    ("plain", nn.Conv3d, (2, 3, 2), {}, (2, 3, 4, 3)),
    ("groups", nn.Conv1d, (4, 6, 3), {"groups": 2}, (4, 7)),
    ("groups", nn.Conv2d, (4, 6, 3), {"groups": 2}, (4, 5, 5)),
    ("groups", nn.Conv3d, (4, 2, 2), {"groups": 2}, (4, 3, 3, 3)),
    ("depthwise", nn.Conv2d, (3, 3, 3), {"groups": 3}, (3, 5, 5)),
    ("depthwise-multiplied", nn.Conv2d, (3, 6, 3), {"groups": 3, "padding": 1}, (3, 4, 4)),
    ("stride", nn.Conv1d, (2, 3, 3), {"stride": 2}, (2, 8)),
    ("stride", nn.Conv2d, (2, 3, 3), {"stride": (2, 3)}, (2, 8, 9)),
    ("stride-unused-rim", nn.Conv2d, (2, 3, 2), {"stride": 3}, (2, 7, 6)),
    ("dilation", nn.Conv2d, (2, 3, 3), {"dilation": (2, 1)}, (2, 7, 5)),
    ("padding", nn.Conv2d, (2, 3, 3), {"padding": (1, 2)}, (2, 4, 4)),
    ("padding", nn.Conv3d, (2, 2, 3), {"padding": (1, 0, 2)}, (2, 3, 3, 2)),
    ("valid", nn.Conv2d, (2, 3, 3), {"padding": "valid"}, (2, 4, 5)),
    ("same-even-kernel", nn.Conv1d, (2, 3, 4), {"padding": "same"}, (2, 6)),
    ("same-dilated", nn.Conv2d, (2, 3, (2, 3)), {"padding": "same", "dilation": (3, 1)}, (2, 5, 4)),
    ("all-at-once", nn.Conv2d, (4, 4, 3), {"groups": 2, "stride": 2, "padding": 2, "dilation": 2}, (4, 6, 7)),
    ("one-position", nn.Conv1d, (2, 3, 5), {}, (2, 5)),
    ("one-position", nn.Conv2d, (2, 3, 4), {}, (2, 4, 4)),
    ("one-position-groups", nn.Conv2d, (4, 6, 3), {"groups": 2, "padding": 1, "stride": 5}, (4, 3, 3)),
    ("one-by-one", nn.Conv2d, (3, 4, 1), {}, (3, 3, 3)),
    *(
        (f"{mode}-{padding}", conv, (2, 3, 3), {"padding": padding, "padding_mode": mode}, shape)
        for mode in ("reflect", "replicate", "circular")
        for conv, padding, shape in [
            (nn.Conv1d, 2, (2, 6)),
            (nn.Conv2d, (1, 2), (2, 4, 5)),
            (nn.Conv2d, "same", (2, 4, 5)),
            (nn.Conv3d, 1, (2, 3, 3, 3)),
        ]
    ),
]
