"""Control flow that makes batches differ: a layer is used by some, or otherwise than before."""

import pytest
import torch
from torch import nn

from bitfreeze.fisher import estimate, explain
from support.networks import WIDTH, Gru, OwnLinear, Sequence, Stored, flattened, inputs, sequences, straight
from support.truth import assert_matches, check_batches, mean_over, randomise, reference, squares


class Experts(nn.Module):
    """Each sample goes to the expert that its first entry names."""

    def __init__(self, make):
        super().__init__()
        self.experts, self.head = nn.ModuleList([make(), make()]), nn.Linear(4, 3)
        randomise(self).double()

    def forward(self, x):
        h = x.new_zeros(len(x), 4)
        chosen = (x[:, 0, 0] > 0).long()
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero().squeeze(1)
            if len(rows):
                h = h.index_put((rows,), torch.tanh(expert(x[rows])).mean(1))
        return self.head(h)


def routed(*choices):
    """A batch of data whose samples go to these experts."""
    x, y = sequences(len(choices))
    x[:, 0, 0] = torch.tensor(choices) - 0.5
    return x, y


EXPERTS = [lambda: nn.Linear(WIDTH, 4), OwnLinear, Gru]
LINEAR = EXPERTS[0]


@pytest.mark.parametrize("make", EXPERTS, ids=["Linear", "own", "GRU"])
@pytest.mark.parametrize(
    "batches",
    [
        [(0, 0, 0, 0), (1, 0, 1, 1, 0), (1, 1, 1)],
        [(0, 0, 0, 0, 1, 1)],  # after the samples that rules are checked on
        [(0,), (1,), (0, 1)],
        [(1, 1, 1, 1), (0, 0, 0, 0)],  # whole batches: each alone looks like a plain layer
        [(0, 1, 0, 1, 1), (1, 1), (0, 0, 0)],
    ],
    ids=str,
)
def test_routing_between_experts(make, batches):
    rules = check_batches(Experts(make), [routed(*choices) for choices in batches])
    assert rules["head.weight"] == "rule Linear.weight"
    assert "not used by forward" not in rules.values()


def test_routing_is_reported():
    batches = [routed(0, 0, 0, 0), routed(1, 0, 1, 1)]
    model = Experts(LINEAR)
    first = explain(model, batches)
    assert first["experts.0.weight"] == "rule Linear.weight"
    assert first["experts.1.weight"] == "not used by forward"
    both = check_batches(model, batches)
    assert "called differently in a later batch" in both["experts.0.weight"]
    assert "first used in a later batch" in both["experts.1.weight"]


def test_unused_expert_has_no_information():
    model = Experts(LINEAR)
    result = estimate(model, [routed(0, 0, 0, 0)])
    assert result.ways["experts.1.bias"] == "not used by forward"
    assert not result.values["experts.1.weight"].any()
    assert result.values["experts.0.weight"].any()


@pytest.mark.parametrize("make", EXPERTS, ids=["Linear", "own", "GRU"])
def test_watched_expert_that_only_later_batches_use(make):
    model = Experts(make)
    batches = [routed(0, 0, 0, 0), routed(1, 0, 1, 1)]
    whole = estimate(model, batches, labels="true").values
    part = estimate(model, batches, labels="true", watch=model.experts[1]).values
    assert_matches(part, {name: value for name, value in whole.items() if name.startswith("experts.1.")}, 1e-12)


def test_layer_called_more_often_in_a_later_batch():
    model, x, y = randomise(nn.Linear(3, 3)).double(), inputs(8)[:, :3], torch.arange(8) % 3

    def forward(batch, layer=model):
        h = batch["x"]
        for _ in range(batch["depth"]):
            h = torch.tanh(layer(h))
        return h

    batches = [{"x": x[:4], "depth": 1, "y": y[:4]}, {"x": x[4:], "depth": 2, "y": y[4:]}]
    result = estimate(model, batches, forward, labels="true", targets=lambda batch: batch["y"])
    twin, parameters = reference(model)

    def one(i):
        logits = forward({"x": x[i : i + 1], "depth": 1 if i < 4 else 2}, twin)
        return squares(parameters, logits.log_softmax(-1)[0, y[i]])

    assert_matches(result.values, mean_over(range(8), one))
    assert "called differently in a later batch" in result.ways["weight"]


@pytest.mark.parametrize("make", [lambda: nn.Linear(WIDTH, 4), OwnLinear, Stored], ids=["Linear", "own", "stored"])
def test_layer_that_a_later_batch_asks_for(make):
    """By a number in the batch, so that torch.func can follow, or seem to: that it does right is not yet shown."""
    model = nn.ModuleDict({"a": make(), "b": make(), "head": nn.Linear(4, 3)})
    randomise(model).double()

    def forward(batch, model=model):
        return model["head"](torch.tanh(model[batch["name"]](batch["x"])).mean(1))

    def score(twin, x, y, name):
        return forward({"x": x, "name": name}, twin).log_softmax(-1)[0, y]

    (x1, y1), (x2, y2) = sequences(4), sequences(5)
    batches = [{"x": x1, "name": "a", "y": y1}, {"x": x2, "name": "b", "y": y2}]
    result = estimate(model, batches, forward, labels="true", targets=lambda batch: batch["y"])
    twin, parameters = reference(model)
    rows = [(x1[i : i + 1], y1[i], "a") for i in range(4)] + [(x2[i : i + 1], y2[i], "b") for i in range(5)]
    assert_matches(result.values, mean_over(rows, lambda row: squares(parameters, score(twin, *row))))


def test_input_overwritten_in_a_later_batch():
    """Such a batch could not be trained on either: autograd's own error, not the Fisher of another input."""
    model = Sequence(straight)

    def forward(batch):
        x = batch["x"] * 1.0
        logits = model(x)
        if batch["spoil"]:
            x.mul_(2.0)
        return logits

    batches = [{"x": sequences(4)[0], "spoil": spoil} for spoil in (False, True)]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        estimate(model, batches, forward)


def test_what_torch_func_can_do_in_the_first_batch_only():
    """With exact labels too, where each class is a pass of its own."""
    model = Sequence(flattened)

    def forward(batch):
        x = batch["x"]
        if "mask" in batch:  # boolean indexing is beyond torch.func
            x = x.clone()
            x[batch["mask"]] = 0.5
        return model(x)

    (x1, _), (x2, _) = sequences(4, 3), sequences(5, 3)
    mask = torch.rand(5, 3) < 0.5
    result = estimate(model, [{"x": x1}, {"x": x2, "mask": mask}], forward, labels="exact")
    whole = torch.cat([x1, torch.where(mask[..., None], torch.tensor(0.5, dtype=x2.dtype), x2)])
    twin, parameters = reference(model)

    def expected(row):
        log_p = twin(whole[row : row + 1]).log_softmax(-1)[0]
        parts = [squares(parameters, score) for score in log_p]
        return {k: sum(p.detach().exp() * part[k] for p, part in zip(log_p, parts, strict=True)) for k in parameters}

    assert_matches(result.values, mean_over(range(9), expected))
    assert "in a later batch" in result.ways["layer.weight"]
