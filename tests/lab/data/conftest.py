from collections.abc import Callable, Iterator

import pytest

from bitfreeze.lab.data import Dataset, catalog
from support.mirror_server import MirrorServer


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of these tests are on this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[MirrorServer]:
    with MirrorServer() as running:
        yield running


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Dataset], Dataset]:
    """Make a dataset known for the length of a test."""

    def known(dataset: Dataset) -> Dataset:
        monkeypatch.setitem(catalog.datasets, dataset.name, dataset)
        return dataset

    return known
