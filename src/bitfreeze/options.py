"""Settings that say what they mean: fields of dataclasses with a help text, which `bitfreeze list` prints."""

from dataclasses import field, fields
from typing import Any


def option(default: Any, text: str, *, kw_only: bool = False) -> Any:
    """A field of a dataclass, and what it means."""
    return field(default=default, metadata={"help": text}, kw_only=kw_only)


def meanings(settings: Any) -> dict[str, str]:
    """What the fields of a dataclass mean, where they tell."""
    return {f.name: f.metadata.get("help", "") for f in fields(settings)}
