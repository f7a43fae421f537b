"""What a run notes of where it was done."""

from pathlib import Path

import pytest

from bitfreeze.lab.runs.provenance import environment
from bitfreeze.lab.streams import streams
from support import made_files


def test_data_that_are_not_the_published_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = streams["five_datasets"].needs
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path / "empty"))
    assert "data" not in environment((), needs)  # what is missing is said when it is read
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path))
    made_files.lay_out_svhn(tmp_path)
    made_files.lay_out_cifar10(tmp_path)  # has a digest: other content is refused when it is read
    assert environment((), needs)["data"] == "svhn unverified"
    made_files.lay_out_cifar100(tmp_path)
    assert environment((), ("cifar100", "svhn"))["data"] == "cifar100 and svhn unverified"


@pytest.mark.parametrize("real_data", [("cifar10", "mnist")], indirect=True, ids=["digests"])
@pytest.mark.usefixtures("real_data")
def test_data_that_are_verified_are_not() -> None:
    assert "data" not in environment((), ("cifar10", "mnist"))


def test_a_precision_below_float32_is_noted_and_float32_is_not() -> None:
    assert environment(precision="bf16")["precision"] == "bf16"
    assert "precision" not in environment()
