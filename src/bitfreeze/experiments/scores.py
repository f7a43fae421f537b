"""Finished runs of games: a row each, and a line for each method, with scores in place of accuracies."""

from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from .metrics import normalised

Row = dict[str, Any]

PREFACE = """\
Mean raw scores of whole games after the last task, mean ± standard deviation over seeds. Reward: the paper's
accumulated normalised reward, which counts each game from 0 (random play, measured in the run) to 1 (the best mean that
any of these runs had in any evaluation) and adds them up. Kept: of the score above random play that a game had when it
was learned, the share that is left in the end; the mean over games that were learned, that is played better than at
random by two standard errors, without the last one, which has had no time to be forgotten. Evaluation: its wall time,
which is part of seconds.
"""


def score_row(config: Row, result: Row, last_task: Row, tasks: list[str]) -> Row:
    """What a run has to tell; columns for each task bear its name."""
    lists = {"score": "final", "learned": "after_learning", "random": "random", "best": "best"}
    return {
        "kept": result["kept"],
        "games_learned": sum(result["learned"]),
        **{
            f"{word} {task}": value
            for word, key in lists.items()
            for task, value in zip(tasks, result[key], strict=True)
        },
        "capacity": last_task.get("capacity"),
        **{name: result[name] for name in ("model_bytes", "extra_bytes", "buffer_bytes")},
        "steps": config["training"]["steps"],
        "seconds": result["seconds"],
        "evaluation_seconds": result["evaluation_seconds"],
        "protocol": _protocol(config),
    }


def _protocol(config: Row) -> str:
    t, network = config["training"], dict(config["network"])
    kind = network.pop("kind")
    options = "".join(f" {name}={value}" for name, value in network.items())
    return (
        f"PPO with Adam lr {t['lr']:g}{' falling to 0' if t['anneal'] else ''}, "
        f"{t['copies']} copies of {t['rollout']} steps, {t['epochs']} epochs of {t['minibatches']} minibatches, "
        f"{t['steps']:,} steps a task; "
        f"evaluated on {t['final_games']} games of up to {t['game_steps']} steps, "
        f"{'likeliest' if t['greedy'] else 'drawn'} actions; {kind}{options}"
    )


def tasks_of(rows: list[Row]) -> list[str]:
    """Those that any of the rows has a score for; a CSV has a column for all of them in every row."""
    named = (name for row in rows for name, value in row.items() if name.startswith("score ") and value is not None)
    return list(dict.fromkeys(name.removeprefix("score ") for name in named))


def with_reward(rows: list[Row]) -> list[Row]:
    """Each row with its accumulated normalised reward, which depends on what it is compared with."""
    best = {t: max(row[f"best {t}"] for row in rows if row.get(f"best {t}") is not None) for t in tasks_of(rows)}
    return [{**row, "reward": _reward(row, best)} for row in rows]


def _reward(row: Row, best: dict[str, float]) -> float:
    tasks = tasks_of([row])
    scores, random = ([row[f"{word} {task}"] for task in tasks] for word in ("score", "random"))
    return normalised(scores, random, [best[task] for task in tasks])


@dataclass(frozen=True)
class ScoreLine:
    """A method over its seeds."""

    figure = "reward"  # what methods are compared by
    method: str
    variant: str
    rows: list[Row]
    tasks: list[str]  # of all methods in the table
    difference: tuple[float, float] | None

    def cells(self) -> dict[str, str]:
        scores = {task: self._spread(f"score {task}", ".1f") for task in self.tasks}
        return {
            "method": self.method,
            "variant": self.variant,
            "seeds": str(len(self.rows)),
            "reward": self._spread("reward", ".2f"),
            "kept": self._spread("kept", ".0%"),
            "games learned": self._spread("games_learned", ".1f"),
            **scores,
            "capacity used": self._spread("capacity", ".0%"),
            "extra MB": f"{mean(row['extra_bytes'] + row['buffer_bytes'] for row in self.rows) / 1e6:.3g}",
            "seconds": f"{mean(row['seconds'] for row in self.rows):.0f}",
            "evaluation": f"{mean(row['evaluation_seconds'] for row in self.rows):.0f}",
        }

    def _spread(self, name: str, form: str) -> str:
        values = [row[name] for row in self.rows if row.get(name) is not None]
        if not values:
            return ""
        more = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
        return f"{mean(values):{form}}{more}"
