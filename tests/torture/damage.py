"""Damage to the files of a run: flips of single bytes, and mutations of real files for every reader."""

import random
import shutil
import warnings
from collections.abc import Callable
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
            view = repr((finished_rows(root, config.stream), run.matrix, run.config, shown))
        except (OSError, ValueError) as error:
            return None, [str(error)]
    return view, [str(each.message) for each in said]


@attack("flips", short=80, long=20_000)
def flip_run_files(setting: Setting, found: Outcomes) -> None:
    """a byte changed in a file of a finished run (settings, events, matrix, bits), looked at by table and show"""
    truths, root, rng = Truths(setting.folder), setting.folder / "flipped", setting.rng
    configs = [small("blip"), strict()]
    places = [truths.copy(config, root / config.method_options["rules"]) for config in configs]
    for config, place in zip(configs, places, strict=True):
        below = root / config.method_options["rules"]
        expected, complaints = seen(config, below)
        assert expected is not None
        assert not complaints
        files = [
            f for f in sorted(place.rglob("*")) if f.is_file() and "checkpoint" not in f.parts and f.stat().st_size
        ]
        for file, at in chosen_bytes(files, setting.rounds // len(configs), rng):
            if setting.is_over:
                break
            data = file.read_bytes()
            file.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
            try:
                view, said = seen(config, below)
            except Exception as error:
                found.note(f"{WRONG} kind of error", f"{file.name}:{at} {error!r}")
            else:
                cause = f"{file.name} byte {at}: {said}"
                if said and any(file.name in sentence or str(place) in sentence for sentence in said):
                    found.note("named")
                else:
                    found.note("without effect" if view == expected else f"{WRONG}, believed", cause)
            file.write_bytes(data)


def strict() -> Config:
    from bitfreeze.lab.runs.config import make_config

    changes = ["training.epochs=2", "network.hidden=[8]", "method.rules=strict"]
    return make_config("digits5", "blip", changes=changes)


def chosen_bytes(files: list[Path], count: int, rng: random.Random) -> list[tuple[Path, int]]:
    """Places in these files: all of them if there are no more than ``count``, else as many from each file."""
    every = [(file, at) for file in files for at in range(file.stat().st_size)]
    if len(every) <= count:
        return every
    return [(file, rng.randrange(file.stat().st_size)) for file in (rng.choice(files) for _ in range(count))]


@attack("checkpoint-flips", short=30, long=3_000)
def flip_checkpoints(setting: Setting, found: Outcomes) -> None:
    """a byte changed in a file of the newest checkpoint, which is then read"""
    truths, rng, config = Truths(setting.folder), setting.rng, small("blip")
    place = truths.copy(config, setting.folder / "flipped") / "checkpoint"
    newest = sorted(place.iterdir())[-1]
    whole = load_checkpoint(place)
    assert whole is not None
    files = sorted(newest.iterdir())
    for file, at in chosen_bytes(files, setting.rounds, rng):
        if setting.is_over:
            break
        data = file.read_bytes()
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            read = load_checkpoint(place)
        named = any(newest.name in str(each.message) for each in said)
        found.note("named" if named and read is not None and read.number < whole.number else f"{WRONG}, believed", at)
        file.write_bytes(data)


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
