"""Streams by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ..options import checked, options_of
from ..registry import Registry
from ..scenario import Scenario
from .scenario import in_scenario
from .stream import Stream, for_tuning


@dataclass(frozen=True)
class StreamRecord:
    """A registered stream. ``register_stream`` explains the fields."""

    name: str
    description: str
    needs: tuple[str, ...]
    make: Callable[..., Any]
    preset: Mapping[str, Any] | None = None
    trainer: str = "supervised"


streams = Registry[StreamRecord]("stream")


def register_stream(
    name: str,
    description: str,
    needs: tuple[str, ...],
    make: Callable[..., Any],
    preset: Mapping[str, Any] | None = None,
    trainer: str = "supervised",
) -> None:
    """Make a stream known to every command.

    Args:
        name: the name that commands take.
        description: one line for ``bitfreeze list``.
        needs: names of datasets, as ``bitfreeze data`` lists them.
        make: makes the ``Stream`` (or the ``Games``). Its keyword arguments are the stream's options.
        preset: settings, in the tables of a file in lab/runs/presets: network, training, methods. None takes the
            package's file of the stream's name.
        trainer: the kind of training, ``"supervised"``, ``"language"`` or ``"reinforcement"``.
    """
    streams.register(name, StreamRecord(name, description, needs, make, preset, trainer))


def make_stream(
    name: str,
    *,
    tuning: Annotated[bool, "test on a tenth of the training set, which is not trained on: to choose settings"] = False,
    scenario: Annotated[
        Scenario, "a head for each task; one head for all, not told the task; one head that grows, not told the task"
    ] = "task",
    **options: Any,
) -> Stream:
    """The supervised stream of this name.

    Args:
        name: name of a registered stream.
        tuning: test on a tenth of the training set, which is then not trained on.
        scenario: "task": a head for each task. "domain": one head for all tasks. "class": one head that grows, and
            labels of the whole stream.
        options: the stream's own options. The others keep their defaults.

    Returns:
        The stream. No data are loaded yet.
    """
    make = streams[name].make
    stream: Stream = make(**checked("stream", options_of(make), options))
    return in_scenario(for_tuning(stream, options.get("seed", 0)) if tuning else stream, scenario)
