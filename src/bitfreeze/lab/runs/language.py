"""Runs of language models: epochs of training as in supervised runs, and the loss on the test text of each task."""

from typing import Any

from ..options import options_of
from ..streams import Stream, make_stream
from ..tasks import Task
from ..training import Settings, nats, placed
from .events import LossResult, TaskRead
from .kinds import Kind, kinds
from .loss_columns import COLUMNS, PREFACE
from .supervised import SupervisedRun


class LanguageRun(SupervisedRun):
    def _open(self) -> Stream:
        self.before: list[float] = []  # losses of the pretrained network on all tasks
        return super()._open()

    def _own_state(self) -> dict[str, Any]:
        return {"before": self.before}

    def _test(self, task: Task) -> TaskRead:  # type: ignore[override]
        seen = self.tasks if task.known else self.tasks[: task.index + 1]
        batch = self.config.settings.evaluation_batch
        row = [nats(self.method, self.net, u, placed(self.stream.load(u).test), batch) for u in seen]
        if task.known:
            self.before = row
        return TaskRead(task=task.index, loss=row[: task.index + 1], report=self.method.report(), **self._sizes())

    def _result(self) -> LossResult:  # type: ignore[override]
        return LossResult(
            final=self.matrix[-1],
            after_learning=[self.matrix[t][t] for t in range(len(self.matrix))],
            before=self.before,
            model_bytes=self.plain_bytes,
            **self._sizes(),
            seconds=self._elapsed(),
        )


kinds.register(
    "language",
    Kind(
        name="language",
        settings=Settings,
        run=LanguageRun,
        matrix=TaskRead.matrix,
        columns=COLUMNS,
        compared_by="loss",
        unit="nats a token",
        preface=PREFACE,
        stream_options={"tuning": options_of(make_stream)["tuning"]},  # all tasks share one output: no scenarios
    ),
)
