"""Conditions of an estimate: the whole model in eval mode, gradients on, autocast and compilation off."""

import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ..model.devices import random_states, set_random_states
from ..model.parameters import Slot
from ..model.undo import LAST, Undo
from .taps import forget_taps


class Surroundings:
    """What an estimate changes of a model and of the process, taken before it. ``put_back`` may be called twice."""

    def __init__(self, model: nn.Module, slots: Sequence[Slot]) -> None:
        self.model = model
        self.modes = [(module, module.training) for module in model.modules()]
        # Some modules store tensors that each call computes anew (pruned weights). torch.func would leave its own.
        self.computed = [
            (module, {k: v for k, v in vars(module).items() if isinstance(v, Tensor)}, dict(module._parameters))
            for module, _ in self.modes
        ]
        self.parameters = [slot.parameter for slot in slots]
        self.learning = [parameter.requires_grad for parameter in self.parameters]
        self.random = random.getstate(), np.random.get_state()  # noqa: NPY002 - loaders use it
        kinds = dict.fromkeys(["cpu", self.parameters[0].device.type])
        self.random_of_devices = {kind: random_states(kind) for kind in kinds}
        self.fast_attention = torch.backends.mha.get_fastpath_enabled()

    def put_back(self) -> None:
        forget_taps(self.model)
        torch.backends.mha.set_fastpath_enabled(self.fast_attention)
        for module, mode in self.modes:
            module.training = mode
        for module, tensors, parameters in self.computed:
            vars(module).update(tensors)
            module._parameters.update(parameters)
        for parameter, learns in zip(self.parameters, self.learning, strict=True):
            parameter.requires_grad_(learns)
        python_state, numpy_state = self.random
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for kind, states in self.random_of_devices.items():
            set_random_states(kind, states)


@contextmanager
def undisturbed(model: nn.Module, slots: Sequence[Slot]) -> Iterator[None]:
    """Set these conditions, and restore modes, ``requires_grad`` and random states at the end, also after an error."""
    for name, module in model.named_modules():
        require_independent_samples(module, name)
    before = Surroundings(model, slots)
    device = before.parameters[0].device
    with Undo(before.put_back), Undo(before.put_back), ExitStack() as stack, LAST:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if "torch._dynamo" in sys.modules:  # compiled code does not run hooks that were added after compiling
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(warnings.catch_warnings())
            # calls.py adds a global hook
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        torch.backends.mha.set_fastpath_enabled(False)  # fused attention cannot be differentiated
        model.eval()
        for parameter in before.parameters:
            parameter.requires_grad_(True)
        yield


def require_independent_samples(module: nn.Module, name: str) -> None:
    """Raise ValueError if a sample's gradient in this module depends on the rest of the batch."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        raise ValueError(
            f"'{name}' normalises with the statistics of the batch even in eval mode, so one sample's gradient "
            "depends on the others; use track_running_stats=True, or GroupNorm, also in parts that are not watched"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
        raise ValueError(
            f"'{name}' scales gradients by frequency in the batch, so they are not those of the likelihood; use "
            "scale_grad_by_freq=False"
        )
