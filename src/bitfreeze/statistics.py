"""Running statistics (BatchNorm and the like) are not parameters, so nothing that is frozen protects them."""

from collections.abc import Iterable
from typing import Any

from torch import nn


def with_running_statistics(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return [module for module in modules if getattr(module, "running_mean", None) is not None]


def hold_in_eval(module: nn.Module) -> None:
    """Keep a module in eval mode whatever ``model.train()`` says: before each call it is put back."""
    module.eval()
    if _put_in_eval not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_put_in_eval)


def _put_in_eval(module: nn.Module, _: Any) -> None:
    module.training = False
