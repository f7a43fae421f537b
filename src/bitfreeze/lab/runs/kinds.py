"""Kinds of training. All that differs between kinds is in one record for each, beside the code that trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..options import Option
from ..registry import Registry
from ..streams import streams

if TYPE_CHECKING:
    from .columns import Column
    from .run import Run


@dataclass(frozen=True)
class Kind:
    """One kind of training: how it is set and carried out, what it writes, and how its tables look."""

    name: str  # as streams, networks and methods have it under ``trainer``
    settings: type[Any]  # the dataclass of the part "training"
    run: "type[Run]"
    matrix: str  # what the matrix holds, and the name of its file
    columns: "tuple[Column[Any], ...]"  # of the CSV and of the summary, in order
    compared_by: str  # the column by which one method is compared with another
    unit: str
    preface: str  # what the columns of a table mean
    stream_options: Mapping[str, Option] = field(default_factory=dict)  # that every stream has besides its own
    packages: tuple[str, ...] = ()  # whose versions decide a result besides torch's


kinds: Registry[Kind] = Registry("kind of training")


def kind_of(stream: str) -> Kind:
    """The kind of training that a stream needs."""
    return kinds[streams[stream].trainer]
