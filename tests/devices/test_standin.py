"""The stand-in for a GPU: it computes what the CPU does, and fails where a GPU would."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import standin

pytestmark = pytest.mark.usefixtures("stand_in")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(6, 4, 2),
        nn.Tanh(), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_training_gives_the_numbers_of_the_cpu(kind, device) -> None:
    x, y = torch.randn(16, 2, 8, 8), torch.randint(5, (16,))
    trained = []
    for place in (torch.device("cpu"), device):
        model = network().to(place)
        optimizer = kind(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(place)), y.to(place)).backward()
            optimizer.step()
        trained.append(model.state_dict())
    for name, value in trained[0].items():
        assert trained[1][name].device == device
        torch.testing.assert_close(trained[1][name].cpu(), value)


MIXED = {
    "sum": lambda here, there: here + there,
    "product": lambda here, there: here @ there,
    "in place": lambda here, there: here.mul_(there),
    "linear": F.linear,
    "joined": lambda here, there: torch.cat([here, there]),
    "clamp": lambda here, there: here.clamp_(there, there + 1),
    "loss": lambda here, there: F.cross_entropy(here, there[0].abs().long().clamp(max=2)),
    "convolution": lambda here, there: F.conv2d(here[None, None], there[None, None]),
    "many": lambda here, there: torch._foreach_add_([here], [there]),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_do_not_mix(name, device, other) -> None:
    mine = torch.ones(3, 3, device=device)
    for stranger in (torch.ones(3, 3), torch.ones(3, 3, device=other)):
        with pytest.raises(RuntimeError, match=r"(same|two|different) device"):
            MIXED[name](mine, stranger)
    MIXED[name](mine, torch.ones(3, 3, device=device))


def test_a_number_of_the_cpu_may_be_mixed_in_as_on_a_gpu(device) -> None:
    assert (torch.ones(3, device=device) * torch.tensor(2.0)).tolist() == [2, 2, 2]
    assert torch.arange(4, device=device)[torch.tensor([1, 3])].tolist() == [1, 3]


def test_the_memory_of_a_tensor_is_on_its_device(other) -> None:
    made = [torch.arange(5, device=other), torch.zeros(5, device=other), torch.rand(5, device=other)]
    made += [made[0][made[0]], made[0].clone(), torch.cat([made[0], made[0]]), made[1].topk(2).indices]
    assert {tensor.device for tensor in made} == {tensor.untyped_storage().device for tensor in made} == {other}


def test_the_host_cannot_read_the_memory_by_accident(device) -> None:
    with pytest.raises(TypeError, match="can't convert"):
        torch.ones(3, device=device).numpy()


def test_random_numbers_have_a_state_of_their_own_on_each_device(device, other) -> None:
    torch.manual_seed(3)
    states = {"cpu": torch.get_rng_state(), other: torch.standin.get_rng_state(other)}
    first = torch.rand(4, device=device)
    F.dropout(torch.ones(100, device=device))
    assert torch.equal(torch.get_rng_state(), states["cpu"])
    assert torch.equal(torch.standin.get_rng_state(other), states[other])
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=device).cpu(), first.cpu())
    assert not torch.equal(torch.rand(4, device=device).cpu(), first.cpu())


def test_a_generator_must_be_of_the_device(device) -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=device, generator=torch.Generator())
    drawn = [torch.rand(3, device=device, generator=torch.Generator(device).manual_seed(5)).cpu() for _ in range(2)]
    assert torch.equal(*drawn)


def test_memory_runs_out_and_is_given_back(device) -> None:
    used = standin.memory_used(device.index)
    standin.set_memory_limit(used + 1000)
    try:
        held = torch.zeros(200, device=device)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.zeros(200, device=device)
        del held
        torch.zeros(200, device=device)
    finally:
        standin.set_memory_limit(None)
    assert standin.memory_used(device.index) == used
