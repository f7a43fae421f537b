"""Running statistics (BatchNorm and the like) are not parameters, so nothing that is frozen protects them."""

from collections.abc import Iterable

from torch import nn


def with_running_statistics(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Each once."""
    return list({id(m): m for m in modules if getattr(m, "running_mean", None) is not None}.values())


def hold_in_eval(module: nn.Module) -> None:
    """Keep a module in eval mode whatever ``model.train()`` says."""
    if not isinstance(vars(module).get("train"), _EvalOnly):
        # an attribute of this one module; not a forward hook, which compiled code would not see
        module.train = _EvalOnly(module)  # type: ignore[method-assign]
    module.train()


def release(module: nn.Module) -> None:
    """Let ``model.train()`` put it into training mode again."""
    if isinstance(vars(module).get("train"), _EvalOnly):
        del module.train


class _EvalOnly:
    """Takes the place of a module's ``train``. An object, not a closure, so that modules can be copied and pickled."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return nn.Module.train(self.module, False)
