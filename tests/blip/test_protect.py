"""Protecting a pretrained model: what is measured is held, and a file holds nearly the same for the same weights."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitfreeze
from bitfreeze import BLIP, Rules, protect, save_protection
from bitfreeze.blip.protection import entries_of, loaded_turning, table_of
from bitfreeze.model.trees import read_tree, write_tree
from support.protected_nets import assert_same

CLASSES = 5


class Net(nn.Module):
    """An embedding, layers with and without a bias, a convolution and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 24)
        self.turn = nn.Linear(24, 48, bias=False)
        self.norm = nn.LayerNorm(48)
        self.convolution = nn.Conv1d(6, 12, 3)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.turn(self.words(x).mean(1)).relu())
        return self.head(self.convolution(hidden.unflatten(-1, (6, 8))).relu().mean(-1))


def data(seed: int, rows: int = 256) -> Tensor:
    return torch.randint(40, (rows, 7), generator=torch.Generator().manual_seed(seed))


def labels(x: Tensor, task: int) -> Tensor:
    """Each word votes for a class; another task has other votes."""
    votes = torch.randn(40, CLASSES, generator=torch.Generator().manual_seed(task))
    return votes[x].mean(1).argmax(-1)


def pretrained() -> Net:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(200):
        x = data(step, 64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels(x, 0)).backward()
        optimizer.step()
    return net


@pytest.fixture(scope="module")
def base() -> Net:
    return pretrained()


def fine_tune(net: Net, steps: int = 60) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        x = data(1000 + step, 64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels(x, 1)).backward()
        optimizer.step()


def lost(net: nn.Module, base: nn.Module) -> float:
    """Nats a sample: KL of the new answers from those of the base, on data that neither was measured with."""
    with torch.no_grad():
        new, old = (each(data(77, 1000)).log_softmax(-1) for each in (net, base))
    return float((old.exp() * (old - new)).sum(-1).mean())


def test_a_fine_tuning_costs_the_base_little(base: Net) -> None:
    plain, held = copy.deepcopy(base), copy.deepcopy(base)
    blip = protect(held, data(5).split(64), tolerance=0.05)
    fine_tune(plain)
    fine_tune(held)
    blip.clamp_()
    assert lost(plain, base) > 0.5
    assert lost(held, base) < lost(plain, base) / 5
    assert blip.drift() <= 0.05 * 1.02


def test_it_is_a_blip_that_has_ended_a_task(base: Net) -> None:
    net, other = copy.deepcopy(base), copy.deepcopy(base)
    torch.manual_seed(1)
    blip = protect(net, data(5).split(64), net.forward, tolerance=0.02, watch=["turn", "head"], samples=200)
    torch.manual_seed(1)
    expected = BLIP(other, watch=["turn", "head"], tolerance=0.02)
    expected.consolidate(data(5).split(64), other.forward, samples=200)
    assert_same(blip.state_dict(), expected.state_dict())
    assert any(attachment.active for attachment in blip._attachments)
    assert not list(expected._attachments)


# the file


@pytest.mark.parametrize("name", ["base.pt", "base.safetensors"])
def test_a_file_holds_as_what_was_saved(base: Net, name: str, tmp_path: Path) -> None:
    measured = copy.deepcopy(base)
    save_protection(protect(measured, data(5).split(64), tolerance=0.05), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    held, again = copy.deepcopy(base), copy.deepcopy(base)
    blip = protect(held, str(tmp_path / name))
    assert blip._tensors.tolerance == 0.05
    torch.manual_seed(0)
    first = protect(again, data(5).split(64))
    fine_tune(held)
    fine_tune(again)
    for one in (blip, first):
        one.clamp_()
    assert lost(held, base) < 1.5 * lost(again, base) + 0.01


def test_each_part_of_a_file_is_what_was_measured(base: Net, tmp_path: Path) -> None:
    net = copy.deepcopy(base)
    blip = protect(net, data(5).split(64), rules=Rules.directions(strongest=9))
    save_protection(blip, tmp_path / "base.pt")
    loaded = protect(copy.deepcopy(base), tmp_path / "base.pt")
    before, after = blip.state_dict(), loaded.state_dict()
    assert after["settings"] == before["settings"]
    assert after["prior"] == pytest.approx(before["prior"])
    for name, turning in before["directions"].items():
        found = after["directions"][name]
        for key in ("inputs", "outputs"):
            torch.testing.assert_close(found[key], turning[key], atol=0.01, rtol=0)
            square = found[key].mT @ found[key]
            torch.testing.assert_close(square, torch.eye(square.shape[-1]).expand_as(square), atol=1e-5, rtol=0)
        torch.testing.assert_close(found["fisher"], turning["fisher"], rtol=0.01, atol=0)
    for name, tensor in before["tensors"].items():
        assert torch.equal(after["tensors"][name]["centre"], tensor["centre"])
        if "fisher" in tensor:  # sums over rows and columns are those that were measured
            one, other = (
                x["fisher"].float().reshape(len(tensor["centre"]), -1) for x in (tensor, after["tensors"][name])
            )
            torch.testing.assert_close(other.sum(0), one.sum(0), rtol=0.02, atol=1e-9)
            torch.testing.assert_close(other.sum(1), one.sum(1), rtol=0.02, atol=1e-9)


def test_fewer_directions_leave_the_others_to_the_other_parts() -> None:
    """What the strongest two directions leave out has the Fisher that it had, summed over all entries."""
    torch.manual_seed(0)
    net = nn.Linear(6, 5)
    blip = protect(net, [torch.randn(200, 6)], rules=Rules.directions(strongest=None))
    whole = blip.state_dict()["directions"]["weight"]["fisher"].sum()
    table = table_of(blip.state_dict(), strongest=2)
    kept = loaded_turning(table["directions"]["weight"])
    assert kept.inputs.shape == (1, 7, 2)
    rest = sum(
        entries_of(table["tensors"][n]["fisher"], table["tensors"][n]["shape"]).sum() for n in ("weight", "bias")
    )
    assert kept.by_output is not None
    torch.testing.assert_close(kept.fisher.sum() + kept.by_output.float().sum() + rest, whole, rtol=0.02, atol=0)


def test_the_tolerance_may_be_another_one(base: Net, tmp_path: Path) -> None:
    save_protection(protect(copy.deepcopy(base), data(5).split(64), tolerance=0.05), tmp_path / "base.pt")
    blips = [protect(copy.deepcopy(base), tmp_path / "base.pt", tolerance=tolerance) for tolerance in (0.01, 0.04)]
    assert blips[1].prior == pytest.approx(4 * blips[0].prior)
    for blip in blips:
        fine_tune(blip.model)
        blip.clamp_()
        assert blip.drift() <= 1.02 * blip._tensors.tolerance
    assert lost(blips[0].model, base) < lost(blips[1].model, base)


def test_the_file_is_small_and_holds_no_weights(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    blip = protect(net, [torch.randn(64, 512)], rules=Rules.directions(strongest=16))
    save_protection(blip, tmp_path / "base.pt")
    size = (tmp_path / "base.pt").stat().st_size
    assert size < 4 * 513 * 512 / 10
    save_protection(blip, tmp_path / "less.pt", strongest=4)
    assert (tmp_path / "less.pt").stat().st_size < 0.6 * size


def test_weights_that_came_from_half_precision_are_the_same_weights(base: Net, tmp_path: Path) -> None:
    half = copy.deepcopy(base).bfloat16()
    save_protection(protect(copy.deepcopy(half).float(), data(5).split(64)), tmp_path / "base.pt")
    protect(copy.deepcopy(half).float(), tmp_path / "base.pt")
    with pytest.raises(TypeError, match=r"must be float32 or float64, got bfloat16.*keep float32 master weights"):
        protect(half, tmp_path / "base.pt")


# what is refused


@pytest.fixture
def file(base: Net, tmp_path: Path) -> Path:
    save_protection(protect(copy.deepcopy(base), data(5).split(64)), tmp_path / "base.pt")
    return tmp_path / "base.pt"


def test_other_weights_are_refused(base: Net, file: Path) -> None:
    other = copy.deepcopy(base)
    with torch.no_grad():
        other.head.bias[0] += 1e-6
    with pytest.raises(ValueError, match=r"must belong to these weights, got .*'head.bias' differs\); load it before"):
        protect(other, file)
    with pytest.raises(ValueError, match=r"must be of this model, got one with 'words.weight', which the model lacks"):
        protect(nn.Linear(3, 2), file)
    wider = copy.deepcopy(base)
    wider.words = nn.Embedding(41, 24)
    with pytest.raises(
        ValueError, match=r"got 'words.weight' of shape \[40, 24\], which has the shape \[41, 24\] here"
    ):
        protect(wider, file)


def test_files_that_are_missing_damaged_or_something_else_are_refused(base: Net, file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.pt does not exist; give batches of data, or a file of"):
        protect(base, tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("no file of tensors")
    with pytest.raises(ValueError, match=r"text.pt must be a file that bitfreeze wrote, got another or a damaged one"):
        protect(base, tmp_path / "text.pt")
    write_tree(tmp_path / "state.pt", BLIP(base).state_dict())
    with pytest.raises(ValueError, match=r"state.pt must be a protection, got another file; write one with"):
        protect(base, tmp_path / "state.pt")
    table = read_tree(file)
    table["directions"]["turn.weight"]["fisher"][0, 0, 0] *= 2
    write_tree(file, table)
    with pytest.raises(
        ValueError, match=r"is damaged: 'fisher' of 'turn.weight' of 'directions' is not what was saved"
    ):
        protect(base, file)


@pytest.mark.parametrize(
    "argument", [{"forward": torch.relu}, {"watch": "head"}, {"samples": 3}, {"freeze_statistics": True}]
)
def test_what_belongs_to_measuring_is_refused_with_a_file(base: Net, file: Path, argument: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(argument))} must be left out with a file"):
        protect(base, file, **argument)


def test_what_cannot_be_saved_is_refused(base: Net, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold something, got one that has ended no task"):
        save_protection(BLIP(base), tmp_path / "base.pt")
    with pytest.raises(ValueError, match="must hold along directions, got rules by weight"):
        save_protection(BLIP(base, rules=Rules.strict()), tmp_path / "base.pt")
    net = copy.deepcopy(base)
    blip = protect(net, data(5).split(64))
    with pytest.raises(ValueError, match="strongest must be a whole number of at least 1, got 0"):
        save_protection(blip, tmp_path / "base.pt", strongest=0)
    with pytest.raises(ValueError, match="path must be a file to write, got the folder"):
        save_protection(blip, tmp_path)
    fine_tune(net, 2)
    with pytest.raises(ValueError, match=r"must be as it was measured, got other weights; save the protection before"):
        save_protection(blip, tmp_path / "base.pt")
    assert not list(tmp_path.iterdir())


def test_a_model_in_half_precision_is_refused_and_told_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"'weight' must be float32 or float64, got float16.*\(model.float\(\)\)"):
        protect(nn.Linear(3, 2).half(), [torch.ones(4, 3)])


def test_without_safetensors_the_other_format_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "safetensors", None)
    blip = bitfreeze.protect(nn.Linear(3, 2), [torch.ones(4, 3)])
    with pytest.raises(ModuleNotFoundError, match=r"needs safetensors: pip install.*or use a name that ends in \.pt"):
        save_protection(blip, tmp_path / "base.safetensors")
