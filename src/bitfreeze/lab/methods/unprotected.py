"""What becomes of the part of a backbone that a method has no means to protect: it learns with the first task only."""

from collections.abc import Iterable

from torch import Tensor, nn

from ...blip.running_statistics import hold_in_eval, with_running_statistics


def without_unprotected(trained: list[Tensor], backbone: nn.Module, protected: Iterable[Tensor]) -> list[Tensor]:
    """``trained`` without the parameters of the backbone that are not protected, such as norm scales."""
    kept = {id(p) for p in protected}
    fixed = {id(p) for p in backbone.parameters() if id(p) not in kept}
    return [p for p in trained if id(p) not in fixed]


def hold_statistics(backbone: nn.Module) -> None:
    """Keep the running statistics of BatchNorm and the like as they are."""
    for module in with_running_statistics(backbone.modules()):
        hold_in_eval(module)
