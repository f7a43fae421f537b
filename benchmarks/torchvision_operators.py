"""torchvision imports beside a CPU build of torch once its operators are declared, though not implemented.

Avalanche imports torchvision, and so does torchmetrics (hence Lightning) when it finds it; neither calls these here.
"""

import torch

NAMES = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")


def declare() -> None:
    """Once is enough, and more does no harm."""
    for name in NAMES:
        for operator in (name, f"_{name}_backward"):
            if not hasattr(torch.ops.torchvision, operator):
                torch.library.define(f"torchvision::{operator}", "() -> Tensor")
