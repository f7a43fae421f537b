"""Finished runs as rows and tables, against figures worked out by hand."""

import csv
import io
import json
import math
import re
from statistics import mean, stdev

import pytest

from bitfreeze.lab.results.latex import escaped
from bitfreeze.lab.results.rows import finished_rows, from_csv, merged, to_csv
from bitfreeze.lab.results.table import Table, best_lines, grid, summarise, to_markdown, to_page
from bitfreeze.lab.runs.columns import three_digits, values_of
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.events import AccuracyResult, TaskTested
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.provenance import code_version
from bitfreeze.lab.runs.start import run

COLUMNS = [
    "method", "variant", "seed", "acc", "bwt", "bwt_T", "learning_acc", "forgetting", "intransigence", "stability",
    "capacity", "model_bytes", "extra_bytes", "buffer_bytes", "memory_by_task", "epochs_cap", "seconds", "protocol",
    "command", "environment",
]  # fmt: skip


def finish(root, method, seed, matrix, variant="", changes=(), **report):
    """A finished run with this accuracy matrix, without the training."""
    config = make_config("mnist5", method, variant, seed, changes)
    folder = RunFolder(root / config.name)
    folder.path.mkdir(parents=True)
    folder.write_config(config)
    for index, row in enumerate(matrix):
        # after the first task 1 MB, in the end 2.5 MB
        sizes = {"extra_bytes": 1_000_000 * (index + 1), "buffer_bytes": 500_000 * index}
        folder.event(TaskTested(task=index, accuracy=row, report=report, **sizes))
    folder.event(
        AccuracyResult(
            acc=mean(matrix[-1]),
            bwt=matrix[1][0] - matrix[0][0],
            bwt_T=(matrix[1][0] - matrix[0][0]) / 2,
            forgetting=matrix[0][0] - matrix[1][0],
            learning_acc=mean([matrix[0][0], matrix[1][1]]),
            model_bytes=100,
            extra_bytes=2_000_000,
            buffer_bytes=500_000,
            seconds=60.0,
        )
    )
    return config


@pytest.fixture
def root(tmp_path):
    for seed, offset in enumerate((0.0, 1.0, 3.0)):
        finish(tmp_path, "blip", seed, [[98 + offset], [97, 99 - offset]], capacity=0.25)
        finish(tmp_path, "ft", seed, [[96], [90 + offset, 94]])
        finish(tmp_path, "joint", seed, [[99], [99, 97]])
    finish(tmp_path, "blip", 0, [[99.0], [99.0, 99.0]], "released", ["training.epochs=40"])
    unfinished = RunFolder(tmp_path / make_config("mnist5", "single").name)
    unfinished.path.mkdir(parents=True)
    unfinished.write_config(make_config("mnist5", "single"))
    return tmp_path


def test_a_row_for_each_finished_run_with_the_columns_that_callers_rely_on(root):
    rows = list(csv.DictReader(io.StringIO(to_csv(finished_rows(root, "mnist5")))))
    assert [(r["method"], r["variant"], r["seed"]) for r in rows] == [
        *(("blip", "", str(s)) for s in range(3)),
        ("blip", "released training.epochs=40", "0"),
        *(("ft", "", str(s)) for s in range(3)),
        *(("joint", "", str(s)) for s in range(3)),
    ]
    assert list(rows[0]) == COLUMNS
    first, capped = rows[0], rows[3]
    assert (float(first["acc"]), float(first["bwt"]), float(first["bwt_T"])) == (98, -1, -0.5)
    assert first["epochs_cap"] == "200"
    assert capped["epochs_cap"] == "40"
    assert capped["command"].endswith("mnist5 --method blip --variant released --seed 0 --set training.epochs=40")
    assert float(first["capacity"]) == 0.25
    assert rows[4]["capacity"] == ""


def test_rows_come_back_from_the_csv_as_they_were(root):
    rows = finished_rows(root, "mnist5")
    assert from_csv(to_csv(rows)) == rows
    assert {row["environment"] for row in rows} != {""}


def test_rows_of_runs_that_are_gone_stay_and_those_done_again_are_replaced(root):
    rows = finished_rows(root, "mnist5")
    again = {**rows[4], "acc": 12.5}
    first = {**rows[0], "method": "agem"}
    assert merged(rows, [again, first]) == [first, *rows[:4], again, *rows[5:]]


def test_intransigence_is_to_the_joint_training_of_the_same_seed_and_schedule(root):
    rows = {(r["method"], r["variant"], r["seed"]): r for r in finished_rows(root, "mnist5")}
    assert rows["blip", "", 0]["intransigence"] == pytest.approx(98 - 98.5)
    assert rows["ft", "", 0]["intransigence"] == pytest.approx(98 - 95)
    assert rows["blip", "released training.epochs=40", 0]["intransigence"] is None


def test_a_joint_run_with_options_of_its_own_is_no_ceiling(root):
    finish(root, "joint", 0, [[10], [10, 10]], changes=["method.clip=0.1"])
    rows = {(r["method"], r["variant"], r["seed"]): r for r in finished_rows(root, "mnist5")}
    assert rows["ft", "", 0]["intransigence"] == pytest.approx(98 - 95)


def test_plasticity_and_transfer_are_to_fine_tuning_and_to_separate_networks_of_the_same_setting(root):
    for seed in (1, 2):
        finish(root, "single", seed, [[99], [99, 98]])
    finish(root, "single", 0, [[10], [10, 10]], changes=["method.clip=0.1"])  # options of its own: no reference
    finish(root, "single", 0, [[60], [60, 70]], changes=["training.epochs=40"])
    lines = {(line.method, line.variant): line for line in summarise(finished_rows(root, "mnist5"), "mnist5")}
    learned = [(98 + offset + 99 - offset) / 2 for offset in (0, 1, 3)]
    assert values_of(lines["blip", ""].rows, "plasticity") == pytest.approx([value - 95 for value in learned])
    assert values_of(lines["blip", ""].rows, "transfer") == pytest.approx([value - 98.5 for value in learned[1:]])
    capped = lines["blip", "released training.epochs=40"]
    assert (capped.cells()["plasticity"], capped.cells()["transfer"]) == ("", "34.00")
    assert lines["ft", ""].cells()["plasticity"] == "0.00"


def test_stability_and_memory_come_from_each_task(root):
    rows = finished_rows(root, "mnist5")
    assert rows[0]["stability"] == pytest.approx(97 / 98, abs=1e-4)
    assert rows[0]["memory_by_task"] == f"{1_000_000 + 100} {2_500_000 + 100}"
    (blip, *_) = summarise(rows, "mnist5")
    assert blip.cells()["memory MB"] == "1 to 2.5"
    assert blip.cells()["stability"] == f"{mean(97 / (98 + offset) for offset in (0, 1, 3)):.1%}"
    old = [{k: v for k, v in row.items() if k not in ("memory_by_task", "stability")} for row in rows]
    (blip, *_) = summarise(from_csv(to_csv(old)), "mnist5")  # a CSV of an older version
    assert blip.cells()["memory MB"] == "2.5"
    assert blip.cells()["stability"] == ""


def test_large_and_small_memory_is_readable():
    assert [three_digits(value) for value in (0.00123, 0.5, 27.04, 999.4, 1234.5)] == [
        "0.00123", "0.5", "27", "999", "1234"
    ]  # fmt: skip


PLAIN = {r"\textbackslash{}": "\\", r"\textasciicircum{}": "^", r"\textasciitilde{}": "~", r"$\pm$": "±", "$-$": "-",
         r"\textless{}": "<", r"\textgreater{}": ">", r"\textbar{}": "|"}  # fmt: skip


def without_latex(cell):
    """The text that LaTeX would print."""
    text = re.sub(r"\\textbf\{(.*?)\}(?= |$)", r"\1", cell)
    found = re.split("(" + "|".join(map(re.escape, PLAIN)) + ")", text)
    return "".join(PLAIN.get(part) or re.sub(r"\\([&%$#_{}])", r"\1", part) for part in found)


def test_latex_holds_the_same_cells_with_all_that_is_special_escaped(root):
    finish(root, "ft", 0, [[96], [90, 94]], changes=["network.hidden=[7]"])
    table = Table("mnist5", finished_rows(root, "mnist5"), "ft")
    titles, rows = grid(table.lines)
    text = table.to_latex()
    body = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r" \\")]
    assert [[without_latex(cell) for cell in line] for line in body] == [titles, *rows]
    (columns,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert len(columns) == len(titles)
    nasty = r"a_b & 5% of {$x^2} \ ~#1 <y> |z|"
    assert without_latex(escaped(nasty)) == nasty


def test_in_latex_the_best_rival_is_bold_and_never_a_ceiling(root):
    lines = summarise(finished_rows(root, "mnist5"), "mnist5")
    methods = [line.method for line in lines]
    assert methods == ["blip", "blip", "ft", "joint"]
    for title, best in (("ACC", {1}), ("BWT", {1}), ("intransigence", {0}), ("seconds", {0, 1, 2}), ("seeds", set())):
        assert best_lines(lines, title) == best, title
    text = Table("mnist5", finished_rows(root, "mnist5")).to_latex()
    assert r"\textbf{99.00} &" in text
    joint = next(line for line in text.splitlines() if line.startswith("joint"))
    assert "textbf" not in joint


def test_json_has_the_figures_of_each_line_and_every_run(root):
    table = Table("mnist5", finished_rows(root, "mnist5"), "ft")
    found = json.loads(table.to_json())
    assert [(line["method"], line["seeds"]) for line in found["lines"]] == [
        ("blip", [0, 1, 2]), ("blip", [0]), ("ft", [0, 1, 2]), ("joint", [0, 1, 2])
    ]  # fmt: skip
    blip = found["lines"][0]
    accuracies = [(97 + 99) / 2, (97 + 98) / 2, (97 + 96) / 2]
    assert {"extra_bytes", "buffer_bytes"} <= set(blip["figures"])
    assert blip["figures"]["acc"] == pytest.approx({"mean": mean(accuracies), "deviation": stdev(accuracies)}, abs=1e-5)
    assert blip["difference"]["mean"] == pytest.approx(table.lines[0].difference[0])
    assert [run["memory_by_task"] for run in found["runs"]] == [[1_000_100, 2_500_100]] * len(table.rows)
    assert {"method", "seed", "acc", "command"} <= set(found["runs"][0])


def test_the_protocol_is_that_of_the_run(root):
    finish(root, "vcl", 0, [[10], [10, 10]], changes=["network.hidden=[7]"])
    rows = {r["method"]: r["protocol"] for r in finished_rows(root, "mnist5")}
    assert "Adam lr 0.001, batch 64, up to 200 epochs" in rows["vcl"]
    assert "; mlp hidden=[7]" in rows["vcl"]
    assert "SGD lr 0.01" in rows["ft"]


def test_means_spreads_and_paired_differences(root):
    rows = finished_rows(root, "mnist5")
    blip, capped, ft, joint = summarise(rows, "mnist5", against="ft")
    accuracies = [(97 + 99) / 2, (97 + 98) / 2, (97 + 96) / 2]
    assert blip.cells()["ACC"] == f"{mean(accuracies):.2f} ± {stdev(accuracies):.2f}"
    assert capped.cells()["ACC"] == "99.00"
    differences = [a - (184 + offset) / 2 for a, offset in zip(accuracies, (0, 1, 3), strict=True)]
    # the 97.5 % quantile of Student's t for 2 degrees of freedom has a closed form
    p = 0.975
    t = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    assert blip.difference == pytest.approx((mean(differences), t * stdev(differences) / math.sqrt(3)), rel=1e-3)
    assert ft.difference is None
    assert capped.difference is None  # one seed in common says nothing of the spread
    assert [blip.cells()[f"paper {name}"] for name in ("ACC", "BWT")] == ["99.64", "0.01"]
    assert ft.cells()["paper ACC"] == ""
    assert joint.cells()["extra MB"] == "2.5"


def test_a_method_is_compared_where_it_was_run_with_the_same_settings(root):
    for method, options, score in (("ft", [], 90), ("blip", ["method.bits=12"], 91)):
        for seed in range(3):
            finish(root, method, seed, [[score], [score, score + seed]], changes=["training.epochs=40", *options])
    rows = finished_rows(root, "mnist5")
    found = {(line.method, line.variant): line.difference for line in summarise(rows, "mnist5", against="ft")}
    assert found["blip", "method.bits=12 training.epochs=40"] == pytest.approx((1, 0))
    assert found["blip", ""] is not None
    assert found["ft", "training.epochs=40"] is None
    named = {
        (line.method, line.variant): line.difference for line in summarise(rows, "mnist5", "ft training.epochs=40")
    }
    assert named["blip", ""] == pytest.approx((20.5 / 3, 3.126), rel=1e-3)  # of 8, 7 and 5.5


def test_markdown_has_a_cell_for_each_name(root):
    text = to_markdown(summarise(finished_rows(root, "mnist5"), "mnist5", "ft"))
    lines = text.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| blip |  | 3 | 97.33 ± 0.76 |" in lines[2]
    assert "25%" in lines[2]


def test_columns_in_which_nothing_stands_are_left_out(root):
    rows = finished_rows(root, "mnist5")
    assert "paper ACC" in grid(summarise(rows, "mnist5"))[0]
    assert "paper ACC" not in grid(summarise([row for row in rows if row["method"] == "ft"], "mnist5"))[0]
    assert grid(summarise(rows, "mnist5", "ft"))[0][-1] == "ACC to ft (± 95 %)"


def test_a_page_has_protocol_and_versions(root):
    rows = finished_rows(root, "mnist5")
    page = to_page(rows, "mnist5")
    assert "Protocol of blip, ft, joint: SGD lr 0.01, batch 64, up to 200 epochs" in page
    assert "Protocol of blip: SGD lr 0.01, batch 64, up to 40 epochs" in page
    alone = to_page([row for row in rows if row["method"] == "ft"], "mnist5")
    assert "Protocol: SGD lr 0.01, batch 64" in alone
    assert f"Versions: bitfreeze {code_version()}, torch 2." in page


def test_comparing_with_what_is_not_there_names_what_is(root):
    with pytest.raises(ValueError, match=r"no finished run of 'hat' .* there are blip, blip released"):
        summarise(finished_rows(root, "mnist5"), "mnist5", "hat")


def test_a_real_run_comes_out_as_it_ended(tmp_path):
    config = make_config("digits5", "blip", "strict", changes=["training.epochs=2", "network.hidden=[16]"])
    result = run(config, tmp_path)
    (row,) = finished_rows(tmp_path, "digits5")
    matrix = RunFolder(tmp_path / config.name).read_matrix()
    assert row["acc"] == round(result.acc, 4) == pytest.approx(mean(matrix[-1]), abs=1e-4)
    assert row["bwt"] == pytest.approx(mean(matrix[-1][u] - matrix[u][u] for u in range(4)), abs=1e-4)
    assert 0 < row["capacity"] < 1
    files = sorted(path.name for path in (tmp_path / config.name / "bits").iterdir())
    assert files == [f"task{t}.safetensors" for t in range(1, 6)]
