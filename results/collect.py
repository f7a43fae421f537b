"""Brings the tables of this folder up to date with the finished runs in BITFREEZE_RUNS: `make results`.

Rows of runs that are not there stay as they are: the CSV files are the record. To take one out, delete its line.

A stream's own page holds its runs on test data. Runs that chose settings on validation data, those that change one
thing at a time, and those of another scenario than the stream's own have pages of their own. Accuracies or scores of
single tasks, and the share of bits that each froze, are in tasks_<stream>.csv; curves_<stream>.csv has the losses of
runs that were cut to a few epochs, and the scores of games over the whole sequence.
"""

from pathlib import Path
from statistics import mean, stdev

from bitfreeze.lab.results.figures.games import curve_of
from bitfreeze.lab.results.rows import from_csv, merged, rounded, rows_of, to_csv
from bitfreeze.lab.results.stored import StoredRun, read_runs, variant_of
from bitfreeze.lab.results.table import to_page
from bitfreeze.lab.runs.columns import Row
from bitfreeze.lab.runs.events import EpochDone, RandomPlay, TaskPlayed
from bitfreeze.lab.runs.folder import runs_root
from bitfreeze.lab.streams import streams

HERE = Path(__file__).parent
ABLATED = {"mnist5": "training.epochs=10", "alt_cifar": "stream.tasks=4"}  # what runs of an ablation have
FEW_EPOCHS = 10
TITLES = {
    "tuning_": "Choosing settings on {}: tested on 10 % of the training samples, which are not trained on",
    "ablation_": "Ablation of BLIP on {}: one thing at a time, cut short as the variant says",
    "class_": "{} with one head that grows, where the task is not told",
    "": "{}",
}


def kind(run: StoredRun) -> str:
    """Which of the pages a run belongs to."""
    words = variant_of(run.config).split()
    if "stream.tuning=true" in words:
        return "tuning_"
    if "stream.scenario=class" in words:
        return "class_"
    return "ablation_" if run.method == "blip" and ABLATED.get(run.stream) in words else ""


def of_run(run: StoredRun) -> Row:
    return {"method": run.method, "variant": variant_of(run.config), "seed": run.config["seed"]}


def of_tasks(run: StoredRun) -> list[Row]:
    """Each task of a finished run, after it and after each one that came later: accuracies, or scores of games."""
    if run.result is None:
        return []
    matrix = run.matrix
    return [
        of_run(run)
        | {"task": k, "name": name}
        | _errors(run, k)
        | {"frozen": run.learned[k].report.get("share_frozen")}
        | {f"after {t + 1}": matrix[t][k] for t in range(k, len(matrix))}
        for k, name in enumerate(run.tasks)
    ]


def _errors(run: StoredRun, task: int) -> Row:
    """For games: random play, and the standard errors of it, of the task when it was learned, and of it in the end."""
    then, end = run.learned[task], run.learned[-1]
    if not (isinstance(then, TaskPlayed) and isinstance(end, TaskPlayed)):
        return {}
    (at_random,) = [e.scores for e in run.events if isinstance(e, RandomPlay) and e.task == task]
    played = {"random": at_random, "learned": then.games[task], "end": end.games[task]}
    errors = {f"{word}_error": stdev(scores) / len(scores) ** 0.5 for word, scores in played.items()}
    return {"random": mean(at_random), **errors}


def curve(run: StoredRun) -> list[Row]:
    """The scores at each evaluation of games, and the losses of each epoch of a run that was cut to a few epochs."""
    if run.result is None:
        return []
    scores = [
        of_run(run) | {"steps": steps} | {f"score {game}": s for game, s in zip(run.tasks, means, strict=False)}
        for steps, means in curve_of(run).items()
    ]
    epochs = [event for event in run.events if isinstance(event, EpochDone)]
    cut = run.config["training"]["epochs"] <= FEW_EPOCHS
    seen = ("task", "epoch", "lr", "train_loss", "valid_loss")
    losses = [of_run(run) | {name: round(getattr(event, name), 6) for name in seen} for event in epochs if cut]
    return scores + losses


def add_to(name: str, rows: list[Row]) -> list[Row]:
    """All rows of a file, with these."""
    file = HERE / f"{name}.csv"
    rows = merged(from_csv(file.read_text()) if file.exists() else [], rows)
    if rows:
        file.write_text(to_csv(rows))
        print(f"{name}: {len(rows)} rows")
    return rows


def main() -> None:
    for stream in streams:
        runs = read_runs(sorted((runs_root() / stream).glob("*/seed*/config.toml")))
        for prefix, title in TITLES.items():
            rows = add_to(f"{prefix}{stream}", rows_of(run for run in runs if kind(run) == prefix))
            if rows:
                page = to_page(rows, stream, title=title.format(stream))
                (HERE / f"{prefix}{stream}.md").write_text(page + "\n")
        tested = [run for run in runs if kind(run) == ""]
        add_to(f"tasks_{stream}", [rounded(task) for run in tested for task in of_tasks(run)])
        add_to(f"curves_{stream}", [epoch for run in tested for epoch in curve(run)])


if __name__ == "__main__":
    main()
