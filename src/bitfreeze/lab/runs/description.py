"""What can be set: the options of a stream, a method or a network, and what a stream's preset gives to methods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..methods import methods
from ..nets import networks
from ..options import Option, options_of, typed
from ..registry import unknown_name
from ..streams import streams
from .config import declared_options, make_config, preset


@dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    path: str
    """Name of the setting in changes, such as training.epochs."""
    value: Any
    """Value in the preset of the stream, else the default."""
    help: str
    """Meaning, after the choices where there are any."""

    @property
    def change(self) -> str:
        """The setting as changes write it."""
        return f"{self.path}={typed(self.value)}"


@dataclass(frozen=True)
class MethodPreset:
    """What a stream's preset gives to a method, or to a variant of it."""

    method: str
    """Name of the method."""
    variant: str
    """Name of the variant; empty for the method's own settings."""
    changes: tuple[str, ...]
    """Settings, each written part.name=value."""


@dataclass(frozen=True)
class Description:
    """What can be set of a stream, a method or a network."""

    settings: tuple[Setting, ...]
    """Each setting with its value and its meaning."""
    presets: tuple[MethodPreset, ...] = ()
    """Of a stream: what its preset gives to methods and their variants."""


def describe(name: str) -> Description:
    """What can be set of the stream, method or network of this name."""
    if name in methods:
        return Description(_settings("method", options_of(methods[name]), {}))
    if name in networks:
        return Description(_settings("network", options_of(networks[name].build), {}))
    if name in streams:
        return _stream(name)
    raise unknown_name("stream, method or network", name, [*streams, *methods, *networks])


def _stream(name: str) -> Description:
    config = make_config(name, "ft")
    declared = declared_options(name, "ft", config.network["kind"])
    parts = ("stream", "network", "training")
    settings = tuple(one for part in parts for one in _settings(part, declared[part], config.parts[part]))
    presets: list[MethodPreset] = []
    for method, own in preset(name).get("methods", {}).items():
        presets.append(MethodPreset(method, "", _changes(own)))
        presets += [MethodPreset(method, variant, _changes(of)) for variant, of in own.get("variants", {}).items()]
    return Description(settings, tuple(presets))


def _settings(part: str, options: Mapping[str, Option], values: Mapping[str, Any]) -> tuple[Setting, ...]:
    return tuple(
        Setting(f"{part}.{name}", values.get(name, option.default), option.help) for name, option in options.items()
    )


def _changes(settings: Mapping[str, Any], part: str = "method") -> tuple[str, ...]:
    """The settings of a method in a preset as changes; tables among them are other parts of the settings."""
    found: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found += _changes(value, name) if name != "variants" else ()
        else:
            found.append(f"{part}.{name}={typed(value)}")
    return tuple(found)
