"""Watching: a run that is going on is seen as it is, by this machine only, and nothing is written."""

import http.client
import json
import os
import threading
import time
from pathlib import Path

import pytest

from bitfreeze.lab.results.live import going_on, live
from bitfreeze.lab.results.server import report_server
from bitfreeze.lab.results.stored import StoredRun
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.events import EpochDone
from bitfreeze.lab.runs.start import run
from support.browser import CHROMIUM, Browser
from support.made_runs import make_run

pytest.importorskip("matplotlib")
SMALL = ["training.epochs=3", "network.hidden=[8]"]


@pytest.fixture
def serving(tmp_path):
    with report_server(tmp_path / "runs", []) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path="/live.json", host=None, method="GET"):
    name, port = server.server_address
    connection = http.client.HTTPConnection(name, port, timeout=120)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def files(folder: Path):
    return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in folder.rglob("*")}


def test_a_live_run_is_followed_from_its_first_epoch_to_its_end(serving, tmp_path):
    """The run itself asks at each of its events, so that nothing depends on who is faster."""
    seen = []

    def look(event):
        before = files(tmp_path / "runs")
        answer = json.loads(ask(serving)[1])
        assert files(tmp_path / "runs") == before  # it reads only
        seen.append((event.name, answer))

    run(make_config("digits5", "ft", changes=SMALL), tmp_path / "runs", [look])
    epochs = [answer["runs"][0] for kind, answer in seen if kind == "epoch"]
    assert [shown["at"] for shown in epochs[:4]] == [
        "task 1 of 5 (0 or 1), epoch 1",
        "task 1 of 5 (0 or 1), epoch 2",
        "task 1 of 5 (0 or 1), epoch 3",
        "task 2 of 5 (2 or 3), epoch 1",
    ]
    assert [round(15 * shown["progress"]) for shown in epochs] == list(range(1, 16))
    assert all(shown["state"] == "going on" and shown["left"].startswith("about ") for shown in epochs)
    assert [len(shown["valid_loss"]) for shown in epochs] == [1, 2, 3] * 5
    assert seen[-1][0] == "finished"
    assert seen[-1][1]["runs"] == []
    states = [answer["page"] for _, answer in seen]
    assert len(set(states)) == 7  # begun, five tasks, finished
    status, page = ask(serving, "/")
    assert status == 200
    assert b"No run is finished yet" not in page
    assert json.dumps(states[-1])[1:-1].encode() in page


def test_it_answers_under_its_own_names_and_only_what_it_serves(serving, tmp_path):
    make_run(tmp_path / "runs", "ft", finished=False)
    port = serving.server_address[1]
    assert serving.server_address[0] == "127.0.0.1"
    assert serving.loopback
    assert ask(serving, host=f"localhost:{port}")[0] == 200
    assert ask(serving, host=f"[::1]:{port}")[0] == 200
    assert ask(serving, host="rebound.example")[0] == 403
    for path in ("/../config.toml", "/etc/passwd", "/digits5/ft/seed0/config.toml"):
        assert ask(serving, path)[0] == 404
    assert ask(serving, method="POST")[0] == 501
    with report_server(tmp_path, [], "0.0.0.0") as opened:
        assert not opened.loopback


def test_a_place_that_cannot_be_served_at_is_a_sentence(serving, tmp_path):
    taken = serving.server_address[1]
    for host, port, sentence in (
        ("127.0.0.1", 99999, "a port is a number from 0 to 65535, got 99999"),
        ("127.0.0.1", -1, "a port is a number"),
        ("127.0.0.1", taken, rf"cannot serve at 127.0.0.1:{taken} \(Address already in use\): choose another --port"),
    ):
        with pytest.raises(ValueError, match=sentence), report_server(tmp_path, [], host, port):
            pass


def test_bits_that_cannot_be_read_are_named_and_left_out(serving, tmp_path):
    run = make_run(tmp_path / "runs", "blip")
    (run.folder.path / "bits" / "task2.safetensors").write_bytes(b"not one")
    with pytest.warns(UserWarning, match=r"task2.safetensors cannot be read .*left out"):
        status, page = ask(serving, "/")
    assert status == 200
    assert b'id="explorer"' not in page
    assert ask(serving)[0] == 200


def test_a_folder_without_runs_is_watched_until_they_come(serving, tmp_path):
    assert json.loads(ask(serving)[1])["runs"] == []
    make_run(tmp_path / "runs", "ft", finished=False)
    assert len(json.loads(ask(serving)[1])["runs"]) == 1


def test_time_left_is_what_the_learned_tasks_took(tmp_path):
    """Two epochs a task at ten seconds each; one of five tasks is learned, and half of the second."""
    tasks = [f"t{k}" for k in range(5)]
    stored = make_run(tmp_path, "ft", accuracies=[[90.0]], tasks=tasks, finished=False)
    stored.folder.log.written = len(stored.folder.events())
    stored.folder.event(EpochDone(task=1, epoch=1, lr=0.1, train_loss=1.0, valid_loss=1.0, seconds=30.0))
    (shown,) = going_on([StoredRun(stored.folder, stored.config)])
    assert shown["left"] == "about 70 s left"  # 7 epochs
    assert shown["progress"] == 1.5 / 5
    assert shown["accuracy"] == [90.0]


def test_a_run_that_fell_silent_is_not_said_to_go_on(tmp_path):
    stored = make_run(tmp_path, "ft", finished=False)
    hour_ago = time.time() - 3600
    os.utime(stored.folder.path / "events.jsonl", (hour_ago, hour_ago))
    shown = live(stored)
    assert shown["state"] == "nothing new for 60 min"
    assert shown["left"] == ""
    assert going_on([make_run(tmp_path, "ft", seed=1)]) == []


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to open the page with")
def test_the_page_follows_in_a_browser(serving, tmp_path):
    with Browser(tmp_path / "profile") as page:
        page.open(serving.address)
        page.wait_for("document.querySelector('#live h2')?.textContent === 'No run is going on'")
        going = make_run(tmp_path / "runs", "ft", tasks=("<b>one", "two", "three"), finished=False)
        going.folder.log.written = len(going.folder.events())
        going.folder.event(EpochDone(task=2, epoch=1, lr=0.1, train_loss=1.0, valid_loss=1.0, seconds=50.0))
        going.folder.event(EpochDone(task=2, epoch=2, lr=0.1, train_loss=0.5, valid_loss=0.7, seconds=60.0))
        page.wait_for("document.querySelector('#live .run h3')?.textContent === 'digits5 ft seed 0'")
        page.wait_for("document.querySelector('#stream-digits5') !== null")  # the page itself has come anew
        page.wait_for("document.querySelectorAll('#live polyline').length === 2")
        assert "task 3 of 3 (three), epoch 2" in page.value("document.querySelector('#live .quiet').textContent")
        assert page.complaints == []
