"""Parameters of a model: their names without the prefixes of wrappers, and the modules that own them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from .shards import Layout, layout_of, reshard

Watch = nn.Module | str | Iterable[nn.Module | str] | None


@dataclass
class Slot:
    """A place in the model that holds a parameter. Each access looks the tensor up, because it may be replaced."""

    name: str  # without the prefixes of wrappers; the key of the parameter's state
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)  # several for a tied tensor
    held: nn.Parameter | None = None  # the parameter that was found, by which it is recognised under another name

    @property
    def parameter(self) -> nn.Parameter:
        parameter = self.find()
        assert parameter is not None
        return parameter

    @property
    def layout(self) -> Layout:
        return layout_of(self.parameter)

    @property
    def local(self) -> Tensor:
        """The parameter's entries in this process: all of them, or its shard."""
        parameter = self.parameter
        return layout_of(parameter).local(parameter)

    @property
    def module(self) -> nn.Module:
        """The first owner."""
        return self.owners[0][0]

    def find(self) -> nn.Parameter | None:
        """The parameter, or None if the module no longer has it (pruned, parametrised, set to None)."""
        module, attribute = self.owners[0]
        return module._parameters.get(attribute)


def find_parameters(model: nn.Module, watch: Watch = None) -> list[Slot]:
    """Slots of the watched parameters, tied ones once. ``watch``: submodules or names; None for the whole model."""
    reshard(model)
    parts = watched_parts(model, watch)
    modules = {id(module) for module in watched_modules(model, parts)}
    wanted = [part for part in parts if isinstance(part, str)]
    unseen = set(wanted)
    slots: dict[int, Slot] = {}
    watched: set[int] = set()
    for prefix, path, module in _walk(model):
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}{attribute}"
            slot = slots.setdefault(id(parameter), Slot(name, held=parameter))
            if (module, attribute) not in slot.owners:  # a module may be registered in two places
                slot.owners.append((module, attribute))
            meant = [part for part in wanted if _means(part, name) or _means(part, f"{path}{attribute}")]
            if id(module) in modules or meant:
                watched.add(id(parameter))
                unseen.difference_update(meant)
    if unseen:
        some = ", ".join(slot.name for slot in list(slots.values())[:3])
        raise ValueError(
            f"watch must name parameters or modules of the model, got '{min(unseen)}'; its parameters are {some}, ..."
        )
    if not watched:
        raise ValueError("the watched part must have at least one parameter, got none; check watch")
    return [slot for key, slot in slots.items() if key in watched]


def _means(part: str, name: str) -> bool:
    """Whether a name in ``watch`` is that of this parameter, or of a module that holds it."""
    return name == part or name.startswith(f"{part}.")


def watched_modules(model: nn.Module, watch: Watch = None) -> list[nn.Module]:
    """Modules under ``watch``, each once."""
    parts = watched_parts(model, watch)
    found = {id(module): module for part in parts if isinstance(part, nn.Module) for module in part.modules()}
    if not found.keys() <= {id(module) for module in model.modules()}:
        raise ValueError(
            "watch must be part of the model, got a module outside it; give a submodule such as model.backbone"
        )
    names = tuple(f"{part}." for part in parts if isinstance(part, str))
    named = {id(m): m for prefix, path, m in _walk(model) if prefix.startswith(names) or path.startswith(names)}
    return list({**found, **named}.values())


def watched_parts(model: nn.Module, watch: Watch) -> list[nn.Module | str]:
    """``watch`` as a list of modules and names."""
    if watch is None:
        return [model]
    parts = [watch] if isinstance(watch, nn.Module | str) or not isinstance(watch, Iterable) else list(watch)
    other = next((part for part in parts if not isinstance(part, nn.Module | str)), None)
    if other is not None:
        raise TypeError(
            f"watch must be a submodule, a name, or a list of these, got {type(other).__name__}; for single parameters "
            "give their names, such as [name for name, p in model.named_parameters() if p.ndim > 1]"
        )
    return parts


def _walk(module: nn.Module, prefix: str = "", path: str = "") -> Iterator[tuple[str, str, nn.Module]]:
    """Each module, with the prefix of its parameters' names without wrappers, and with torch's own prefix."""
    yield prefix, path, module
    for name, child in module.named_children():
        inside = prefix if _is_wrapper(module, name) else f"{prefix}{name}."
        yield from _walk(child, inside, f"{path}{name}.")


def _is_wrapper(module: nn.Module, child_name: str) -> bool:
    """Whether a module wraps this child: torch.compile as ``_orig_mod``, (Distributed)DataParallel as ``module``."""
    parallel = isinstance(module, DataParallel | DistributedDataParallel)
    return child_name == "_orig_mod" or (child_name == "module" and parallel)


def require_float(slots: Iterable[Slot]) -> None:
    """Raise if a parameter has no values yet, or half precision, which has too few bits for a 20-bit grid."""
    for slot in slots:
        if isinstance(slot.parameter, UninitializedParameter) or slot.parameter.is_meta:
            raise ValueError(
                f"'{slot.name}' has no values yet: run the model once on a batch, or load its weights, then watch it"
            )
        if slot.parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"'{slot.name}' must be float32 or float64, got {str(slot.parameter.dtype).removeprefix('torch.')}, "
                "which cannot hold the bits to be frozen; keep float32 master weights (model.float()) and use autocast"
            )


def require_same_shape(slot: Slot, shape: torch.Size) -> None:
    if slot.parameter.shape != shape:
        raise ValueError(
            f"'{slot.name}' had the shape {list(shape)} when it was consolidated and has "
            f"{list(slot.parameter.shape)} now: give the new tensor another name"
        )


def require_finite(slot: Slot) -> None:
    if not torch.isfinite(slot.local).all():
        raise not_finite(slot)


def not_finite(slot: Slot) -> ValueError:
    return ValueError(f"'{slot.name}' has NaN or infinite entries: restore the last good weights before going on")
