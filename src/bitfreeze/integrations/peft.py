"""Low-rank adapters of PEFT, held so that the merged weights keep what the base model knows."""

import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._messages import install, warn_caller

try:
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{__name__} needs the extra 'peft': {install('peft')}") from missing

from ..blip.adapters import HeldAdapters
from ..blip.blip import BLIP
from ..blip.low_rank import Term
from ..blip.protecting import read_protection, require_own, require_vocabulary, table_for
from ..blip.protection import Table

# What PEFT puts into the names of parameters: prefixes of the model, and the place of a layer that it wraps.
WRAPPERS = re.compile(r"^(base_model\.model\.)|\.base_layer(?=\.)|\.original_module(?=\.)")
COPIES = re.compile(r"\.modules_to_save\.[^.]+(?=\.)")


def hold_adapters(
    model: PeftModel, protection: BLIP | str | os.PathLike[str], *, tolerance: float | None = None
) -> HeldAdapters:
    """Hold LoRA adapters so that base and adapters together keep what was measured on the base.

    Held is the change s B A of each weight, after each step of whatever optimizer steps the adapters. Adapters may be
    added, switched, frozen and merged in place; the sum of those that are active or merged is held. The base may have
    half precision. After ``merge_and_unload`` the model has other weights: protect it anew.

    Args:
        model: what ``get_peft_model`` returned, with LoRA adapters in float32 on linear or convolutional layers.
        protection: the file of ``bitfreeze.save_protection``, measured on the same weights; or the BLIP that
            ``bitfreeze.protect`` returned for the base model, before the adapters were added.
        tolerance: nats a sample (a predicted token, for sequences) that the adapters may cost the base, as far as the
            cost can be estimated. Default: that of the protection.

    Returns:
        What holds the adapters, attached. Keep it as long as you train. Its ``drift()`` tells what they cost.

    Raises:
        FileNotFoundError: there is no file at this path.
        ValueError: the protection is that of other weights, an adapter is on a layer that is not held or is of a kind
            that cannot be, or weights of the base are trained themselves.
        TypeError: ``model`` is no PeftModel, or an adapter has half precision.

    Example:
        ```python
        bitfreeze.save_protection(bitfreeze.protect(base, batches, forward), "base.safetensors")  # once a base
        model = get_peft_model(base, LoraConfig(target_modules="all-linear"))
        held = hold_adapters(model, "base.safetensors", tolerance=0.05)
        Trainer(model, args, train_dataset=dataset).train()
        ```
    """
    if not isinstance(model, PeftModel):
        raise TypeError(f"model must be a PeftModel, got {type(model).__name__}; pass what get_peft_model returned")
    table = table_for(protection) if isinstance(protection, BLIP) else read_protection(protection)
    table = {**table, **{key: _renamed(table[key]) for key in ("tensors", "directions")}}
    layers = _layers(model)
    if not layers:
        raise ValueError("model must have LoRA adapters, got none; use LoraConfig")
    _require_held(layers, table)
    if not any(layer.merged_adapters for layer in layers.values()):
        require_own(table, _base_weights(model, table))
        require_vocabulary(table, model.get_base_model())
    _require_base_stays(model, table)
    found = table["settings"]["tolerance"] if tolerance is None else tolerance
    kept = weakref.ref(model)

    def look() -> dict[str, Callable[[], Sequence[Term]]]:
        """All layers with adapters now; warns if others than these are trained."""
        model = kept()
        layers = {} if model is None else _layers(model)
        _require_held(layers, table)
        if model is not None:
            _warn_of_others(model, layers)
        return {name: _terms(layer) for name, layer in layers.items()}

    held = HeldAdapters(table, look(), found, look)
    held.attach()
    held.look_out(model, [factor for layer in layers.values() for factor in _factors(layer)])
    return held


def _layers(model: PeftModel) -> dict[str, Any]:
    return {_plain(f"{name}.weight"): m for name, m in model.named_modules() if isinstance(m, LoraLayer)}


def _factors(layer: Any) -> list[Tensor]:
    return [module.weight for module in (*layer.lora_A.values(), *layer.lora_B.values())]


def _warn_of_others(model: PeftModel, layers: Mapping[str, Any]) -> None:
    """Warn of parameters that are trained and are no held adapters, such as those in modules_to_save."""
    held = {id(factor) for layer in layers.values() for factor in _factors(layer)}
    others = [
        _plain(COPIES.sub("", name)) for name, p in model.named_parameters() if p.requires_grad and id(p) not in held
    ]
    if others:
        more = f" and {len(others) - 2} more" if len(others) > 2 else ""
        warn_caller(
            f"parameters are trained that are no held adapters: {', '.join(others[:2])}{more}; what they cost the base "
            "is neither held nor counted, so leave modules_to_save and trainable_token_indices out unless they are new"
        )


def _terms(layer: Any) -> Callable[[], Sequence[Term]]:
    """The products that are added to a layer's weight now: of adapters that are active, or merged into the weight."""

    def terms() -> list[Term]:
        merged = list(layer.merged_adapters)
        active = [] if layer.disable_adapters or merged else list(layer.active_adapters)
        return [_term(layer, name) for name in (*active, *merged) if name in layer.lora_A]

    return terms


def _term(layer: Any, adapter: str) -> Term:
    down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    scale = float(layer.scaling[adapter])
    learns = down.requires_grad and adapter not in layer.merged_adapters
    return Term(_matrix(down), _matrix(up), scale, learns)


def _matrix(weight: Tensor) -> Tensor:
    """A view as a matrix: the kernel of a convolution lies behind its inputs."""
    return weight.detach().view(len(weight), -1)


def _plain(name: str) -> str:
    """The name that a parameter has in the base model alone."""
    return WRAPPERS.sub("", name)


def _renamed(table: Table) -> Table:
    return {_plain(name): value for name, value in table.items()}


def _base_weights(model: PeftModel, table: Table) -> dict[str, Tensor]:
    found = {_plain(name): parameter for name, parameter in model.named_parameters()}
    return {name: found[name].detach() for name in table["tensors"] if name in found}


def _require_held(layers: Mapping[str, Any], table: Table) -> None:
    for name, layer in layers.items():
        _require_one_held(name, layer, table)


def _require_one_held(name: str, layer: Any, table: Table) -> None:
    short = name.removesuffix(".weight")
    for adapter in layer.lora_A:
        if getattr(layer, "use_dora", {}).get(adapter) or getattr(layer, "lora_bias", {}).get(adapter):
            raise ValueError(
                f"adapters must be plain LoRA, got DoRA or a bias on '{short}'; leave use_dora and lora_bias out"
            )
    directions = table["directions"].get(name)
    inputs_first = bool(getattr(layer, "fan_in_fan_out", False))  # as of a Conv1D
    if not layer.lora_A or directions is None or directions.get("inputs_first", False) != inputs_first:
        raise ValueError(
            f"adapters must be on layers that the protection holds along directions, got one on '{short}'; leave it "
            "out of target_modules, or measure it too"
        )
    if len(directions["inputs"]) > 1:
        raise ValueError(
            f"adapters must be on layers without groups, got one on '{short}'; leave it out of target_modules"
        )
    for module in (*layer.lora_A.values(), *layer.lora_B.values()):
        if module.weight.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"adapters must be float32, got {str(module.weight.dtype).removeprefix('torch.')} on '{short}'; leave "
                "autocast_adapter_dtype=True in get_peft_model"
            )


def _require_base_stays(model: PeftModel, table: Table) -> None:
    """Refuse weights of the base that are trained, themselves or as a copy: adapters are held, these are not."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (plain := _plain(COPIES.sub("", name))) in table["tensors"]:
            raise ValueError(
                f"weights of the base must stay while adapters are held, got '{plain}', which is trained; use "
                "bias='none' without modules_to_save, or measure the base without this part (watch=)"
            )
