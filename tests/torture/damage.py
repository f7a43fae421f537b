"""Damage to the files of a run: flips of single bytes, and mutations of real files for every reader."""

import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from bitfreeze.lab.data.archives import unpack
from bitfreeze.lab.data.idx import read_idx
from bitfreeze.lab.data.limits import Contents
from bitfreeze.lab.data.pickles import read_plain_pickle
from bitfreeze.lab.results.rows import finished_rows, from_csv, to_csv
from bitfreeze.lab.results.stored import find_run
from bitfreeze.lab.runs.checkpoint import load_checkpoint
from bitfreeze.lab.runs.config import Config
from bitfreeze.lab.runs.folder import RunFolder
from torture.attacks import WRONG, Outcomes, Setting, attack
from torture.small_runs import Truths, do, in_child, results, small


def seen(config: Config, root: Path) -> tuple[Any, list[str]]:
    """What the views show of a run, and what they say about it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = find_run(root, config.name)
            bits = run.bits
            shown = (
                []
                if bits is None
                else [bits.bits(name, task).tobytes() for name in bits.names for task in range(bits.tasks)]
            )
            folder = RunFolder(root / config.name)  # of games, `play` takes weights
            weights = [folder.read_tensors("weights", k) for k in range(len(list(folder.path.glob("weights/task*"))))]
            told = [[(name, each[name].numpy().tobytes()) for name in sorted(each)] for each in weights]
            view = repr((finished_rows(root, config.stream), run.matrix, run.config, shown, told))
        except (OSError, ValueError) as error:
            return None, [str(error)]
    return view, [str(each.message) for each in said]


EVERYTHING = 1_000_000  # rounds, more than these runs have bytes


@attack("flips", short=80, long=EVERYTHING)
def flip_run_files(setting: Setting, found: Outcomes) -> None:
    """a byte changed in a file of a finished run (settings, events, matrix, bits), looked at by table and show"""
    truths, root, rng = Truths(setting.folder), setting.folder / "flipped", setting.rng
    configs = [small("blip"), strict(), small("ft", "control")]
    places = [truths.copy(config, root / str(number)) for number, config in enumerate(configs)]
    files = {f: number for number, place in enumerate(places) for f in files_of(place) if "checkpoint" not in f.parts}
    views = [seen(config, root / str(number)) for number, config in enumerate(configs)]
    assert all(view is not None and not complaints for view, complaints in views)
    for file, at in chosen_bytes(list(files), setting, found):
        number = files[file]
        with flipped(file, at, rng):
            try:
                view, said = seen(configs[number], root / str(number))
            except Exception as error:
                found.note(f"{WRONG} kind of error", f"{file.name}:{at} {error!r}")
                continue
        if said and any(file.name in sentence or str(places[number]) in sentence for sentence in said):
            found.note("named")
        else:
            known = view == views[number][0]
            found.note("without effect" if known else f"{WRONG}, believed", f"{file.name} byte {at}: {said}")


def files_of(place: Path) -> list[Path]:
    return [file for file in sorted(place.rglob("*")) if file.is_file() and file.stat().st_size]


@contextmanager
def flipped(file: Path, at: int, rng: random.Random) -> Iterator[None]:
    """A file with one bit changed in one of its bytes."""
    data = file.read_bytes()
    file.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
    try:
        yield
    finally:
        file.write_bytes(data)


def strict() -> Config:
    from bitfreeze.lab.runs.config import make_config

    changes = ["training.epochs=2", "network.hidden=[8]", "method.rules=strict"]
    return make_config("digits5", "blip", changes=changes)


def chosen_bytes(files: list[Path], setting: Setting, found: Outcomes) -> Iterator[tuple[Path, int]]:
    """Places in these files: every byte if there are rounds enough, else as many from each file."""
    sizes = {file: file.stat().st_size for file in files}
    found.most = sum(sizes.values())
    if found.most <= setting.rounds:
        places = iter([(file, at) for file, size in sizes.items() for at in range(size)])
    else:
        drawn = (setting.rng.choice(files) for _ in range(setting.rounds))
        places = iter([(file, setting.rng.randrange(sizes[file])) for file in drawn])
    return takewhile(lambda _: not setting.is_over, places)


@attack("checkpoint-flips", short=30, long=EVERYTHING)
def flip_checkpoints(setting: Setting, found: Outcomes) -> None:
    """a byte changed in a file of a checkpoint, which is then read: of the newest, and of the last one that is left"""
    truths, configs = Truths(setting.folder), [small("blip"), strict(), small("ft", "control")]
    files: dict[Path, int | None] = {}  # with the number of the checkpoint that must be read in its place
    for number, config in enumerate(configs):
        place = truths.copy(config, setting.folder / f"newest{number}") / "checkpoint"
        before, newest = sorted(place.iterdir())
        files |= dict.fromkeys(files_of(newest), int(before.name))
        alone = truths.copy(config, setting.folder / f"alone{number}") / "checkpoint"
        shutil.rmtree(alone / newest.name)
        files |= dict.fromkeys(files_of(alone / before.name), None)
    for file, at in chosen_bytes(list(files), setting, found):
        with flipped(file, at, setting.rng), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            read = load_checkpoint(file.parent.parent)
        named = any(str(file.parent) in str(each.message) for each in said)
        right = (None if read is None else read.number) == files[file]
        found.note("named" if named and right else f"{WRONG}, believed", f"{file} byte {at}")


@attack("lost-tails", short=2, long=100)
def lose_events(setting: Setting, found: Outcomes) -> None:
    """the tail of events.jsonl lost, or a byte of it changed, in a run that is then resumed"""
    truths, rng = Truths(setting.folder), setting.rng
    configs = [small("blip"), small("ft"), strict()]
    for number in setting.turns():
        config, root = configs[number % len(configs)], setting.folder / "lost"
        place = truths.copy(config, root)
        file = place / "events.jsonl"
        data = file.read_bytes()
        if rng.random() < 0.5:
            file.write_bytes(data[: rng.randrange(len(data))])
        else:
            at = rng.randrange(len(data) - 2)
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        code = in_child(lambda c=config, r=root: do(c, r), setting.folder / "said")  # type: ignore[misc]
        if code:
            found.note(f"{WRONG}, cannot go on", (setting.folder / "said").read_text()[-300:])
            continue
        now, truth = results(config, root), truths.of(config)
        found.note("restored" if now == truth else f"{WRONG} table", [key for key in truth if truth[key] != now[key]])


# readers


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are flipped, cut, doubled, moved, or replaced by odd ones, a few times."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        if not changed:
            break
        at, length = rng.randrange(len(changed)), rng.randint(1, 1 + len(changed) // 8)
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = changed[at : at + length]
        elif kind == 3:
            changed[at : at + 4] = rng.choice(
                [b"\xff" * 4, bytes(4), b"NaN,", b"1e999", b'{"a":', b"[[[[", b"\x00\x00\x00\x80"]
            )
        else:
            changed[at : at + length] = rng.randbytes(length)
    return bytes(changed)


@attack("readers", short=100, long=20_000)
def fuzz_readers(setting: Setting, found: Outcomes) -> None:
    """mutations of real files given to the readers of runs, checkpoints, CSV, IDX, pickles and archives"""
    truths, rng, folder = Truths(setting.folder), setting.rng, setting.folder
    config = strict()
    place = truths.copy(config, folder / "fuzzed")
    cases: list[tuple[Path, Callable[[Path], Any]]] = [
        (place / name, lambda _: seen(config, folder / "fuzzed"))
        for name in ("config.toml", "events.jsonl", "accuracy.csv", "bits/task1.safetensors")
    ]
    newest = sorted((place / "checkpoint").iterdir())[-1]
    cases += [(file, lambda _: load_checkpoint(place / "checkpoint")) for file in sorted(newest.iterdir())]
    table = folder / "table.csv"
    table.write_text(to_csv(finished_rows(folder / "fuzzed", config.stream)))
    cases.append((table, lambda file: from_csv(file.read_text())))
    cases += made_files(folder)
    for _ in setting.turns():
        file, read = rng.choice(cases)
        data = file.read_bytes()
        file.write_bytes(mutated(data, rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(file)
        except (OSError, ValueError):
            found.note("refused in a sentence")
        except Exception as error:
            kept = folder / f"kept-{len(found.wrong)}"
            shutil.copyfile(file, kept)
            found.note(f"{WRONG} kind of error", f"{file.name}: {error!r}")
        else:
            found.note("read, or named and left out")
        file.write_bytes(data)


def made_files(folder: Path) -> list[tuple[Path, Callable[[Path], Any]]]:
    import gzip
    import io
    import pickle
    import tarfile
    import zipfile

    idx = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 4, 5)) + bytes(range(60))
    batch = pickle.dumps({b"data": np.arange(48, dtype=np.uint8).reshape(4, 12), b"labels": [1, 2, 3, 4]}, protocol=2)
    archive, tar = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("a/b", bytes(1000))
    with tarfile.open(fileobj=tar, mode="w:gz") as packed:
        info = tarfile.TarInfo("a/b")
        info.size = 1000
        packed.addfile(info, io.BytesIO(bytes(1000)))

    def emptied(file: Path) -> None:
        shutil.rmtree(folder / "unpacked", ignore_errors=True)
        (folder / "unpacked").mkdir()
        unpack(file, folder / "unpacked", Contents(bytes=1000, members=2))

    files = {
        "plain.idx": (idx, lambda file: read_idx(file, 1000)),
        "packed.idx": (gzip.compress(idx), lambda file: read_idx(file, 1000)),
        "batch.pickle": (batch, read_plain_pickle),
        "one.zip": (archive.getvalue(), emptied),
        "one.tar.gz": (tar.getvalue(), emptied),
    }
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    return [(folder / name, read) for name, (_, read) in files.items()]
