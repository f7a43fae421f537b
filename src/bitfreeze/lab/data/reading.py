"""Reading the files of a dataset, each compared with its digest."""

import warnings
from pathlib import Path

from .catalog import Arrays, DataFile, Dataset, array_digest
from .errors import DataCorrupt, DataMissing, DataUnverified


def read_dataset(dataset: Dataset, root: Path | str | None = None) -> list[Arrays]:
    """The arrays of each file of a dataset, in the order of its record."""
    folder = dataset.folder(root)
    found = [(file, file.find(folder)) for file in dataset.files]
    absent = [file.path for file, path in found if path is None]
    if absent:
        raise DataMissing(missing_sentence(dataset, folder, absent))
    try:
        arrays = [read_verified(file, path) for file, path in found if path is not None]
    except DataCorrupt as error:
        raise DataCorrupt(f"{error}: run `bitfreeze data get {dataset.name}` to replace it") from error
    warn_of_unverified(dataset, folder)
    return arrays


def read_verified(file: DataFile, path: Path) -> Arrays:
    """The arrays of a file, which may stand in another place than its own and under another name."""
    try:
        arrays = file.read(path)
    except IsADirectoryError:
        raise DataCorrupt(f"{path} is a folder where a file should be") from None
    if file.digest is not None and array_digest(arrays) != file.digest:
        found = array_digest(arrays)
        digests = f"its digest must be {file.digest[:16]}…, got {found[:16]}…"
        raise DataCorrupt(f"{path} decodes, but not to what {file.path} holds: {digests}")
    return arrays


def doubts(dataset: Dataset, folder: Path) -> list[str]:
    """Why nobody can tell whether a dataset is the published one: a reason for each file of which that is so."""
    found = [(file, file.find(folder)) for file in dataset.files]
    each = [file.doubt(path) for file, path in found if path is not None]
    return [doubt for doubt in each if doubt is not None]


def warn_of_unverified(dataset: Dataset, folder: Path) -> None:
    """Warn if nobody can tell whether a dataset is the published one."""
    found = doubts(dataset, folder)
    if found:
        warnings.warn(
            f"{dataset.name}: {', '.join(found)}, so the dataset is used unverified", DataUnverified, stacklevel=3
        )


def missing_sentence(dataset: Dataset, folder: Path, absent: list[str]) -> str:
    """A sentence that names the absent files and the ways to obtain them."""
    ways = [
        *([f"run `bitfreeze data get {dataset.name}`"] if dataset.downloads or dataset.packages else []),
        dataset.by_hand or f"put {'it' if len(absent) == 1 else 'them'} there by hand",
        f"set BITFREEZE_DATA to the folder that has {dataset.name}/ in it",
    ]
    return f"{dataset.name} needs {', '.join(absent)} in {folder}: {', or '.join(ways)}"
