"""Runs of supervised streams: epochs, and the accuracy on each task's test set."""

from typing import Any

from ..streams import Stream, Task, TaskData, make_stream
from ..training import Epoch, Training, accuracy
from . import metrics
from .run import Run


class SupervisedRun(Run):
    figures = "accuracy"
    data_parallel = True

    def _open(self) -> Stream:
        self.stream = make_stream(self.config.stream, **self.config.stream_options)
        return self.stream

    def _cap(self) -> dict[str, int]:
        return {"epochs_cap": self.config.settings.epochs}

    def _train(self, task: Task, state: dict[str, Any] | None) -> TaskData:
        data = self.stream.load(task)
        current = Training(self.method, self.net, task, data, self.config.settings, self._task_seed(task))
        if state is not None:
            current.load_state_dict(state)
        for epoch in current.epochs():
            self._note(task, epoch)
            self._save_now_and_then(current.state_dict())
        self._save(current.state_dict())
        return data

    def _note(self, task: Task, epoch: Epoch) -> None:
        self.folder.event(
            "epoch", task=task.index, epoch=epoch.number, lr=epoch.lr, train_loss=epoch.train_loss,
            valid_loss=epoch.valid_loss, seconds=self._elapsed(),
        )  # fmt: skip

    def _test(self, task: Task) -> tuple[list[float], dict[str, Any]]:
        batch = self.config.settings.evaluation_batch
        seen = self.tasks[: task.index + 1]
        return [accuracy(self.method, self.net, u, self.stream.load(u).test, batch) for u in seen], {}

    def _recall(self) -> None:
        if self.method.record.rereads:
            for task in self.tasks[: len(self.matrix)]:
                self.method.recall(task, self.stream.load(task))

    def _result(self) -> dict[str, Any]:
        return {
            "acc": metrics.average_accuracy(self.matrix),
            "bwt": metrics.backward_transfer(self.matrix),
            "bwt_T": metrics.backward_transfer(self.matrix, "T"),
            "forgetting": metrics.forgetting(self.matrix),
            "learning_acc": metrics.learning_accuracy(self.matrix),
        }
