"""Runs of games: cut off and started again, scores as rows and tables, and games to look at."""

import csv
import io
import json
import shutil
import subprocess
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from bitfreeze.lab import metrics
from bitfreeze.lab.cli.training import Run, Sweep
from bitfreeze.lab.methods import methods
from bitfreeze.lab.results.figures import draw
from bitfreeze.lab.results.play import play_game, write_pictures
from bitfreeze.lab.results.rows import finished_rows, from_csv, to_csv
from bitfreeze.lab.results.stored import find_runs
from bitfreeze.lab.results.table import summarise, to_markdown, to_page
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.errors import RunDamaged
from bitfreeze.lab.runs.events import ScoreResult, Started, TaskPlayed
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.runs.values import parse_count
from support.cut_off import Cut, complete, cut_after, kill_at_random

pytest.importorskip("gymnasium", reason="needs the extra 'atari'")

SMALL = [
    'stream.envs=["CartPole-v1", "Acrobot-v1?permute=1"]', "training.steps=384", "training.copies=4",
    "training.rollout=16", "training.restart=2", "training.evaluations=2", "training.games=2",
    "training.final_games=3", "training.states=100", "training.game_steps=30",
    "training.epochs=2", "training.minibatches=2", "network.hidden=[16, 16]",
]  # fmt: skip
ABLE = [name for name, method in methods.items() if "reinforcement" in method.record.trainers]


@pytest.mark.filterwarnings("ignore:no weight reached the edge")  # a few steps move weights by little
@pytest.mark.parametrize(("method", "precision"), [*((method, "float32") for method in ABLE), ("blip", "bf16")])
def test_every_method_goes_on_to_the_same_bytes(method, precision, tmp_path):
    config = make_config("control", method, changes=[*SMALL, f"training.precision={precision}"])
    run(config, tmp_path / "whole")
    for attempt in range(20):
        try:
            run(config, tmp_path / "parts", [cut_after(3, "update")], checkpoint_seconds=0)
            break
        except Cut:
            assert attempt < 19
    folders = [RunFolder(tmp_path / side / config.name) for side in ("whole", "parts")]
    whole, parts = ((folder.path / "score.csv").read_bytes() for folder in folders)
    assert whole == parts
    assert len(folders[0].read_matrix()[-1]) == 2
    last = [(folder.path / "weights" / "task2.safetensors").read_bytes() for folder in folders]
    assert last[0] == last[1]
    events = folders[1].events()
    assert [event.n for event in events] == list(range(len(events)))
    assert sum(event.name == "update" for event in events) == 2 * 6
    assert [event.steps for event in events if event.name == "evaluation"] == [0, 192] * 2
    assert attempt >= 2


def test_before_its_first_step_a_task_is_played_beside_what_was_just_measured(tmp_path):
    config = make_config("control", "ft", changes=SMALL)
    result = run(config, tmp_path)
    folder = RunFolder(tmp_path / config.name)
    evaluations = [event for event in folder.events() if event.name == "evaluation"]
    before_second = next(event.scores for event in evaluations if (event.task, event.steps) == (1, 0))
    matrix = folder.read_matrix()
    assert before_second[:1] == matrix[0]
    every = [event.scores for event in evaluations] + matrix
    assert result.best == [max(scores[k] for scores in every if len(scores) > k) for k in range(2)]


def test_no_evaluations_are_none_until_a_task_has_ended(tmp_path):
    config = make_config(
        "control", "ft", changes=[c for c in SMALL if "evaluations" not in c] + ["training.evaluations=0"]
    )
    result = run(config, tmp_path)
    kinds = {event.name for event in RunFolder(tmp_path / config.name).events()}
    assert "evaluation" not in kinds
    assert len(result.best) == 2


def test_short_options_of_games_are_those_of_run_and_sweep(type_in):
    for command in (Run("atari6", steps="200k", net="small"), Sweep("atari6", steps="200k", net="small")):
        assert command.changes() == ["training.steps=200000", "network.kind=small"]
    assert Sweep("control", envs=["CartPole-v1"]).changes() == ['stream.envs=["CartPole-v1"]']
    with pytest.raises(SystemExit, match="envs"):
        type_in("run", "control", "--envs")


def test_seconds_between_checkpoints_are_a_number(type_in):
    for text in ("nan", "-1"):
        with pytest.raises(SystemExit, match="checkpoint_seconds must be 0 or more"):
            type_in("run", "control", "--checkpoint-seconds", text)


def test_tensorboard_gets_a_figure_for_each_task_and_no_single_games(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from bitfreeze.lab.runs.tensorboard import TensorBoard

    config = make_config("control", "ft", changes=SMALL)
    run(config, tmp_path, [TensorBoard(tmp_path / "board")])
    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"scalars": 0})
    board.Reload()
    lists = {tag for tag in board.Tags()["scalars"] if "/task " in tag}
    assert lists == {f"{word}/task {task}" for word in ("score", "scores") for task in (1, 2)}
    events = RunFolder(tmp_path / config.name).events()
    for name, word in (("task", "score"), ("evaluation", "scores")):
        for task in (0, 1):
            written = [(point.step, point.value) for point in board.Scalars(f"{word}/task {task + 1}")]
            told = [(e.n, getattr(e, word)[task]) for e in events if e.name == name and len(getattr(e, word)) > task]
            assert [step for step, _ in written] == [n for n, _ in told]
            assert [value for _, value in written] == pytest.approx([value for _, value in told])


def test_killed_at_random_moments(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    name = make_config("control", "blip", changes=SMALL).name
    command = ["run", "control", "--method", "blip", "--threads", "1", "--checkpoint-seconds", "0", "--set", *SMALL]
    complete(whole, *command)
    kill_at_random(killed, name, command, times=3, whole=RunFolder(whole / name))
    complete(killed, *command)
    assert (killed / name / "score.csv").read_bytes() == (whole / name / "score.csv").read_bytes()


def test_atari_goes_on_from_new_games_and_says_so(tmp_path):
    pytest.importorskip("ale_py")
    changes = [
        'stream.envs=["ALE/Boxing-v5"]', "network.kind=small", "training.steps=48", "training.copies=2",
        "training.rollout=8", "training.minibatches=2", "training.epochs=1", "training.evaluations=1",
        "training.games=1", "training.final_games=2", "training.states=20", "training.game_steps=4",
    ]  # fmt: skip
    config = make_config("atari6", "blip", changes=changes)
    with pytest.raises(Cut):
        run(config, tmp_path, [cut_after(1, "update")], checkpoint_seconds=0)
    result = run(config, tmp_path)
    events = RunFolder(tmp_path / config.name).events()
    (note,) = [event for event in events if event.name == "continued"]
    assert note.update == 1
    assert "begin anew" in note.note
    assert [event.update for event in events if event.name == "update"] == [1, 2, 3]
    assert result.final == RunFolder(tmp_path / config.name).read_matrix()[-1]
    assert 0 < events[-2].report["capacity"] < 1


def test_methods_without_a_part_in_reinforcement_learning_are_refused():
    assert set(ABLE) == {"ft", "ft_fix", "ewc", "blip", "single"}
    with pytest.raises(
        ValueError, match="hat has no part in reinforcement learning, which atari6 needs: use one of blip"
    ):
        make_config("atari6", "hat")
    with pytest.raises(ValueError, match=r"network.kind must be paper, nature, small or policy_mlp, got 'mlp'"):
        make_config("atari6", "ft", changes=["network.kind=mlp"])
    with pytest.raises(ValueError, match=r"network.kind must be mlp, alexnet, .* got 'nature'"):
        make_config("digits5", "ft", changes=["network.kind=nature"])


def test_options_of_sgd_are_refused_and_nothing_is_left(tmp_path):
    config = make_config("control", "ft", changes=[*SMALL, "method.momentum=0.9"])
    with pytest.raises(ValueError, match=r"PPO has training\.max_grad_norm"):
        run(config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_atari_has_the_released_settings():
    config = make_config("atari6", "blip", "released")
    settings = config.settings
    assert (settings.updates, settings.batch, settings.lr, settings.clip) == (5000, 2000, 2.5e-4, 0.1)
    assert config.method_options["prior"] == pytest.approx(5e-18 * 62**2, rel=1e-2)
    ewc = make_config("atari6", "ewc").method_options
    assert ewc["strength"] == pytest.approx(5000 / 62, rel=1e-2)
    assert (ewc["accumulate"], ewc["labels"]) == ("sum", "sample")


@pytest.mark.parametrize(("text", "count"), [("10M", 10_000_000), ("200k", 200_000), ("1.5k", 1500), ("77", 77)])
def test_counts_may_have_units(text, count):
    assert parse_count(text) == count
    with pytest.raises(ValueError, match="steps must be a number such as 200k"):
        parse_count(f"{text} steps")


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e400", "infk", ""])
def test_a_count_is_finite(text):
    with pytest.raises(ValueError, match="steps must be a number such as 200k, 10M or 50000, got"):
        parse_count(text)


# figures


def test_a_game_is_learned_if_it_is_played_better_than_at_random_by_two_standard_errors():
    at_random = [0.0, 2.0] * 10
    error = (2 * stdev(at_random) ** 2 / 20) ** 0.5
    assert metrics.is_above([score + 2.01 * error for score in at_random], at_random)
    assert not metrics.is_above([score + 1.99 * error for score in at_random], at_random)
    assert metrics.is_above([500.0] * 20, [20.0] * 20)
    assert not metrics.is_above([500.0], [20.0])


def test_the_share_kept_counts_learned_games_without_the_last():
    scores = [[10.0], [6.0, 30.0], [4.0, 20.0, 9.0]]
    at_random = [2.0, 10.0, 0.0]
    assert metrics.share_kept(scores, at_random, [True, True, True]) == pytest.approx((2 / 8 + 10 / 20) / 2)
    assert metrics.share_kept(scores, at_random, [True, False, True]) == pytest.approx(2 / 8)
    assert metrics.share_kept(scores, at_random, [False, False, True]) is None


def finish(root, method, seed, final, best, kept=0.5, games=("A", "B")):
    config = make_config("control", method, "", seed, [f"stream.envs={json.dumps(games)}"])
    folder = RunFolder(root / config.name)
    folder.path.mkdir(parents=True)
    folder.write_config(config)
    folder.event(Started(tasks=list(games), learned=0, updates_cap=3))
    folder.event(
        TaskPlayed(
            task=1, score=final, games=[], learned=True, evaluation_seconds=1.0, extra_bytes=1_000_000, buffer_bytes=0
        )
    )
    folder.event(
        ScoreResult(
            final=final, after_learning=[8.0, 9.0], random=[1.0, -5.0], best=best, learned=[True, False], kept=kept,
            evaluation_seconds=3.0, model_bytes=10, extra_bytes=1_000_000, buffer_bytes=0, seconds=60.0,
        )
    )  # fmt: skip
    return folder


def test_normalised_reward_is_from_random_play_to_the_best_of_the_compared_runs(tmp_path):
    finish(tmp_path, "ft", 0, [1.0, 15.0], [6.0, 15.0])
    finish(tmp_path, "blip", 0, [6.0, 5.0], [11.0, 10.0])
    finish(tmp_path, "blip", 1, [11.0, 10.0], [11.0, 12.0], kept=None)
    rows = finished_rows(tmp_path, "control")
    blip, ft = summarise(rows, "control")
    assert [row["reward"] for row in ft.rows] == [pytest.approx(0 + 1)]
    rewards = [5 / 10 + 10 / 20, 1 + 15 / 20]
    assert [row["reward"] for row in blip.rows] == [pytest.approx(value) for value in rewards]
    (alone,) = summarise([row for row in rows if row["method"] == "ft"], "control")
    assert [row["reward"] for row in alone.rows] == [pytest.approx(0 + 1)]
    text = to_markdown(summarise(rows, "control", "ft"))
    assert f"{mean(rewards):.2f} ± {stdev(rewards):.2f} | 50% | 1.0 ± 0.0 | 8.5 ± 3.5 | 7.5 ± 3.5" in text
    assert "Protocol: PPO with Adam lr 0.001 falling to 0" in to_page(rows, "control")
    table = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [row["score B"] for row in table] == ["5.0", "10.0", "15.0"]
    assert table[0]["random A"] == "1.0"
    assert table[0]["command"].startswith("bitfreeze run control --method blip")
    assert from_csv(to_csv(rows)) == rows


def test_runs_of_other_games_stand_in_the_same_table(tmp_path):
    finish(tmp_path, "ft", 0, [1.0, 15.0], [6.0, 15.0])
    finish(tmp_path, "blip", 0, [3.0, 5.0], [11.0, 10.0], games=("A", "C"))
    rows = finished_rows(tmp_path, "control")
    assert to_page(from_csv(to_csv(rows)), "control") == to_page(rows, "control")
    blip, _ = summarise(from_csv(to_csv(rows)), "control")
    assert blip.rows[0]["reward"] == pytest.approx(2 / 10 + 10 / 15)
    columns = list(blip.cells())
    assert columns[columns.index("games learned") + 1 : columns.index("capacity used")] == ["A", "C", "B"]


@pytest.mark.parametrize("damage", ["a result without its best scores", "no names of games"])
def test_a_damaged_run_is_named_and_left_out_of_the_table(tmp_path, damage):
    finish(tmp_path, "ft", 0, [1.0, 15.0], [6.0, 15.0])
    alone = finished_rows(tmp_path, "control")
    file = finish(tmp_path, "ft", 1, [9.0, 19.0], [16.0, 25.0]).path / "events.jsonl"
    words = {"a result without its best scores": '"best"', "no names of games": '"tasks"'}
    file.write_text(file.read_text().replace(words[damage], '"else"'))
    with pytest.warns(UserWarning, match=r"seed1/events.jsonl is damaged \(line . is not what was written\).*left out"):
        assert finished_rows(tmp_path, "control") == alone


# commands


def test_the_agent_of_a_time_plays_in_the_world_of_its_run(tmp_path):
    config = make_config("control", "ft", changes=SMALL)
    run(config, tmp_path)
    folder = RunFolder(tmp_path / config.name)
    weights = [folder.read_tensors("weights", task) for task in (0, 1)]
    actor = next(name for name in weights[0] if name.startswith("heads.0") and name.endswith("bias"))
    for task, kept in enumerate(weights):  # the agent goes one way after the first, the other way after the second
        kept[actor][:] = torch.tensor([100.0, -100.0] if task == 0 else [-100.0, 100.0])
        folder.write_tensors("weights", task, kept)
    folder.events = list  # as in a run of an earlier version, which does not tell what it wrote

    def first_frames(after):
        play_game(folder, 1, after, tmp_path / "game.gif")
        with Image.open(tmp_path / "game.gif") as picture:
            return picture.n_frames, [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(picture)][:5]

    (count, left), (_, right) = first_frames(1), first_frames(2)
    assert np.array_equal(left[0], right[0])
    assert not np.array_equal(left[4], right[4])
    file = folder.path / "config.toml"
    file.write_text(file.read_text().replace("game_steps = 30", "game_steps = 3"))
    assert first_frames(1)[0] == 4 < count
    file.write_text(file.read_text().replace("hidden = [16, 16]", "hidden = [8, 8]"))
    with pytest.raises(RunDamaged, match="those of another network"):
        first_frames(1)
    with pytest.raises(ValueError, match="--seed must be 0 or more, got -1"):
        play_game(folder, 1, 1, tmp_path / "game.gif", seed=-1)


def test_figures_of_accuracies_say_that_games_have_others(tmp_path):
    finish(tmp_path, "ft", 0, [1.0, 15.0], [6.0, 15.0])
    runs = find_runs(tmp_path, [])
    for name in ("matrix", "sequence", "tradeoff", "budget"):
        with pytest.raises(ValueError, match="these are runs of games: draw 'scores' or 'reward'"):
            draw(name, runs)


def test_commands_run_show_and_play(type_in, tmp_path):
    from PIL import Image

    few = [change for change in SMALL if not change.startswith(("stream", "training.steps"))]
    out = type_in("run", "control", "--method", "ft", "--steps", "0.128k", "--envs", "CartPole-v1", "--set", *few)
    assert "| reward |" in out
    assert "CartPole-v1" in out
    (folder,) = (tmp_path / "control").glob("ft*/seed0")
    assert "score on each task, after each task" in type_in("show", str(folder))
    told = type_in("play", str(folder), "--task", "1", "--after", "1")
    with Image.open(next((folder / "play").glob("*.gif"))) as picture:
        frames = picture.n_frames
    score = float(told.split()[1].rstrip(":"))
    assert frames == score + 1  # a point a step, the last of them too
    with pytest.raises(SystemExit, match="--task must be from 1 to 1, the tasks of the run, got 2"):
        type_in("play", str(folder), "--task", "2", "--after", "1")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert next(event for event in events if event["event"] == "random")["scores"]


def moving_square(count: int = 12) -> list[np.ndarray]:
    frames = np.zeros((count, 32, 48, 3), np.uint8)
    for k in range(count):
        frames[k, 8:24, 2 * k : 2 * k + 16] = 255
    return list(frames)


def test_mp4_is_written_by_ffmpeg(tmp_path):
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    write_pictures(moving_square(), tmp_path / "square.mp4")
    found = subprocess.run(
        ["ffmpeg", "-loglevel", "error", "-i", tmp_path / "square.mp4", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    seen = np.frombuffer(found, np.uint8).reshape(12, 32, 48, 3).astype(int)
    assert np.abs(seen - np.array(moving_square())).mean() < 10  # it is compressed


def test_pictures_that_cannot_be_written_say_what_can(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"ffmpeg, .* is not installed: give a name that ends in \.gif"):
        write_pictures(moving_square(), tmp_path / "square.mp4")
    with pytest.raises(ValueError, match=r"square\.avi is neither \.gif nor \.mp4"):
        write_pictures(moving_square(), tmp_path / "square.avi")


def test_settings_of_games_are_listed_with_what_they_mean(type_in):
    assert "--set training.gae_lambda=0.95  (lambda of generalised" in type_in("list", "atari6")


def test_a_run_cannot_name_a_module_that_is_imported(tmp_path, monkeypatch):
    """A run folder may come from anybody: `module:Env-v1` would run code of that module."""
    config = make_config("control", "ft", changes=SMALL)
    run(config, tmp_path)
    folder = RunFolder(tmp_path / config.name)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    saved = folder.read_config()
    saved["stream_options"]["envs"] = ["evil:CartPole-v1?gravity=1", "CartPole-v1"]
    monkeypatch.setattr(folder, "read_config", lambda: saved)
    with pytest.raises(ValueError, match="would run code of that module: add --envs evil:CartPole-v1 if you trust"):
        play_game(folder, 1, 1, tmp_path / "game.gif")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(
        ValueError, match=r"those of another|cannot make"
    ):  # allowed, so Gymnasium goes as far as it can
        play_game(folder, 1, 1, tmp_path / "game.gif", allowed=["evil:CartPole-v1"])
    assert (tmp_path / "ran").exists()
