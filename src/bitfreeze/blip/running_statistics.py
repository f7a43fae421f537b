"""Running statistics of BatchNorm and the like: no parameters, so frozen bits do not protect them."""

import warnings
from collections.abc import Iterable

from torch import nn


def with_running_statistics(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those of ``modules`` that keep running statistics, each once."""
    return list({id(m): m for m in modules if getattr(m, "running_mean", None) is not None}.values())


def warn_of_running_statistics(modules: list[nn.Module]) -> None:
    """Warn whoever makes a BLIP, if it watches such modules and does not hold them."""
    if modules:
        warnings.warn(
            f"{len(modules)} modules under watch ({type(modules[0]).__name__}) keep running statistics, which later "
            "tasks overwrite; use freeze_statistics=True to hold the statistics after the first task",
            stacklevel=3,
        )


def hold_in_eval(module: nn.Module) -> None:
    """Keep a module in eval mode, also when ``model.train()`` is called."""
    if not isinstance(vars(module).get("train"), _EvalOnly):
        # an attribute of this one module; not a forward hook, which compiled code would not see
        module.train = _EvalOnly(module)  # type: ignore[method-assign]
    module.train()


def release(module: nn.Module) -> None:
    """Let ``model.train()`` put the module into training mode again."""
    if isinstance(vars(module).get("train"), _EvalOnly):
        del module.train


class _EvalOnly:
    """Replacement of a module's ``train``: an object, not a closure, so that modules can be copied and pickled."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return nn.Module.train(self.module, False)
