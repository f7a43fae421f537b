"""Figures: what they draw is what runs hold, and what they need is said."""

import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bitfreeze.lab.results.figures import draw, figures, save
from bitfreeze.lab.results.figures.extra_bits import counted
from bitfreeze.lab.results.figures.heatmaps import block_means
from bitfreeze.lab.results.figures.style import headline, line_style, shorten
from bitfreeze.lab.results.figures.workflow import history
from bitfreeze.lab.results.stored import StoredRun, find_runs
from bitfreeze.lab.runs.events import Evaluation, RandomPlay, TaskPlayed, TaskTested
from support.made_runs import make_run

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg

ODD = ("$x_1$ & <b>", "2 or 3")  # names that come from files may hold anything


def test_every_figure_is_written_as_png_and_svg_and_says_what_it_shows(tmp_path):
    for value in ("0.1", "0.2"):
        blip = make_run(tmp_path, "blip", variant="strict", changes=[f"method.budget={value}"], tasks=ODD)
        make_run(tmp_path, "blip", variant="strict", changes=[f"method.prior={value}"])
    runs = [blip, *(make_run(tmp_path, "ft", seed=seed) for seed in (0, 1))]
    needs = {
        "budget": [
            make_run(tmp_path / "b", "blip", variant="strict", changes=[f"method.budget={v}"]) for v in ("0.1", "0.3")
        ],
        "prior": [
            make_run(tmp_path / "p", "blip", variant="strict", changes=[f"method.prior={v}"]) for v in ("1e-9", "1e-7")
        ],
    }
    needs["scores"] = needs["reward"] = [make_games(tmp_path, "ft"), make_games(tmp_path, "blip")]
    for name, figure in figures.items():
        drawing = draw(name, [blip] if figure.of_one_run else needs.get(name, runs))
        assert len(drawing.words) > 20
        png, svg = save(drawing, tmp_path / "out").files
        assert png.read_bytes().startswith(b"\x89PNG")
        assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")
        assert svg.stem == drawing.name
        if name == "workflow":
            assert "$x_1$ &amp; &lt;b&gt;" in svg.read_text()


def test_a_figure_is_named_after_what_all_its_runs_share(tmp_path):
    first, second, ft = make_run(tmp_path, "blip"), make_run(tmp_path, "blip", seed=1), make_run(tmp_path, "ft")
    assert draw("matrix", [first]).name == "digits5_blip_seed0_matrix"
    assert draw("matrix", [first, second]).name == "digits5_blip_matrix"
    assert draw("matrix", [first, ft]).name == "digits5_matrix"
    assert draw("workflow", [ft, first]).name == "digits5_blip_seed0_workflow"  # the one that has bits


def test_memory_is_drawn_from_the_first_task_to_the_last_at_the_accuracy_of_the_end(tmp_path):
    runs = [make_run(tmp_path, "blip", seed=seed, accuracies=((90.0,), (80.0, 96.0 + seed))) for seed in (0, 1)]
    grown = [TaskTested(task=t, accuracy=[], extra_bytes=1000 * t, buffer_bytes=500) for t in (0, 1)]
    runs[1].__dict__["learned"] = grown
    tail, start, *_ = draw("memory", runs).figure.axes[0].lines[1:]  # the first is the network alone
    # of 4000 bytes of network: 1000 more after each task in one run, 500 and then 1500 more in the other
    assert np.allclose(tail.get_xdata(), [(5000 + 4500) / 2e6, (5000 + 5500) / 2e6])
    assert np.allclose(tail.get_ydata(), [88.25, 88.25])
    assert list(start.get_xdata()) == [tail.get_xdata()[0]]
    joint = draw("memory", [*runs, make_run(tmp_path, "joint")]).figure.axes[0]
    marks = [line for line in joint.lines if line.get_markersize() == 6.5]
    assert [line.get_markerfacecolor() for line in marks] == [
        marks[0].get_markeredgecolor(),
        "white",
    ]  # a reference point
    assert {text.get_text() for text in joint.texts} == {"blip", "joint"}


def test_tradeoff_has_a_row_for_each_method_the_best_first(tmp_path):
    runs = [make_run(tmp_path, "ft", accuracies=((90.0,), (60.0, 95.0)))]
    runs += [make_run(tmp_path, "blip", seed=seed, accuracies=((90.0,), (80.0 + seed, 95.0))) for seed in (0, 1)]
    panels = draw("tradeoff", runs).figure.axes
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["blip", "ft"]
    top, below = panels[0].get_yticks()
    assert top > below
    seeds = next(line for line in panels[0].lines if line.get_marker() == "|" and line.get_ydata()[0] == top)
    assert list(seeds.get_xdata()) == [87.5, 88.0]
    assert [axes.get_xscale() for axes in panels] == ["linear", "linear", "log", "log"]


def test_no_two_of_70_methods_share_colour_and_mark():
    styles = [line_style(k) for k in range(70)]
    assert len({(style["color"], style["marker"]) for style in styles}) == 70
    assert len({(style["color"], style["linestyle"]) for style in styles[:28]}) == 28


def make_games(root, method, shift=0.0):
    """Two games of 1000 steps: random play scores 10 in the first and 0 in the second."""
    run = make_run(
        root, method, changes=[f"training.lr={0.1 + shift}"], accuracies=[], tasks=("pong", "boxing"), finished=False
    )
    run.config["training"]["steps"] = 1000
    run.folder.log.written = 1  # go on after what is there
    for task, evaluated in enumerate(([20.0], [15.0 + shift, 8.0])):
        run.folder.event(RandomPlay(task=task, score=10.0 * (1 - task), scores=[]))
        # fewer games than at the end of the task before, so that has the last word in a curve; the new game is met here
        run.folder.event(Evaluation(task=task, steps=0, scores=[*[99.0] * task, 2.0], seconds=1.0))
        run.folder.event(Evaluation(task=task, steps=500, scores=evaluated, seconds=1.0))
        run.folder.event(
            TaskPlayed(
                task=task, score=[value + 10 for value in evaluated], games=[], learned=True, evaluation_seconds=1.0,
                extra_bytes=0, buffer_bytes=0,
            )
        )  # fmt: skip
    return StoredRun(run.folder, run.config)


def test_scores_over_all_steps_and_their_normalised_sum(tmp_path):
    runs = [make_games(tmp_path, "ft"), make_games(tmp_path, "ft", 5.0)]
    pong, boxing = draw("scores", runs).figure.axes[:2]
    assert list(pong.lines[1].get_xdata()) == [0, 0.5, 1, 1.5, 2]  # thousands
    assert list(pong.lines[1].get_ydata()) == [2, 20, 30, 15, 25]
    assert list(boxing.lines[1].get_ydata()) == [2, 8, 18]
    first, second = draw("reward", runs).figure.axes[0].lines
    # pong from 10 to the best of all evaluations, 99; boxing from 0 to 18
    boxing = np.array([0, 0, 2, 8, 18]) / 18
    assert np.allclose(first.get_ydata(), (np.array([2, 20, 30, 15, 25]) - 10) / 89 + boxing)
    assert np.allclose(second.get_ydata(), (np.array([2, 20, 30, 20, 30]) - 10) / 89 + boxing)
    assert "1.17 (so far, 2 games)" in draw("reward", runs).words
    with pytest.raises(ValueError, match="scores needs runs of games"):
        draw("scores", [make_run(tmp_path, "blip")])
    runs[1].config["training"]["steps"] = 2000
    with pytest.raises(ValueError, match="reward is of runs with the same games and steps"):
        draw("reward", runs)


LONG = tuple(f"CIFAR-100 classes {20 * k} to {20 * k + 19}" for k in range(10))
WORDY = ["training.epochs=12", "training.patience=1", "training.lr=0.0123", "network.hidden=[64,128,256,512]"]


@pytest.mark.parametrize("tasks", [2, 10])
@pytest.mark.parametrize("name", ["matrix", "sequence", "extra_bits", "heatmaps", "capacity"])
@pytest.mark.parametrize("methods", [("blip",), ("blip", "ft", "ewc")], ids=["one run", "three"])
def test_words_stay_inside_the_figure_and_off_each_other(name, tasks, methods, tmp_path):
    accuracies = [[90.0] * (t + 1) for t in range(tasks)]
    runs = [
        make_run(tmp_path, method, changes=WORDY[: 4 - k], accuracies=accuracies, tasks=LONG[:tasks])
        for k, method in enumerate(methods)
    ]
    figure = draw(name, runs[:1] if figures[name].of_one_run else runs).figure
    assert_words_are_apart(figure)


def test_words_of_games_stay_inside_the_figure_and_off_each_other(tmp_path):
    run = make_games(tmp_path, "blip")
    run.config["changes"] = WORDY
    run.tasks[:] = ["ALE/SpaceInvaders-v5?mirror=1&permute=3&gravity=20", "CartPole-v1?permute=1&gravity=20"]
    for name in ("scores", "reward"):
        assert_words_are_apart(draw(name, [run]).figure)


def assert_words_are_apart(figure):
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    words = (
        [axes.title for axes in panels] + [axes.xaxis.label for axes in panels] + figure.legends + [figure._suptitle]
    )
    boxes = [word.get_window_extent(renderer) for word in words if not hasattr(word, "get_text") or word.get_text()]
    width, height = figure.bbox.size
    assert len(boxes) > 2
    for k, box in enumerate(boxes):
        assert -1 <= box.x0 < box.x1 <= width + 1
        assert -1 <= box.y0 < box.y1 <= height + 1
        assert not any(box.overlaps(other.padded(-1)) for other in boxes[:k])


def test_lines_of_sequence_are_means_over_seeds(tmp_path):
    runs = [make_run(tmp_path, "ft", accuracies=((90.0,), (80.0, 96.0)))]
    runs += [make_run(tmp_path, "ft", seed=1, accuracies=((92.0,), (70.0, 98.0)))]
    first, second, running = draw("sequence", runs).figure.axes[:3]
    assert [list(line.get_ydata()) for line in first.lines] == [[91.0, 75.0]]
    assert [list(line.get_ydata()) for line in second.lines] == [[97.0]]
    assert [list(line.get_ydata()) for line in running.lines] == [[91.0, 86.0]]


def test_matrices_show_each_accuracy_and_leave_out_what_was_not_learned(tmp_path):
    for seed, accuracies in enumerate(
        (((100.0,), (100.0, 100.0)), ((0.0,), (31.25, 5.0)))
    ):  # all alike, and wide apart
        run = make_run(tmp_path, "ft", seed=seed, accuracies=accuracies)
        panel = draw("matrix", [run]).figure.axes[0]
        shown = {text.get_position(): text.get_text() for text in panel.texts}
        expected = {
            (u, t): f"{a:.1f}".replace("100.0", "100") for t, row in enumerate(accuracies) for u, a in enumerate(row)
        }
        assert shown == expected


def title(drawing):
    return drawing.figure.get_suptitle()


def test_ablation_takes_only_runs_that_differ_in_that_option(tmp_path):
    runs = [
        make_run(
            tmp_path, "blip", variant="strict", changes=[f"method.budget={value}"], accuracies=((90.0,), (80.0, acc))
        )
        for value, acc in ((0.05, 90.0), (0.2, 92.0))
    ]
    runs.append(
        make_run(tmp_path, "blip", variant="strict", accuracies=((90.0,), (80.0, 94.0)))
    )  # the preset's own 0.1
    runs.append(make_run(tmp_path, "blip", variant="strict", changes=["method.budget=0.3", "training.epochs=4"]))
    runs.append(make_run(tmp_path, "ft"))
    line = draw("budget", runs).figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [0.05, 0.1, 0.2]
    assert list(line.get_ydata()) == [85.0, 87.0, 86.0]
    again = make_run(tmp_path / "elsewhere", "blip", variant="strict", accuracies=((90.0,), (80.0, 94.0)))
    assert "one seed" in title(draw("budget", [*runs, again]))  # the same run twice is no second seed
    second = make_run(tmp_path, "blip", variant="strict", seed=1, accuracies=((90.0,), (80.0, 94.0)))
    assert "1 to 2 seeds, bars: standard deviation" in title(draw("budget", [*runs, second]))
    with pytest.raises(ValueError, match=r"prior needs finished runs that differ in .* --grid method.prior="):
        draw("prior", runs)


def test_history_of_a_parameter_is_nested_intervals_with_its_value_inside(tmp_path):
    bits = make_run(tmp_path, "blip").bits
    for index in np.ndindex(6, 5):
        before, *after = history(bits, "backbone.1.weight", index)
        assert (before.centre, before.radius) == (0.0, 1.0)
        for step in after:
            assert step.centre - step.radius >= before.centre - before.radius
            assert step.centre + step.radius <= before.centre + before.radius
            assert step.radius == 2.0**-step.bits
            assert abs(step.value - step.centre) <= step.radius
            before = step


def test_workflow_draws_the_digits_of_rounded_centres_only(tmp_path):
    strict = draw("workflow", [make_run(tmp_path, "blip")], parameter="backbone.1.weight[0, 0]")
    released = draw("workflow", [make_run(tmp_path, "blip", variant="released")], parameter="backbone.1.weight[0, 0]")
    digits = [[text.get_text() for text in drawing.figure.axes[2].texts] for drawing in (strict, released)]
    assert not {"0", "1"} & set(digits[0])
    assert {"+0.", "-0."} & set(digits[1])


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("backbone.1.weight[9, 0]", "backbone.1.weight is 6 x 5"),
        ("backbone.1.weight[0]", "backbone.1.weight is 6 x 5"),
        ("nothing[0]", "a parameter is written backbone.1.weight"),
        ("backbone.1.weight", "a parameter is written backbone.1.weight"),
    ],
)
def test_a_parameter_that_is_not_there_is_refused(tmp_path, parameter, message):
    with pytest.raises(ValueError, match=message):
        draw("workflow", [make_run(tmp_path, "blip")], parameter=parameter)


def test_extra_bits_are_counted_as_one_by_one(tmp_path):
    bits = make_run(tmp_path, "blip").bits
    for task, found in enumerate(counted(bits)):
        counts, kinds = np.zeros(21), {"again": 0, "never": 0, "silent": 0}
        for name in bits.names:
            now = bits.bits(name, task)
            was = bits.bits(name, task - 1) if task else np.zeros_like(now)
            for index in np.ndindex(now.shape):
                counts[int(now[index]) - int(was[index])] += 1
                if now[index] == 0:
                    kinds["silent" if name == "backbone.1.weight" and index[0] == 2 else "never"] += 1
                elif now[index] == was[index]:
                    kinds["again"] += 1
        total = counts.sum()
        assert np.allclose(found.more, 100 * counts / total)
        assert np.allclose([found.again, found.never, found.silent], [100 * k / total for k in kinds.values()])
        assert np.isclose(found.again + found.never + found.silent, found.more[0])
        assert (found.dead, found.units) == (1, 10)


def test_block_means_keep_the_mean_and_every_block():
    values = np.random.default_rng(0).integers(0, 21, (37, 11))
    small = block_means(values, 8)
    rows, columns = (np.linspace(0, n, 9).astype(int) for n in values.shape)
    for i in range(8):
        for j in range(8):
            block = values[rows[i] : rows[i + 1], columns[j] : columns[j + 1]]
            assert np.isclose(small[i, j], block.mean())
    assert np.array_equal(block_means(values, 40), values)


def test_capacity_is_that_of_the_bits(tmp_path):
    run = make_run(tmp_path, "blip")
    first, second, together = draw("capacity", [run]).figure.axes[0].lines
    expected = [[100 * run.bits.capacity(names, t) for t in (0, 1)] for names in run.bits.layers.values()]
    assert [list(first.get_ydata()), list(second.get_ydata())] == expected
    assert list(together.get_ydata()) == [10.0, 20.0]  # what the run itself noted


def test_what_a_figure_cannot_be_drawn_of_is_one_sentence(tmp_path):
    ft, going = make_run(tmp_path, "ft"), make_run(tmp_path, "ft", seed=1, finished=False)
    blip = make_run(tmp_path, "blip")
    for name in ("workflow", "heatmaps", "extra_bits"):
        with pytest.raises(ValueError, match=f"{name} needs frozen bits, and .* has none"):
            draw(name, [ft])
    with pytest.raises(ValueError, match="froze no bits"):
        draw("capacity", [ft])
    with pytest.raises(ValueError, match="tradeoff needs finished runs"):
        draw("tradeoff", [going])
    with pytest.raises(ValueError, match="workflow is of one run, and 2 match: name one"):
        draw("workflow", [ft, blip, blip])
    assert draw("workflow", [ft, blip]).words == draw("workflow", [blip]).words  # the one that has bits


def test_runs_of_before_values_or_bits_were_kept_are_drawn_all_the_same(tmp_path):
    run = make_run(tmp_path, "blip")
    for file in (run.folder.path / "bits").iterdir():
        save_file({k: v for k, v in load_file(file).items() if not k.endswith("/offset")}, file)
    title = draw("workflow", [run]).figure.get_suptitle()
    assert title.endswith("only centres were kept of this run")
    bare = make_run(tmp_path, "blip", seed=1)
    shutil.rmtree(bare.folder.path / "bits")
    drawing = draw("capacity", [bare])
    assert [list(line.get_ydata()) for line in drawing.figure.axes[0].lines] == [[10.0, 20.0]]
    assert drawing.figure.get_suptitle().endswith("its bits were not kept")


def test_a_headline_keeps_within_the_width_of_its_figure():
    assert headline(["digits5", "", "ft"], 5) == "digits5, ft"
    lines = headline(["word" * 3] * 40, 5).splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 13 * 5 + 4 for line in lines)
    assert lines[-1].endswith(" ...")


def test_labels_lose_what_all_of_them_share():
    assert shorten(["blip training.epochs=4", "ft training.epochs=4"]) == (["blip", "ft"], "training.epochs=4")
    assert shorten(["blip", "ft training.epochs=4"]) == (["blip", "ft training.epochs=4"], "")
    assert shorten(["ft training.epochs=4"]) == (["ft training.epochs=4"], "")


def test_skills_are_the_change_of_the_first_task_and_the_mean_of_later_ones_when_learned(tmp_path):
    for seed, first in ((0, 70.0), (1, 80.0)):
        make_run(tmp_path, "ft", seed=seed, accuracies=[(90.0,), (85.0, 60.0), (first, 50.0, 40.0)], tasks="abc")
    runs = [*find_runs(tmp_path, ["digits5/ft"]), make_run(tmp_path, "blip", accuracies=[(90.0,), (91.0, 55.0)])]
    drawing = draw("skills", runs)
    assert "ft: -15.00 against 50.00; blip: +1.00 against 55.00." in drawing.words
    one = make_run(tmp_path / "one", "ft", accuracies=[(90.0,)], tasks="a")
    with pytest.raises(ValueError, match="skills needs finished runs of two tasks at least"):
        draw("skills", [one])
