"""Names without wrappers, tied tensors once, and what ``watch`` may be."""

import pytest
import torch
from torch import nn

from bitfreeze.model.parameters import find_parameters, require_float, watched_modules


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body = nn.Embedding(5, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(3))


def names(model, watch=None):
    return [slot.name for slot in find_parameters(model, watch)]


def test_names_are_those_of_torch():
    model = Tied()
    assert sorted(names(model)) == sorted(name for name, _ in model.named_parameters())
    for slot in find_parameters(model):
        assert slot.parameter is model.get_parameter(slot.name)


def test_tied_tensor_comes_once_with_all_its_owners():
    model = Tied()
    slot = next(slot for slot in find_parameters(model) if slot.name == "embedding.weight")
    assert slot.owners == [(model.embedding, "weight"), (model.head, "weight")]
    assert "head.weight" not in names(model)


def test_module_in_two_places_is_one_owner():
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)})
    assert [(slot.name, slot.owners) for slot in find_parameters(model)] == [
        ("a.weight", [(layer, "weight")]),
        ("a.bias", [(layer, "bias")]),
    ]


def test_tensor_under_two_names_of_one_module():
    model = nn.Module()
    model.first = model.second = nn.Parameter(torch.ones(2))
    (slot,) = find_parameters(model)
    assert slot.name == "first"
    assert (model, "first") in slot.owners


def test_rebound_parameter_is_followed():
    model = nn.Linear(2, 2)
    slot = find_parameters(model)[0]
    model.weight = nn.Parameter(torch.zeros(2, 2))
    assert slot.parameter is model.weight


def test_missing_bias_is_no_parameter():
    assert names(nn.Linear(2, 2, bias=False)) == ["weight"]


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        (lambda m: m.body, ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]),
        (lambda m: m.body[0], ["body.0.weight", "body.0.bias"]),
        (lambda m: "scale", ["scale"]),
        (lambda m: ["scale", m.body[1]], ["scale", "body.1.weight", "body.1.bias"]),
        (lambda m: (part for part in (m.body[1], "scale")), ["scale", "body.1.weight", "body.1.bias"]),
        (lambda m: [m.body, m.body[0]], ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]),
        (lambda m: m.head, ["embedding.weight", "head.bias"]),
        (lambda m: "head.weight", ["embedding.weight"]),
    ],
)
def test_watch(watch, expected):
    model = Tied()
    assert names(model, watch(model)) == expected


def test_watched_modules():
    model = Tied()
    assert watched_modules(model, model.body) == [model.body, *model.body]
    assert watched_modules(model, "scale") == []
    assert watched_modules(model, "body") == [model.body, *model.body]
    assert watched_modules(nn.parallel.DataParallel(model), "body") == [model.body, *model.body]
    assert watched_modules(model) == list(model.modules())


def test_prefixes_of_wrappers_are_stripped():
    inner = Tied()
    expected = names(inner)
    assert names(nn.DataParallel(inner)) == expected
    assert names(torch.compile(inner, backend="eager")) == expected
    assert names(nn.DataParallel(torch.compile(inner, backend="eager"))) == expected
    assert names(nn.DataParallel(inner), "head.weight") == ["embedding.weight"]
    outer = nn.ModuleDict({"net": torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")})
    assert names(outer) == ["net.0.weight", "net.0.bias"]


def test_a_module_called_module_is_no_wrapper():
    assert names(nn.ModuleDict({"module": nn.Linear(2, 2)})) == ["module.weight", "module.bias"]


@pytest.mark.parametrize(
    ("watch", "error", "sentence"),
    [
        ("body.7.weight", ValueError, "of the model, got 'body.7.weight'"),
        (["scale", "nothing"], ValueError, "of the model, got 'nothing'"),
        (nn.Linear(2, 2), ValueError, "watch must be part of the model, got"),
        ([], ValueError, "at least one parameter, got none"),
        (3, TypeError, "watch"),
        ([torch.ones(2)], TypeError, "watch must be a submodule, a name, or a list"),
    ],
)
def test_watch_that_is_refused(watch, error, sentence):
    with pytest.raises(error, match=sentence):
        find_parameters(Tied(), watch)


def test_model_without_parameters():
    with pytest.raises(ValueError, match="at least one parameter, got none"):
        find_parameters(nn.ReLU())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_only_single_and_double_precision_hold_the_bits(dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=dtype))
    with pytest.raises(TypeError, match=rf"'1.weight' must be .* got {str(dtype)[6:]}.*float32 master weights"):
        require_float(find_parameters(model))
    require_float(find_parameters(model, model[0]))
    require_float(find_parameters(model[0].double()))
