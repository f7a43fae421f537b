"""Columns of tables of runs of games, whose figures are scores."""

from collections.abc import Sequence

from ..metrics import normalised
from .columns import (
    IDENTITY,
    ORIGIN,
    SECONDS,
    SIZES,
    Column,
    EndedRun,
    Row,
    capacity,
    mean_of,
    network_words,
    spread_of,
    tasks_of,
)  # fmt: skip
from .events import ScoreResult

PREFACE = """\
Mean raw scores of whole games after the last task, mean ± standard deviation over seeds. Reward: the paper's
accumulated normalised reward, which counts each game from 0 (random play, measured in the run) to 1 (the best mean that
any of these runs had in any evaluation) and adds them up. Kept: of the score above random play that a game had when it
was learned, the share that is left in the end; the mean over games that were learned, that is played better than at
random by two standard errors, without the last one, which has had no time to be forgotten. Extra MB: what the method
keeps beside the network. Memory MB: the same with the network, after the first task and after the last if it grew.
Evaluation: its wall time, which is part of seconds.
"""


def _rewards(rows: Sequence[Row], _: str) -> list[float]:
    """The accumulated normalised reward of each row, which depends on the rows that it is compared with."""
    tasks = tasks_of(rows, "score")
    best = {task: max(row[f"best {task}"] for row in rows if row.get(f"best {task}") is not None) for task in tasks}
    return [_reward(row, best) for row in rows]


def _reward(row: Row, best: dict[str, float]) -> float:
    tasks = tasks_of([row], "score")
    scores, random = ([row[f"{name} {task}"] for task in tasks] for name in ("score", "random"))
    return normalised(scores, random, [best[task] for task in tasks])


def _protocol(run: EndedRun[ScoreResult]) -> str:
    training = run.config["training"]
    return (
        f"PPO with Adam lr {training['lr']:g}{' falling to 0' if training['anneal'] else ''}, "
        f"{training['copies']} copies of {training['rollout']} steps, "
        f"{training['epochs']} epochs of {training['minibatches']} minibatches, {training['steps']:,} steps a task; "
        f"evaluated on {training['final_games']} games of up to {training['game_steps']} steps, "
        f"{'likeliest' if training['greedy'] else 'drawn'} actions; {network_words(run.config['network'])}"
    )


COLUMNS: tuple[Column[ScoreResult], ...] = (
    *IDENTITY,
    Column("reward", among=_rewards, summary=("reward", spread_of(".2f")), better=1, in_csv=False),
    Column("kept", lambda run: run.result.kept, summary=("kept", spread_of(".0%")), better=1),
    Column("games_learned", lambda run: sum(run.result.learned), summary=("games learned", spread_of(".1f"))),
    Column("score", lambda run: run.result.final, summary=("score", spread_of(".1f")), better=1, by_task=True),
    Column("learned", lambda run: run.result.after_learning, by_task=True),
    Column("random", lambda run: run.result.random, by_task=True),
    Column("best", lambda run: run.result.best, by_task=True),
    capacity(spread_of(".0%")),
    *SIZES,
    Column("steps", lambda run: run.config["training"]["steps"]),
    SECONDS,
    Column("evaluation_seconds", lambda run: run.result.evaluation_seconds, summary=("evaluation", mean_of(".0f"))),
    Column("protocol", _protocol, text=True),
    *ORIGIN,
)
