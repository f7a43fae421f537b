"""Data made for these tests, of which no digest can be known."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitfreeze.lab.data import cifar, mnist, notmnist, svhn

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
