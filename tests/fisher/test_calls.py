"""Whatever forward does with its batch, and whatever it calls beside the model, the Fisher is that of eval mode."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.nn.utils.rnn import pack_sequence, pad_sequence

from bitfreeze import diagonal_fisher
from bitfreeze.fisher import estimate
from support.networks import inputs, network
from support.truth import assert_matches, empirical_fisher, unchanged

N = 12


def labels(classes: int = 3) -> torch.Tensor:
    return torch.arange(N) % classes


class Scaled(nn.Module):
    """A bare parameter, for which there is no rule, before a layer that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.scale)


@pytest.mark.parametrize("size", [1, 5, N])
def test_modules_beside_the_model_are_in_eval_mode(size):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    head = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    head(torch.randn(50, 5))  # so that it has statistics
    x, y = torch.randn(N, 4), labels()
    whole = empirical_fisher(nn.Sequential(backbone, head), x, y)
    with unchanged(head), unchanged(backbone):
        batches = zip(x.split(size), y.split(size), strict=True)
        found = diagonal_fisher(backbone, batches, lambda x: head(backbone(x)), labels="true")
    assert_matches(found, {name: whole[f"0.{name}"] for name in found})
    assert all(module.training for module in (*head, *backbone))
    assert not torch_modules._global_forward_pre_hooks


def test_other_threads_go_on_training():
    model, other = network(3), nn.Sequential(nn.Dropout(0.5)).train()
    modes = []

    def train() -> None:
        other(torch.ones(1))
        modes.append(other.training)

    def forward(x):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        return model(x)

    diagonal_fisher(model, [inputs(6)], forward)
    assert modes
    assert all(modes)


def test_a_batch_norm_beside_the_model_that_always_mixes_samples_is_refused():
    model, norm, x = network(3), nn.BatchNorm1d(3, track_running_stats=False), inputs(6)
    with unchanged(model), unchanged(norm), pytest.raises(ValueError, match="'BatchNorm1d' normalises with the statis"):
        diagonal_fisher(model, [x], lambda x: norm(model(x)))
    assert norm.training


def test_a_forward_that_changes_its_input_in_place():
    torch.manual_seed(0)
    model, x, y = Scaled(), torch.randn(N, 4), labels()
    kept = x.clone()
    result = estimate(model, [(x, y)], lambda x: model(x.div_(10)), labels="true")
    assert torch.equal(x, kept)
    assert_matches(result.values, empirical_fisher(model, x / 10, y))
    assert not result.ways["scale"].startswith("rule")


def test_a_forward_that_takes_its_batch_apart():
    torch.manual_seed(0)
    model, x, y = Scaled(), torch.randn(N, 4), labels()
    batch = {"x": x, "y": y}
    found = diagonal_fisher(model, [batch], lambda b: model(b.pop("x")), labels="true", targets=lambda b: b["y"])
    assert_matches(found, empirical_fisher(model, x, y))
    assert list(batch) == ["x", "y"]


class Squeezes(nn.Module):
    """Works with several samples; with one alone it loses their axis."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.convolution(x).relu().mean((2, 3), keepdim=True).squeeze() * self.scale)


def test_a_model_that_cannot_take_one_sample_gets_whole_batches():
    torch.manual_seed(0)
    model, x, y = Squeezes(), torch.randn(N, 1, 6, 6), labels()
    result = estimate(model, [(x, y)], labels="true")

    def score(twin, x, y):
        pair = torch.cat([x, x])  # the truth of one sample, in a batch that the model can take
        return twin(pair).log_softmax(1)[0, y[0]]

    assert_matches(result.values, empirical_fisher(model, x, y, score))
    assert "running fewer samples fails" in result.ways["scale"]


def test_packed_sequences():
    torch.manual_seed(0)
    sequences = [torch.randn(length, 4) for length in (5, 3, 2)]
    model, y = nn.LSTM(4, 3), torch.tensor([0, 2, 1])
    found = diagonal_fisher(model, [(pack_sequence(sequences), y)], lambda p: model(p)[1][0][0], labels="true")
    lengths = torch.tensor([5, 3, 2])

    def score(twin, x, y):
        length = int(lengths[[torch.equal(x[0], row) for row in padded.double()]][0])
        return twin(x[:, :length].transpose(0, 1))[1][0][0].log_softmax(1)[0, y[0]]

    padded = pad_sequence(sequences, batch_first=True)
    assert_matches(found, empirical_fisher(model, padded, y, score))
