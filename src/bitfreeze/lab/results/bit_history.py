"""The frozen bits of a run after each task, read from its folder `bits` when they are asked for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...bits import information_gain
from ...blip.rules import Rules, WeightRules
from ..methods.blip import RULES

Array = NDArray[Any]


class BitHistory:
    """Frozen bits, centre, interval, value and information gain of each tensor after each task, counted from 0."""

    def __init__(self, files: list[Path], options: Mapping[str, Any]) -> None:
        self.files, self.depth = files, int(options.get("bits", 20))
        rules = RULES[options.get("rules", "strict")]()
        self.rules = rules if isinstance(rules, WeightRules) else Rules.strict()  # directions keep no pictures
        self.gain_rule = options.get("gain", self.rules.gain)
        self.tasks = len(files)
        self._shapes: dict[str, tuple[int, ...]] = {}

    @cached_property
    def names(self) -> list[str]:
        """The tensors, in the order of the network."""
        keys = [key.removesuffix("/bits") for key in self._keys(0) if key.endswith("/bits")]
        return sorted(keys, key=_natural)

    @property
    def weights(self) -> list[str]:
        """Tensors with a row for each unit; biases and scales have none."""
        return [name for name in self.names if self.shape(name)[1:]]

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            with self._open(0) as file:
                self._shapes[name] = tuple(file.get_slice(f"{name}/bits").get_shape())
        return self._shapes[name]

    def bits(self, name: str, task: int) -> Array:
        return self._read(f"{name}/bits", task)

    def extra(self, name: str, task: int) -> Array:
        """Bits that a task froze beyond the tasks before it."""
        return self.bits(name, task) - (self.bits(name, task - 1) if task else 0)

    def gain(self, name: str, task: int) -> Array:
        return self._read(f"{name}/gain", task).astype(np.float32)

    def units(self, name: str, task: int) -> Array:
        """The centre in units of bound * 2^-depth."""
        return self._read(f"{name}/centre", task)

    def bound(self, name: str) -> float:
        return float(self._read(f"{name}/bound", 0))

    def centre(self, name: str, task: int) -> Array:
        value: Array = self.units(name, task) * (self.bound(name) * 2.0**-self.depth)
        return value

    def radius(self, name: str, task: int) -> Array:
        value: Array = self.bound(name) * np.exp2(-self.bits(name, task).astype(np.float64))
        return value

    def offset(self, name: str, task: int) -> Array:
        """The place of the parameter in its interval, from -127 to 127."""
        return self._read(f"{name}/offset", task)

    @cached_property
    def has_values(self) -> bool:
        """Whether values were kept: older runs have centres only."""
        return any(key.endswith("/offset") for key in self._keys(0))

    @cached_property
    def has_digits(self) -> bool:
        """Whether frozen bits are leading binary digits of the centre; elsewhere they are bits of precision."""
        return self.rules.centre_rule.has_digits

    def dead_units(self, name: str) -> Iterator[Array]:
        """The units (rows of a weight) that are dead after each task: no task so far has told anything about them.

        The gain of all their weights has been that of a Fisher of 0, as far as half precision can tell: to a few
        ten-thousandths of the Fisher before.
        """
        dead: Array = np.ones(self.shape(name)[0], bool)
        for task in range(self.tasks):
            silent = np.abs(self.gain(name, task) - self._gain_of_nothing(task)) < 2.0**-11
            dead = np.logical_and(dead, silent.reshape(len(dead), -1).all(1))
            yield dead

    def _gain_of_nothing(self, task: int) -> float:
        return float(information_gain(torch.zeros(()), torch.ones(()), task + 1, self.gain_rule))

    def capacity(self, names: list[str], task: int) -> float:
        """Share of the bits of these tensors that are frozen."""
        frozen = sum(int(self.bits(name, task).sum(dtype=np.int64)) for name in names)
        return frozen / (self.depth * max(1, sum(int(np.prod(self.shape(name))) for name in names)))

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """The tensors of each layer."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(name.rpartition(".")[0], []).append(name)
        return found

    def require_readable(self) -> None:
        for task in range(self.tasks):
            self._keys(task)

    def _keys(self, task: int) -> list[str]:
        with self._open(task) as file:
            return list(file.keys())

    def _read(self, key: str, task: int) -> Array:
        with self._open(task) as file:
            return np.asarray(file.get_tensor(key))

    @contextmanager
    def _open(self, task: int) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.files[task], "numpy") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self.files[task]} cannot be read ({error}): delete the run and do it again") from None


def _natural(name: str) -> list[tuple[int, str]]:
    """backbone.2 before backbone.10, and a layer's weight before its bias."""
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
    return [*parts[:-1], (0 if parts[-1][1] == "weight" else 1, parts[-1][1])]
