"""What is shown while a run goes on."""

import io

import pytest
from rich.console import Console

from bitfreeze.lab.cli.run_display import Lines, Live, show_run
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.start import run

CONFIG = make_config("digits5", "ft", changes=["training.epochs=2", "network.hidden=[16]"])


def test_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
    progress = show_run()
    assert isinstance(progress, Lines)
    progress.every = 0
    with progress:
        run(CONFIG, tmp_path, [progress])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 * (2 + 1)
    assert lines[0].startswith("task 1 (0 or 1)  epoch 1  loss ")
    assert lines[2].startswith("task 1 (0 or 1)  accuracy ")
    assert len(lines[-1].split("accuracy ")[1].split()) == 5


def test_a_live_display_on_a_terminal(tmp_path):
    screen = io.StringIO()
    with Live(Console(file=screen, force_terminal=True, width=140)) as progress:
        run(CONFIG, tmp_path, [progress])
    shown = screen.getvalue()
    assert "5/5" in shown
    assert "accuracy" in shown
    assert "8 or 9" in shown


def test_tensorboard_gets_every_scalar_once_also_when_a_run_continues(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from bitfreeze.lab.runs.tensorboard import TensorBoard

    class Cut(Exception):
        pass

    def cut(event):
        if event.name == "epoch" and event.task == 2:
            raise Cut

    board = tmp_path / "board"
    with pytest.raises(Cut):
        run(CONFIG, tmp_path, [TensorBoard(board), cut], checkpoint_seconds=0)
    result = run(CONFIG, tmp_path, [TensorBoard(board)])
    found = EventAccumulator(str(board), size_guidance={"scalars": 0})
    found.Reload()
    assert len(found.Scalars("epoch/valid_loss")) == 10
    assert len(found.Scalars("accuracy/task 1")) == 5
    (last,) = found.Scalars("finished/acc")
    assert last.value == pytest.approx(result.acc)
