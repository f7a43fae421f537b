"""A run in progress: it trains task after task, and is saved between and within tasks."""

import time
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from ...model.devices import moved
from ...model.ranks import current_ranks
from ..devices import current_device
from ..methods import Method, make_method, methods
from ..nets import build_network
from ..precision import require_able
from ..rl import Games
from ..scenario import Scenario
from ..streams import Stream
from ..tasks import Task, TaskData
from ..training import share_random_state
from .checkpoint import (
    Checkpoint,
    load_checkpoint,
    next_number,
    random_states,
    save_checkpoint,
    set_random_states,
    share_state,
)
from .config import Config
from .errors import RunRefused
from .events import Finished, Started, TaskDone
from .folder import RunFolder
from .kinds import kind_of


class Sizes(TypedDict):
    """What the method keeps beyond the plain network."""

    extra_bytes: int
    buffer_bytes: int


class Run(ABC):
    """One run. A subclass for each kind of training opens, trains and tests tasks, and makes the events of them."""

    data_parallel: ClassVar[bool] = False  # whether several ranks can share a run

    def __init__(self, config: Config, folder: RunFolder, checkpoint_seconds: float, keep_bits: bool) -> None:
        self.config, self.folder = config, folder
        self.checkpoint_seconds, self.keep_bits = checkpoint_seconds, keep_bits
        self.ranks, self.device = current_ranks(), current_device()
        torch.manual_seed(config.seed)
        opened = self._open()
        self.tasks = opened.tasks
        net = build_network(config.network, opened.shape, [task.classes for task in self.tasks], self.scenario)
        require_able(config.precision, self.device)
        self.plain_bytes = sum(p.nbytes for p in net.parameters())
        self.method: Method = make_method(config.method, config.method_options)
        if self.ranks.count > 1:
            self._require_data_parallel()
        # what a method makes beside the network is on the CPU unless it is made from the network's own tensors
        self.net: nn.Module = self.method.build(net.to(self.device), self.tasks).to(self.device)
        self.matrix: list[list[float]] = []
        self.kept_files: dict[str, str] = {}  # SHA-256 of each file that was kept of the last task
        self.seconds = 0.0
        self.number = 0  # of the next checkpoint
        self.saved_at = self.started_at = time.monotonic()

    def _require_data_parallel(self) -> None:
        if not self.data_parallel:
            raise RunRefused(f"{self.config.stream} cannot be shared between ranks: start it without torchrun")
        if not self.method.record.data_parallel:
            known = ", ".join(name for name, method in methods.items() if method.record.data_parallel)
            raise RunRefused(
                f"{self.config.method} cannot share a run between ranks: start it without torchrun (those that can: "
                f"{known})"
            )

    @property
    def scenario(self) -> Scenario:
        """What the network is told of the task. Games have a head for each task."""
        scenario: Scenario = self.config.stream_options.get("scenario", "task")
        return scenario

    @abstractmethod
    def _open(self) -> Stream | Games:
        """The stream of tasks."""

    @abstractmethod
    def _started(self, tasks: list[str]) -> Started:
        """The first event; ``tasks`` are the names of all tasks."""

    @abstractmethod
    def _train(self, task: Task, state: dict[str, Any] | None) -> TaskData:
        """Train a task, from its beginning or from a state; returns what the method sees at the task's end."""

    @abstractmethod
    def _test(self, task: Task) -> TaskDone:
        """Test all tasks up to this one, which has just been learned; returns the event of the task."""

    @abstractmethod
    def _result(self) -> Finished:
        """The last event."""

    def _recall(self) -> None:  # noqa: B027 - most runs need nothing
        """Show the method the data of earlier tasks again, where a run continues after them."""

    def _own_state(self) -> dict[str, Any]:
        """Attributes of a subclass, by name, that checkpoints keep besides the state of every run."""
        return {}

    def finish(self) -> Finished:
        """Carry out the run, or the rest of it; returns its last event."""
        training = self._take_up()
        self.folder.begin(self._started([task.name for task in self.tasks]))
        for task in self.tasks[len(self.matrix) :]:
            data = self._train(task, training)
            training = None
            share_random_state(self.ranks)
            self.method.end_task(task, data)
            self._note_task(task)
            self._save(None)
        return self.folder.event(self._result())

    def _task_seed(self, task: Task) -> int:
        return 1000 * self.config.seed + task.index

    def _note_task(self, task: Task) -> None:
        self.kept_files.clear()
        event = self._test(task)
        self.matrix.append(event.row)
        self.folder.write_matrix(self.matrix, event.matrix)
        pictures = self.method.pictures() if self.keep_bits else {}
        if pictures:
            self._keep("bits", task, pictures)
        self.folder.event(replace(event, files=dict(self.kept_files) or None))

    def _keep(self, name: str, task: Task, tensors: dict[str, Tensor]) -> None:
        """Keep tensors of a task that has just been learned."""
        self.kept_files |= self.folder.write_tensors(name, task.index, tensors)

    def _sizes(self) -> Sizes:
        return {"extra_bytes": self.method.extra_bytes(), "buffer_bytes": self.method.buffer_bytes()}

    # being cut off, and going on

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started_at

    def _save_now_and_then(self, training: dict[str, Any]) -> None:
        if time.monotonic() - self.saved_at >= self.checkpoint_seconds:
            self._save(training)

    def _save(self, training: dict[str, Any] | None) -> None:
        if not self.ranks.leads:
            return
        if not self.folder.path.is_dir():
            raise RunRefused(f"{self.folder.path} was deleted while the run went on: start it again")
        save_checkpoint(
            self.folder.checkpoints,
            self.number,
            {
                "net": self.net.state_dict(),
                "method": self.method.state_dict(),
                "training": training,
                "matrix": self.matrix,
                "own": self._own_state(),
                "seconds": self._elapsed(),
                "events": self.folder.log.written,
                "random": random_states(self.device.type),
            },
            self.folder.log.saved(),
        )
        self.number += 1
        self.saved_at = time.monotonic()

    def _take_up(self) -> dict[str, Any] | None:
        """Continue at the newest checkpoint; returns the state of training if that was in the middle of a task."""
        found = load_checkpoint(self.folder.checkpoints) if self.ranks.leads else None
        state = share_state(None if found is None else found.state, self.ranks)
        self.number = next_number(self.folder.checkpoints) if found is None else found.number + 1
        if state is None:
            return None
        try:
            training = self._take_state(state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise RunRefused(
                f"the checkpoint in {self.folder.checkpoints} does not fit this run ({error!r}); delete the folder "
                "to begin again"
            ) from None
        with self.ranks.together():
            if found is not None:
                self._go_on_after(found)
            else:
                self.folder.log.written = state["events"]
        return training

    def _take_state(self, state: dict[str, Any]) -> dict[str, Any] | None:
        self.matrix, self.seconds = state["matrix"], state["seconds"]
        own = self._own_state()
        for name, value in state.get("own", {}).items():
            if name not in own:
                raise KeyError(name)
            setattr(self, name, value)
        self._recall()
        self.net.load_state_dict(state["net"])
        own = moved(state["method"], self.device)
        self.method.load_state_dict(own)  # after the weights: straight-through state belongs to them
        set_random_states(state["random"])
        training: dict[str, Any] | None = state["training"]
        return training

    def _go_on_after(self, checkpoint: Checkpoint) -> None:
        """Bring the files of the run to where the checkpoint was, if a power cut or other damage took them back."""
        mended = self.folder.log.go_on_from(checkpoint.events, checkpoint.state["events"])
        if mended:
            warnings.warn(mended, stacklevel=2)
        if self.matrix:
            self.folder.write_matrix(self.matrix, kind_of(self.config.stream).matrix)
