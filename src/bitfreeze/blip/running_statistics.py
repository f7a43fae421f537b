"""Running statistics of BatchNorm and the like: no parameters, so frozen bits do not protect them."""

from collections.abc import Collection, Iterable, Set, Sized

from torch import nn

from .._messages import warn_caller


def with_running_statistics(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those of ``modules`` that keep running statistics, each once."""
    return list({id(m): m for m in modules if getattr(m, "running_mean", None) is not None}.values())


def warn_of_running_statistics(
    model: nn.Module, watched: Collection[nn.Module], under_watch: list[nn.Module], *, are_held: bool
) -> None:
    """Warn whoever makes a BLIP of statistics that it does not hold: under watch, or beside what is watched."""
    if under_watch and not are_held:
        warn_caller(
            f"later tasks overwrite the running statistics of {_count(under_watch)} under watch "
            f"({type(under_watch[0]).__name__}); use freeze_statistics=True to hold them after the first task"
        )
    beside = _beside(model, {id(module) for module in watched}, {id(module) for module in under_watch})
    if beside:
        name, module = beside[0]
        warn_caller(
            f"later tasks overwrite the running statistics of {_count(beside)} beside watched ones ('{name}', "
            f"{type(module).__name__}); watch the whole part that they belong to, with freeze_statistics=True"
        )


def _count(modules: Sized) -> str:
    return f"{len(modules)} module{'s' if len(modules) > 1 else ''}"


def _beside(model: nn.Module, watched: Set[int], under_watch: Set[int]) -> list[tuple[str, nn.Module]]:
    """Modules with running statistics outside watch whose parent has a watched module: tasks share them, too."""
    return [
        (f"{path}.{name}".removeprefix("."), child)
        for path, parent in model.named_modules()
        for name, child in parent.named_children()
        if getattr(child, "running_mean", None) is not None
        and id(child) not in under_watch
        and any(id(module) in watched for module in parent.modules())
    ]


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
