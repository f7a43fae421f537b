"""What the settings of a run consist of, by what trains its stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import rl, training


@dataclass(frozen=True)
class Trainer:
    settings: type[Any]  # the dataclass of the part "training"
    packages: tuple[str, ...] = ()  # whose versions decide a result besides torch's
    stream_options: Mapping[str, Any] = field(default_factory=dict)  # that streams have besides their own


TRAINERS = {
    "supervised": Trainer(training.Settings, stream_options={"tuning": False}),
    "reinforcement": Trainer(rl.Settings, packages=("gymnasium", "ale-py")),
}
