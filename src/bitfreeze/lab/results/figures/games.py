"""Games: the score of each over the whole sequence, and the reward that scores add up to."""

from statistics import mean

from ...metrics import normalised, spread
from ...runs.events import Evaluation, RandomPlay, TaskPlayed
from ..grouping import grouped
from ..stored import StoredRun
from .axes import round_ticks, show_ticks
from .registry import Drawing, register_figure
from .style import GREY, PALE, draw_line, grid_shape, headline, legend_below, shorten, wrapped
from .with_accuracies import seeds_in_words

Curve = dict[int, list[float]]  # steps since the first task began, and the scores of all games met so far


@register_figure(
    "scores",
    "games: the score of each over the whole sequence, methods side by side",
    "Grey is the time in which a game is trained. A fall after it is forgetting.",
)
def scores(runs: list[StoredRun]) -> Drawing:
    from matplotlib.figure import Figure

    groups = _groups(runs, "scores")
    labels, common = shorten(list(groups))
    first = next(iter(groups.values()))[0]
    games, each = first.tasks, _steps_a_task(first)
    unit, units = _unit(len(games) * each)
    random = _random(runs)
    rows, columns = grid_shape(len(games), 3)
    figure = Figure(figsize=(max(4.5, 3.0 * columns), 2.1 * rows + 0.4))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for u, (axes, game) in enumerate(zip(panels.flat, games, strict=False)):
        axes.axvspan(u * each / unit, (u + 1) * each / unit, color=PALE, linewidth=0)
        if u in random:
            axes.axhline(random[u], color=GREY, linestyle=":", linewidth=1)
        for k, (label, group) in enumerate(zip(labels, groups.values(), strict=True)):
            means, off = mean_curve([curve_of(run) for run in group])
            met = [steps for steps in means if u < len(means[steps])]
            heights, bands = [means[s][u] for s in met], [off[s][u] for s in met]
            draw_line(axes, k, [steps / unit for steps in met], heights, bands, label if u == 0 else "")
        axes.set_title("\n".join(wrapped(f"{u + 1}: {game}", 2.8)))
        axes.set_xlim(0, len(games) * each / unit)
    for axes in list(panels.flat)[len(games) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("score")
    for axes in list(panels.flat)[max(0, len(games) - columns) : len(games)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(units)
    legend_below(figure)
    seeds = seeds_in_words(groups.values(), "band")
    figure.suptitle(
        headline(
            [runs[0].stream, common, seeds, "grey: while it is trained, dots: random play"], figure.get_figwidth()
        ),
        fontsize=9,
    )
    return Drawing(figure, f"Score of each of {len(games)} games over the whole sequence, for {', '.join(labels)}.")


@register_figure(
    "reward",
    "games: the accumulated normalised reward over the whole sequence",
    "Higher is better. A curve that falls while another game is trained shows forgetting.",
)
def reward(runs: list[StoredRun]) -> Drawing:
    from matplotlib.figure import Figure

    groups = _groups(runs, "reward")
    labels, common = shorten(list(groups))
    best = _best([run for group in groups.values() for run in group])
    unit, units = _unit(max(steps for run in runs for steps in curve_of(run)))
    figure = Figure(figsize=(5.6, 3.0))
    axes = figure.subplots()
    ends = []
    for k, (label, group) in enumerate(zip(labels, groups.values(), strict=True)):
        curve, off = mean_curve([accumulated(run, best) for run in group])
        bands = [band for (band,) in off.values()]
        draw_line(axes, k, [s / unit for s in curve], [height for (height,) in curve.values()], bands, label)
        games = min(len(curve_of(run)[max(curve_of(run))]) for run in group)
        unfinished = any(run.result is None for run in group)
        ends.append(f"{label} {list(curve.values())[-1][0]:.2f}" + (f" (so far, {games} games)" if unfinished else ""))
    axes.set_xlabel(units)
    axes.set_ylabel("accumulated normalised reward")
    show_ticks(axes, "y", round_ticks(min(0.0, axes.get_ylim()[0]), axes.get_ylim()[1]))
    axes.grid(axis="y")
    seeds = seeds_in_words(groups.values(), "band")
    note = "a game counts 0 at random play, 1 at the best of these runs"
    figure.suptitle(headline([runs[0].stream, common, seeds, note], figure.get_figwidth()), fontsize=9)
    legend_below(figure)
    return Drawing(figure, f"Accumulated normalised reward. In the end: {'; '.join(ends)}.")


def curve_of(run: StoredRun) -> Curve:
    """The mean scores of all games met so far, at each evaluation and after each task."""
    each, found, after_tasks = _steps_a_task(run), {}, {}
    for event in run.events:
        if isinstance(event, Evaluation):
            found[event.task * each + event.steps] = event.scores
        elif isinstance(event, TaskPlayed):
            after_tasks[(event.task + 1) * each] = event.score
    for steps, values in after_tasks.items():  # of more games than at the next task's start, which adds the new one
        found[steps] = values + found.get(steps, [])[len(values) :]
    return dict(sorted(found.items()))


def mean_curve(curves: list[Curve]) -> tuple[Curve, Curve]:
    """The mean over seeds, where all of them have been evaluated, and the standard deviation."""
    common = [steps for steps in curves[0] if all(steps in curve for curve in curves)]
    found = {s: [spread(v) for v in zip(*(curve[s] for curve in curves), strict=False)] for s in common}
    means, deviations = ({s: [pair[k] for pair in pairs] for s, pairs in found.items()} for k in (0, 1))
    return means, deviations


def accumulated(run: StoredRun, best: dict[int, float]) -> Curve:
    """The paper's sum over games, each from the run's own random play; one that has not been met counts nothing."""
    random = _random([run])
    return {
        steps: [
            normalised(values, [random.get(u, 0.0) for u in range(len(values))], [best[u] for u in range(len(values))])
        ]
        for steps, values in curve_of(run).items()
    }


def _groups(runs: list[StoredRun], what: str) -> dict[str, list[StoredRun]]:
    found = grouped([run for run in runs if curve_of(run)], lambda run: run.label)
    if not found:
        raise ValueError(f"{what} needs runs of games that have been evaluated: none of these has")
    if len({(*run.tasks, _steps_a_task(run)) for group in found.values() for run in group}) > 1:
        raise ValueError(
            f"{what} is of runs with the same games and steps, which these have not: name the runs, or choose by "
            "--only and --without"
        )
    return found


def _unit(steps: int) -> tuple[float, str]:
    return (1e6, "steps (millions)") if steps >= 1e6 else (1e3, "steps (thousands)")


def _steps_a_task(run: StoredRun) -> int:
    return int(run.config["training"].get("steps", 1))


def _random(runs: list[StoredRun]) -> dict[int, float]:
    """Random play in each game, the mean over runs."""
    played = [event for run in runs for event in run.events if isinstance(event, RandomPlay)]
    return {task: mean(each.score for each in group) for task, group in grouped(played, lambda e: e.task).items()}


def _best(runs: list[StoredRun]) -> dict[int, float]:
    """The best mean score that any of these runs had in any evaluation of a game, those that no curve shows too."""
    events = [event for run in runs for event in run.events]
    rows = [event.scores for event in events if isinstance(event, Evaluation)]
    rows += [event.score for event in events if isinstance(event, TaskPlayed)]
    return {u: max(row[u] for row in rows if len(row) > u) for u in range(max(map(len, rows), default=0))}
