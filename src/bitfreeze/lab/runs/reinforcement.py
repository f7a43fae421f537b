"""Runs of games: training by PPO, and the scores of whole games."""

import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch

from .. import metrics
from ..rl import PPO, Games, Settings, Update, at_random, by_policy, derived_seed, game_scores, make_games
from ..tasks import Task, TaskData
from .config import Config
from .events import Continued, Evaluation, RandomPlay, ScoreResult, Started, TaskPlayed, UpdateDone
from .folder import RunFolder
from .kinds import Kind, kinds
from .run import Run
from .score_columns import COLUMNS, PREFACE

RANDOM, PLAYED = 1, 2  # purposes of seeds apart from those of training


class ReinforcementRun(Run):
    def __init__(self, config: Config, folder: RunFolder, checkpoint_seconds: float, keep_bits: bool) -> None:
        super().__init__(config, folder, checkpoint_seconds, keep_bits)
        if self.method.momentum or self.method.weight_decay or self.method.clip is not None:
            raise ValueError("momentum, weight_decay and clip of a method are for SGD: PPO has training.max_grad_norm")

    def _open(self) -> Games:
        self.games = make_games(self.config.stream, **self.config.stream_options)
        self.settings: Settings = self.config.settings
        self.evaluation_seconds = 0.0
        self.random: list[list[float]] = []  # for each task the scores of random play
        self.learned: list[bool] = []  # whether a task, once trained, was played better than at random
        self.best: list[float] = []  # for each task its highest mean in any evaluation
        return self.games

    def _own_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("evaluation_seconds", "random", "learned", "best")}

    def _started(self, tasks: list[str]) -> Started:
        return Started(tasks=tasks, learned=len(self.matrix), updates_cap=self.settings.updates)

    def _train(self, task: Task, state: dict[str, Any] | None) -> TaskData:
        environments = self.games.specs[task.index].make(self.settings.copies, threads=torch.get_num_threads())
        ppo = PPO(self.method, task, environments, self.settings, derived_seed(self.config.seed, 0, task.index))
        if state is None:
            self._play_at_random(task)
            if self.settings.evaluations:
                self._evaluate(task, 0)
        else:
            ppo.load_state_dict(state)
            self._say_if_games_begin_anew(task, ppo)
        points = {
            round(k * self.settings.updates / self.settings.evaluations) for k in range(self.settings.evaluations)
        }
        for update in ppo.updates():
            self._note(task, update)
            if update.number in points:
                self._evaluate(task, update.steps)
            if ppo.can_pause:
                self._save_now_and_then(ppo.state_dict())
        self._save(ppo.state_dict())
        environments.close()
        return ppo.seen()

    def _say_if_games_begin_anew(self, task: Task, ppo: PPO) -> None:
        if self.settings.restart == 0 and ppo.done < self.settings.updates:
            text = "games cannot be saved in the middle: all begin anew"
            self.folder.event(Continued(task=task.index, update=ppo.done, note=text))

    def _note(self, task: Task, update: Update) -> None:
        score = mean(update.scores) if update.scores else None
        self.folder.event(
            UpdateDone(
                task=task.index, update=update.number, steps=update.steps, lr=update.lr, loss=update.loss,
                entropy=update.entropy, games=len(update.scores), score=score, seconds=self._elapsed(),
            )
        )  # fmt: skip

    # whole games

    def _play_at_random(self, task: Task) -> None:
        started, seed = time.monotonic(), derived_seed(self.config.seed, RANDOM, task.index)
        choose, games = at_random(self.games.actions[task.index], seed), self.settings.final_games
        self.random.append(game_scores(self.games.specs[task.index], choose, games, self.settings.game_steps, seed))
        self.evaluation_seconds += time.monotonic() - started
        self.folder.event(RandomPlay(task=task.index, score=mean(self.random[-1]), scores=self.random[-1]))

    def _play(self, task: Task, games: int) -> list[float]:
        """The scores of the same games each time it is asked: what differs is the agent."""
        seed = derived_seed(self.config.seed, PLAYED, task.index)
        choose = by_policy(self.method, task, self.games.actions[task.index], self.settings.greedy, seed)
        return game_scores(self.games.specs[task.index], choose, games, self.settings.game_steps, seed)

    def _evaluate_all(self, tasks: Sequence[Task], games: int) -> tuple[list[list[float]], float]:
        """The scores of these tasks, and how long it took."""
        started = time.monotonic()
        self.net.eval()
        played = [self._play(task, games) for task in tasks]
        self.net.train()
        self.best += [-float("inf")] * (tasks[-1].index + 1 - len(self.best))
        for task, scores in zip(tasks, played, strict=True):
            self.best[task.index] = max(self.best[task.index], mean(scores))
        seconds = time.monotonic() - started
        self.evaluation_seconds += seconds
        return played, seconds

    def _evaluate(self, task: Task, steps: int) -> None:
        """Before a task's first step only itself: the others have just been played, when the last one ended."""
        known = self.matrix[-1] if steps == 0 and self.matrix else []
        played, seconds = self._evaluate_all(self.tasks[len(known) : task.index + 1], self.settings.games)
        scores = [*known, *(mean(scores) for scores in played)]
        self.folder.event(Evaluation(task=task.index, steps=steps, scores=scores, seconds=seconds))

    def _test(self, task: Task) -> TaskPlayed:
        played, seconds = self._evaluate_all(self.tasks[: task.index + 1], self.settings.final_games)
        self.learned.append(metrics.is_above(played[-1], self.random[task.index]))
        self._keep("weights", task, self.net.state_dict())
        return TaskPlayed(
            task=task.index,
            score=[mean(scores) for scores in played],
            games=played,
            learned=self.learned[-1],
            evaluation_seconds=seconds,
            **self._sizes(),
            report=self.method.report(),
        )

    def _result(self) -> ScoreResult:
        random = [mean(scores) for scores in self.random]
        return ScoreResult(
            final=self.matrix[-1],
            after_learning=[self.matrix[t][t] for t in range(len(self.matrix))],
            random=random,
            best=self.best,
            learned=self.learned,
            kept=metrics.share_kept(self.matrix, random, self.learned),
            evaluation_seconds=self.evaluation_seconds,
            model_bytes=self.plain_bytes,
            **self._sizes(),
            seconds=self._elapsed(),
        )


kinds.register(
    "reinforcement",
    Kind(
        name="reinforcement",
        settings=Settings,
        run=ReinforcementRun,
        matrix=TaskPlayed.matrix,
        columns=COLUMNS,
        compared_by="reward",
        unit="raw scores",
        preface=PREFACE,
        packages=("gymnasium", "ale-py"),
    ),
)
