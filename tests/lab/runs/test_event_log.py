"""The file of events: links between lines, damage that is named, and events that come back from a checkpoint."""

import json
from pathlib import Path

import pytest

from bitfreeze.lab.runs.errors import RunDamaged, RunRefused
from bitfreeze.lab.runs.event_log import EventLog, read_lines
from bitfreeze.lab.runs.events import AccuracyResult, EpochDone, Started

STARTED = Started(tasks=["one"], learned=0)
EPOCH = EpochDone(task=0, epoch=1, lr=0.1, train_loss=1.0, valid_loss=2.0)
RESULT = AccuracyResult(
    acc=50.0, bwt=0.0, bwt_T=0.0, forgetting=0.0, learning_acc=50.0, model_bytes=1, extra_bytes=2, buffer_bytes=3,
    seconds=4.0,
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    made = EventLog(tmp_path / "events.jsonl")
    for event in (STARTED, EPOCH, EPOCH, RESULT):
        made.append(event)
    return made


def read_or_sentence(log: EventLog) -> object:
    try:
        return log.read()
    except RunDamaged as error:
        return "named" if "events.jsonl is damaged (line " in str(error) else str(error)


def test_every_change_of_a_byte_is_named_or_changes_nothing(log: EventLog) -> None:
    data, events = log.file.read_bytes(), log.read()
    for at in range(len(data)):
        for bit in (1, 32):
            log.file.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            assert read_or_sentence(log) in (events, "named"), at


def test_a_line_that_is_missing_is_named(log: EventLog) -> None:
    lines = log.file.read_bytes().splitlines(keepends=True)
    for gone in range(len(lines) - 1):
        log.file.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(RunDamaged, match=rf"the event with number {gone} is missing|line {gone + 1}"):
            log.read()


def test_lost_events_come_back_from_a_checkpoint(log: EventLog) -> None:
    saved, events = log.saved(), log.read()
    log.file.write_bytes(saved[:100])
    again = EventLog(log.file)
    assert "was damaged (3 of 4 events were lost): it is restored" in again.go_on_from(saved, 4)
    assert again.read() == events
    assert again.written == 4
    assert EventLog(log.file).go_on_from(saved, 4) == ""


def test_a_checkpoint_of_an_earlier_version_tells_how_many_were_lost(log: EventLog) -> None:
    old = [json.dumps({k: v for k, v in json.loads(line).items() if k != "link"}) for line in log.saved().splitlines()]
    log.file.write_text("\n".join(old[:2]) + "\n")
    again = EventLog(log.file)
    assert "has lost 2 of 4 events" in again.go_on_from(None, 4)
    again.append(EPOCH)
    assert [event.n for event in again.read()] == [0, 1, 2]


def test_another_process_that_writes_is_named(log: EventLog) -> None:
    with log.file.open("ab") as other:
        other.write(b"{}\n")
    with pytest.raises(RunRefused, match="another process is writing to"):
        log.append(EPOCH)


@pytest.mark.parametrize("wholly", [True, False])
def test_a_folder_that_was_deleted_is_named(log: EventLog, wholly: bool) -> None:
    log.file.unlink()
    if wholly:  # else it is being deleted
        log.file.parent.rmdir()
    with pytest.raises(RunRefused, match="was deleted while the run went on"):
        log.append(EPOCH)


def test_a_cut_off_line_is_no_damage(log: EventLog) -> None:
    saved = log.saved()
    for end in range(len(saved) - 40, len(saved) - 1):
        assert read_lines(saved[:end]).faults == []
