"""Devices as users name them, on a machine that has only a CPU or says so."""

import pytest
import torch

from bitfreeze import lab
from bitfreeze.lab import devices
from bitfreeze.lab.devices import current_device, described, device_count, devices_to_deal, find_device, on_device
from bitfreeze.lab.runs.checkpoint import random_states, set_random_states
from bitfreeze.lab.runs.torchrun import backend_for
from bitfreeze.lab.sweeps import Local
from bitfreeze.model.devices import moved, numbers_of

CPU = torch.device("cpu")
no_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")


@no_accelerator
def test_without_an_accelerator_auto_is_the_cpu() -> None:
    assert find_device("auto") == find_device("cpu") == find_device("cpu:0") == CPU
    assert devices_to_deal("auto") == ["cpu"]


@no_accelerator
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "xpu"])
def test_a_device_that_is_not_there_is_told_in_a_sentence(name, type_in) -> None:
    sentence = f"device {name} is not there: this machine has cpu; use one of these, or auto"
    with pytest.raises(ValueError, match=sentence):
        find_device(name)
    for command in ("run", "sweep"):
        with pytest.raises(SystemExit, match=f"bitfreeze: {sentence}"):
            type_in(command, "digits5", "--device", name)


def test_a_word_that_is_no_device_is_told_in_a_sentence(tmp_path) -> None:
    for name in ("gpu", "cuda:one", "", "meta"):
        with pytest.raises(
            ValueError, match="device must be auto, cpu, cuda, cuda:1, mps, xla or another of torch, got"
        ):
            lab.run("digits5", "ft", device=name, root=tmp_path)
    assert not list(tmp_path.iterdir())


def test_xla_needs_its_library(monkeypatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(devices, "import_module", absent)
    with pytest.raises(ValueError, match="device xla needs torch_xla, which is not installed"):
        find_device("xla")


class Accelerator:
    """A module of a kind of device, such as torch.cuda."""

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 3)
    mem_get_info = staticmethod(lambda device: (123, 456))


def test_runs_of_a_sweep_are_dealt_to_all_devices_of_a_kind(monkeypatch) -> None:
    monkeypatch.setattr(torch, "cuda", Accelerator)
    assert device_count("cuda") == 3
    assert devices_to_deal("cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices_to_deal("cuda:1") == ["cuda:1"]
    assert devices.free_bytes(torch.device("cuda")) == 123
    engine = Local(device="cuda")
    assert [engine.idle.get() for _ in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert engine.idle.empty()
    engine.close()
    with pytest.raises(ValueError, match="device cuda:3 is not there: this machine has cpu and cuda:0 and cuda:1"):
        find_device("cuda:3")


def test_ranks_on_gpus_send_by_nccl() -> None:
    assert backend_for(CPU) == "gloo"
    assert backend_for(torch.device("cuda", 1)) == "nccl"
    with pytest.raises(ValueError, match="ranks that share a run must be on cpu or cuda or xpu, got mps"):
        backend_for(torch.device("mps"))


def test_the_device_of_a_run_is_put_back() -> None:
    assert current_device() == CPU
    with on_device(torch.device("meta")):
        assert current_device() == torch.device("meta")
    with pytest.raises(KeyError), on_device(torch.device("meta")):
        raise KeyError
    assert current_device() == CPU
    assert described(CPU) == "cpu"


def test_a_full_device_keeps_what_was_noted() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"
    )
    error.add_note("kept up to the last checkpoint")
    with pytest.raises(devices.DeviceFull) as caught, on_device(CPU):
        raise error
    assert str(caught.value) == (
        "cpu is full (CUDA out of memory. Tried to allocate 2.00 GiB): end what else uses it and start again, or go on "
        "with --device cpu"
    )
    assert caught.value.__notes__ == ["kept up to the last checkpoint"]


def test_random_states_are_saved_and_those_of_absent_devices_left_out() -> None:
    saved = random_states("cpu")
    assert set(saved) == {"torch"}
    expected = torch.rand(3)
    set_random_states({**saved, "devices": {"unheard_of": [torch.zeros(1, dtype=torch.uint8)]}})
    assert torch.equal(torch.rand(3), expected)


def test_nested_states_are_moved() -> None:
    state = {"a": [torch.ones(2), 3], "b": (torch.zeros(1), {"c": None})}
    there = moved(state, torch.device("meta"))
    assert there["a"][0].is_meta
    assert there["b"][0].is_meta
    assert (there["a"][1], there["b"][1]) == (3, {"c": None})


def test_numbers_of_tensors_are_read_in_order() -> None:
    assert numbers_of([torch.tensor([1.5, 2.0]), torch.tensor(3.0, dtype=torch.float64)]) == [[1.5, 2.0], [3.0]]
    assert numbers_of([]) == []
