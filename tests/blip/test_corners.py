"""Corners of BLIP's life beside a model: what comes and goes, and what is given in other forms."""

import gc
import io
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import parametrizations, prune
from torch.optim import SGD, Adam

from bitfreeze import BLIP, Rules
from bitfreeze.blip.budget import in_one_scale
from bitfreeze.fisher import explain
from support.protected_nets import GUARDS, Net, make_task, protected, train_sgd

pytestmark = pytest.mark.filterwarnings("ignore:no weight reached the edge", "ignore:no watched weight has changed")


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.extra, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        return self.head(hidden if self.extra is None else self.extra(hidden))


def test_a_parameter_that_is_away_for_a_task_keeps_its_bits(guard: str) -> None:
    torch.manual_seed(0)
    model = Optional()
    blip = BLIP(model, **GUARDS[guard])
    blip.consolidate([make_task(0)])
    before = blip.frozen_bits()
    assert before["extra.weight"].any()
    kept, model.extra = model.extra, None
    blip.consolidate([make_task(1)])
    assert "extra.weight" not in blip.frozen_bits()
    fresh = BLIP(model, **GUARDS[guard])
    fresh.load_state_dict(blip.state_dict())
    model.extra = kept
    for each in (blip, fresh):
        assert torch.equal(each.frozen_bits()["extra.weight"], before["extra.weight"])
        each.consolidate([make_task(2)])
        assert torch.all(each.frozen_bits()["extra.weight"] >= before["extra.weight"])


def test_optimizers_are_not_kept_alive(guard: str) -> None:
    model, blip = protected(guard=guard)
    for _ in range(3):
        optimizer = Adam(model.parameters())
        with blip.attach(optimizer):
            pass
        seen = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert seen() is None
    assert len(list(blip._attachments)) <= 2


def test_a_handle_is_not_active_without_its_blip() -> None:
    handle = BLIP(Net()).attach()
    gc.collect()
    assert not handle.active


def test_straight_through_refuses_a_closure() -> None:
    model = Net()
    blip = BLIP(model, rules=Rules.text(straight_through=True))
    blip.attach()
    x, y = make_task(0)
    optimizer = SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="passes must come before the step"):
        optimizer.step(closure)


def test_weights_loaded_between_attach_and_the_first_step_are_not_clipped(guard: str) -> None:
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    large = {name: 30 * value for name, value in model.state_dict().items()}
    model.load_state_dict(large)
    train_sgd(model, 0, rate=0.0, steps=1)
    assert all(torch.equal(value, large[name]) for name, value in model.state_dict().items())


def test_steps_of_other_models_do_not_end_the_time_for_loading_weights(guard: str) -> None:
    model, other = Net(), Net(seed=1)
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    train_sgd(other, 0, steps=1)
    large = {name: 30 * value for name, value in model.state_dict().items()}
    model.load_state_dict(large)
    train_sgd(model, 0, rate=0.0, steps=1)
    assert all(torch.equal(value, large[name]) for name, value in model.state_dict().items())


def test_steps_of_other_models_do_not_care_what_this_one_is(guard: str) -> None:
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    model.bfloat16()
    train_sgd(Net(seed=1), 0, steps=1)
    del blip


@pytest.mark.parametrize(
    "change",
    [
        lambda m: prune.l1_unstructured(m.backbone[0], "weight", 0.3),
        lambda m: parametrizations.weight_norm(m.backbone[0]),
        lambda m: setattr(m.backbone[0], "bias", None),
    ],
    ids=["pruned", "parametrised", "no bias"],
)
def test_a_step_goes_on_where_a_parameter_has_gone(change, guard: str) -> None:
    model, blip = protected(guard=guard)
    change(model)
    train_sgd(model, 1, steps=2)
    blip.clamp_()
    blip.consolidate([make_task(1)], outside="mend")


def test_half_precision_after_attach_is_noticed(guard: str) -> None:
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    model.bfloat16()
    with pytest.raises(TypeError, match="keep float32 master weights"):
        blip.clamp_()


NOT_FINITE = {  # one infinite entry makes all of a layer NaN in other coordinates, which no clamp makes finite
    "strict": "has had NaN or infinite entries after a step, which the clamp made finite",
    "directions": "has NaN or infinite entries: restore the last good weights",
}


def test_infinite_gradients_are_not_laundered_by_the_clamp(guard: str) -> None:
    model, blip = protected(guard=guard)
    optimizer = SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    optimizer.step()
    before = blip.frozen_bits()
    with pytest.raises(ValueError, match=NOT_FINITE[guard]):
        blip.consolidate([make_task(1)])
    assert all(torch.equal(bits, before[name]) for name, bits in blip.frozen_bits().items())


def test_infinite_gradients_of_a_large_layer_without_a_bias_are_found_too(guard: str) -> None:
    model = nn.Linear(200, 100, bias=False)
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    optimizer = SGD(model.parameters(), lr=0.1)
    model.weight.grad = torch.full_like(model.weight, -torch.inf)
    optimizer.step()
    model.weight.grad.zero_()
    for _ in range(60):
        optimizer.step()
    with pytest.raises(ValueError, match=NOT_FINITE[guard]):
        blip.consolidate([torch.randn(8, 200)])


@pytest.mark.parametrize(
    "settings", [GUARDS["strict"], GUARDS["directions"], {"rules": Rules.directions(strongest=20)}]
)
@pytest.mark.parametrize("attribute", ["weight", "bias"])
def test_one_infinite_entry_that_comes_and_goes_is_found(settings: dict[str, Any], attribute: str) -> None:
    """The other tensor of the layer stays finite, and the clamp moves the entry to the edge of its interval."""
    torch.manual_seed(0)
    model = nn.Linear(200, 100)
    blip = BLIP(model, **settings)
    blip.attach()
    blip.consolidate([torch.randn(8, 200)])
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(40):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        getattr(model, attribute).grad.view(-1)[17] = torch.inf if step == 33 else 0
        optimizer.step()
    with pytest.raises(ValueError, match=r"has (had )?NaN or infinite entries"):
        blip.consolidate([torch.randn(8, 200)])


def test_good_weights_restored_after_infinite_gradients_are_taken_at_once(guard: str) -> None:
    model, blip = protected(guard=guard)
    good = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    optimizer.step()
    with pytest.raises(ValueError, match=NOT_FINITE[guard]):
        blip.consolidate([make_task(1)])
    model.load_state_dict(good)
    assert blip.consolidate([make_task(1)]).task == 2


@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda"), ()])
def test_the_prior_is_solved_for_wherever_the_parameters_live(devices: tuple[str, ...]) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        joined = in_one_scale([(torch.rand(3, 2, device=device), 2.0) for device in devices])
    assert joined.shape == (6 * len(devices),)
    assert joined.device.type == (devices[0] if devices else "cpu")


def test_a_default_device_other_than_the_models_makes_no_difference(guard: str) -> None:
    (_, here), (_, there) = protected(guard=guard), protected(guard=guard)
    task, seeds = [make_task(1)], [torch.Generator().manual_seed(0) for _ in range(2)]
    here.consolidate(task, generator=seeds[0])
    with torch.device("meta"):  # what is made there cannot be read
        report = there.consolidate(task, generator=seeds[1])
        assert report.frozen_now > 0
    found = there.frozen_bits()
    assert all(torch.equal(found[name], bits) for name, bits in here.frozen_bits().items())


def test_numpy_numbers_are_taken_and_saved_as_plain_ones() -> None:
    model = Net()
    blip = BLIP(model, bits=np.int64(12), prior=np.float64(1e-6), bound=np.float32(6))
    blip.consolidate([make_task(0)])
    file = io.BytesIO()
    torch.save(blip.state_dict(), file)
    file.seek(0)
    BLIP(model, bits=12, prior=1e-6).load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"bits": True}, ValueError, "bits must be a whole number"),
        ({"rules": "released"}, TypeError, r"rules must be Rules\.directions\(\), Rules\.strict\(\)"),
        ({"bound": 1e30}, ValueError, "bound must be at most"),
        ({"watch": 5}, TypeError, "watch must be a submodule, a name, or a list"),
    ],
)
def test_settings_that_are_refused(settings, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        BLIP(Net(), **settings)


def test_damaged_states_are_refused() -> None:
    _, blip = protected()
    state = blip.state_dict()
    del state["tensors"]["backbone.0.weight"]["fisher"]
    with pytest.raises(ValueError, match=r"damaged: 'backbone\.0\.weight' must be as after 1 tasks, got no 'fisher'"):
        blip.load_state_dict(state)
    with pytest.raises(ValueError, match="must be a state dict of a BLIP"):
        blip.load_state_dict({"format": 1})


def test_a_module_can_be_watched_by_name_and_wrapped_names_are_known(guard: str) -> None:
    model = Net()
    assert set(BLIP(model, watch="backbone").frozen_bits()) == {
        f"backbone.{k}.{n}" for k in (0, 2) for n in ("weight", "bias")
    }
    compiled = torch.compile(model, backend="eager")
    names = [name for name, _ in compiled.named_parameters()]
    assert set(BLIP(compiled, watch=names).frozen_bits()) == {name for name, _ in model.named_parameters()}


def test_layers_without_entries(guard: str) -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 0), nn.Linear(0, 3))
    blip = BLIP(model, **GUARDS[guard])
    blip.consolidate([torch.randn(5, 4)])
    assert 0 < blip.capacity() < 1
    with pytest.raises(ValueError, match="has no values yet"):
        BLIP(nn.LazyLinear(3))


def test_a_wrong_rule_shows_in_the_small_entries_too() -> None:
    """The weight is also used outside its module, where only one column of small gradients tells."""
    layer = nn.Linear(4, 3)
    x = torch.randn(6, 4)
    x[:, 0] *= 300

    def forward(batch: torch.Tensor) -> torch.Tensor:
        return layer(batch) + batch[:, 1:2] * layer.weight[:, 1]

    assert "disagrees with autograd" in explain(layer, [x], forward)["weight"]


def test_consolidate_within_inference_mode(guard: str) -> None:
    model, task = Net(), make_task(0)
    blip = BLIP(model, **GUARDS[guard])
    with torch.inference_mode():
        blip.consolidate([task])
    assert blip.tasks == 1
