"""Supervised runs: epochs of training, and the accuracy on the test set of each task."""

from typing import Any

from .. import metrics
from ..options import options_of
from ..streams import Stream, make_stream
from ..tasks import Task, TaskData
from ..training import Epoch, Settings, Training, accuracies, placed, placed_data
from .accuracy_columns import COLUMNS, PREFACE
from .config import Config
from .events import AccuracyResult, EpochDone, Started, TaskTested
from .folder import RunFolder
from .kinds import Kind, kinds
from .run import Run


class SupervisedRun(Run):
    data_parallel = True

    def __init__(self, config: Config, folder: RunFolder, checkpoint_seconds: float, keep_bits: bool) -> None:
        super().__init__(config, folder, checkpoint_seconds, keep_bits)
        if config.settings.optimizer == "adamw":
            self._require_free_optimizer()

    def _require_free_optimizer(self) -> None:
        if self.method.record.optimizer != "SGD":
            raise ValueError(
                f"training.optimizer must be sgd with {self.config.method}, got adamw; the method has "
                f"{self.method.record.optimizer} of its own"
            )
        if self.method.momentum:
            raise ValueError(
                f"method.momentum must be 0 with training.optimizer=adamw, got {self.method.momentum}; it is for sgd"
            )

    def _open(self) -> Stream:
        self.stream = make_stream(self.config.stream, **self.config.stream_options)
        self.other_row: list[float] = []  # accuracies of the last task that the matrix does not have
        return self.stream

    def _started(self, tasks: list[str]) -> Started:
        return Started(tasks=tasks, learned=len(self.matrix), epochs_cap=self.config.settings.epochs)

    def _train(self, task: Task, state: dict[str, Any] | None) -> TaskData:
        data = placed_data(self.stream.load(task))
        current = Training(self.method, self.net, task, data, self.config.settings, self._task_seed(task))
        if state is not None:
            current.load_state_dict(state)
        if task.known:
            return data
        for epoch in current.epochs():
            self._note(task, epoch)
            self._save_now_and_then(current.state_dict())
        self._save(current.state_dict())
        return data

    def _note(self, task: Task, epoch: Epoch) -> None:
        self.folder.event(
            EpochDone(
                task=task.index, epoch=epoch.number, lr=epoch.lr, train_loss=epoch.train_loss,
                valid_loss=epoch.valid_loss, seconds=self._elapsed(),
            )
        )  # fmt: skip

    def _test(self, task: Task) -> TaskTested:
        batch = self.config.settings.evaluation_batch
        seen = self.tasks[: task.index + 1]
        found = [accuracies(self.method, self.net, u, placed(self.stream.load(u).test), batch, seen) for u in seen]
        told, untold = [one.told for one in found], [one.untold for one in found if one.untold is not None]
        row, self.other_row = (untold, told) if self.scenario == "class" else (told, untold)
        return TaskTested(
            task=task.index, accuracy=row, accuracy_with_task=self._with_task(),
            accuracy_without_task=self._without_task(), report=self.method.report(), **self._sizes(),
        )  # fmt: skip

    def _with_task(self) -> list[float] | None:
        """The last row of accuracies with the task, where the matrix has those without it."""
        return self.other_row if self.scenario == "class" else None

    def _without_task(self) -> list[float] | None:
        """The last row of accuracies without the task, where the matrix has those with it and one pass gave both."""
        return None if self.scenario == "class" else self.other_row or None

    def _own_state(self) -> dict[str, Any]:
        return {"other_row": self.other_row}

    def _recall(self) -> None:
        if self.method.record.rereads:
            for task in self.tasks[: len(self.matrix)]:
                self.method.recall(task, placed_data(self.stream.load(task)))

    def _result(self) -> AccuracyResult:
        return AccuracyResult(
            acc=metrics.average_accuracy(self.matrix),
            bwt=metrics.backward_transfer(self.matrix),
            bwt_T=metrics.backward_transfer(self.matrix, "T"),
            forgetting=metrics.forgetting(self.matrix),
            learning_acc=metrics.learning_accuracy(self.matrix),
            model_bytes=self.plain_bytes,
            **self._sizes(),
            seconds=self._elapsed(),
            acc_with_task=_mean(self._with_task()),
            acc_without_task=_mean(self._without_task()),
        )


def _mean(row: list[float] | None) -> float | None:
    return None if row is None else metrics.average_accuracy([row])


kinds.register(
    "supervised",
    Kind(
        name="supervised",
        settings=Settings,
        run=SupervisedRun,
        matrix=TaskTested.matrix,
        columns=COLUMNS,
        compared_by="acc",
        unit="percent",
        preface=PREFACE,
        stream_options=options_of(make_stream),
    ),
)
