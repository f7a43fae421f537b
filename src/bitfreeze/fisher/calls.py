"""The user's forward as an estimate calls it: several times with the same batch, with every module in eval mode."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks, register_module_forward_pre_hook

from .batches import map_tensors, tensors_of
from .quiet import require_independent_samples


class Calls:
    """Calls ``forward`` with a copy of the batch's containers, and of its tensors if ``forward`` changes them in place.

    Modules outside the model that ``forward`` calls go into eval mode at their first call. ``close`` restores them.
    """

    def __init__(self, forward: Callable[[Any], Any]) -> None:
        self.forward = forward
        self.changes_input: bool | None = None  # None until the first call, which gets copies
        self.in_training: dict[int, nn.Module] = {}  # modules to restore, by id
        self.thread = threading.get_ident()

    def __call__(self, x: Any) -> Any:
        given = map_tensors(self._own, x)
        before = self._versions(given)
        with self._all_in_eval():
            output = self.forward(given)
        if self.changes_input is None:
            self.changes_input = self._versions(given) != before
        return output

    def close(self) -> None:
        self._forget_hooks()
        for module in self.in_training.values():
            module.training = True

    def _forget_hooks(self) -> None:
        """Remove this object's hooks: Ctrl-C may have come between adding one and noting it."""
        for key, hook in list(_global_forward_pre_hooks.items()):
            if getattr(hook, "__self__", None) is self:
                _global_forward_pre_hooks.pop(key, None)

    def _own(self, _: str, value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and self.changes_input is not False else value

    def _versions(self, given: Any) -> list[int]:
        known = self.changes_input is not None
        return [] if known else [value._version for _, value in tensors_of(given) if isinstance(value, Tensor)]

    @contextmanager
    def _all_in_eval(self) -> Iterator[None]:
        """Put each module that is called into eval mode. Other threads may be training, so only in this thread."""
        self.thread = threading.get_ident()
        handle = register_module_forward_pre_hook(self._look)
        try:
            yield
        finally:
            handle.remove()

    def _look(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        if module.training and threading.get_ident() == self.thread:
            require_independent_samples(module, type(module).__name__)
            self.in_training[id(module)] = module
            module.training = False
