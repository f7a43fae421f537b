"""Data made for these tests, of which no digest can be known."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitfreeze.data import cifar, datasets, mnist, notmnist, svhn

RECORDS = {
    cifar: ("CIFAR10", "CIFAR100"),
    mnist: ("MNIST", "FASHION_MNIST"),
    notmnist: ("NOTMNIST",),
    svhn: ("SVHN",),
}


@pytest.fixture
def made_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root whose files are taken as they are."""
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path))
    for module, names in RECORDS.items():
        for name in names:
            record = getattr(module, name)
            files = tuple(replace(file, digest=None, published=()) for file in record.files)
            monkeypatch.setattr(module, name, replace(record, files=files))
    return tmp_path


@pytest.fixture
def real_data(request: pytest.FixtureRequest) -> None:
    """Skips a test whose datasets are not in the data root."""
    absent = [d.name for d in datasets() if d.name in request.param and any(not f.find(d.folder()) for f in d.files)]
    if absent:
        pytest.skip(f"the data root has no {', '.join(absent)}: set BITFREEZE_DATA")
