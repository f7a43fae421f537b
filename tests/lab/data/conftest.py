from collections.abc import Iterator

import pytest

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
