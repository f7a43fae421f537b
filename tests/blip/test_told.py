"""Warnings about mistakes that nothing else would show: when they come, when they do not, and where they point."""

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from bitfreeze import BLIP, diagonal_fisher, protect
from bitfreeze.likelihoods import Gaussian
from support.protected_nets import GUARDS, Net, make_task, protected, shift, train_sgd

pytestmark = pytest.mark.filterwarnings("error")


@contextmanager
def told_here(sentence: str) -> Iterator[None]:
    """A warning with this sentence, and the line that it names is in this file."""
    with pytest.warns(UserWarning, match=sentence) as told:
        yield
    assert told[0].filename == __file__


# weights that the last task did not leave

OTHER_WEIGHTS = "that the last task left, got .*restore weights before you consolidate"


def to_all(blip: BLIP) -> SGD:
    return SGD(blip.model.parameters(), lr=0.0)


def to_one(blip: BLIP) -> SGD:
    blip.attach().remove()
    optimizer = SGD(blip.model.parameters(), lr=0.0)
    blip.attach(optimizer)
    return optimizer


def scheduled(blip: BLIP) -> SGD:
    """A scheduler puts a frame of its own around the optimizer's step."""
    optimizer = to_all(blip)
    StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize("make", [to_all, to_one, scheduled])
def test_weights_edited_after_a_task_are_told_once_at_the_next_step(make: Callable[[BLIP], SGD], guard: str) -> None:
    model, blip = protected(guard=guard)
    optimizer = make(blip)
    shift(model, by=1.0)
    with told_here(OTHER_WEIGHTS):
        optimizer.step()
    optimizer.step()


def test_weights_restored_from_before_a_task_are_told(guard: str) -> None:
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train_sgd(model, 0, rate=5.0)
    blip.consolidate([make_task(0)])
    model.load_state_dict(best)
    optimizer = SGD(model.parameters(), lr=0.0)
    with told_here(OTHER_WEIGHTS):
        optimizer.step()


def nothing(model: nn.Module, blip: BLIP) -> None:
    """Leave all as it is."""


def a_little(model: nn.Module, blip: BLIP) -> None:
    shift(model, by=1e-6)


def clamped(model: nn.Module, blip: BLIP) -> None:
    shift(model, by=1.0)
    blip.clamp_()


def the_same_again(model: nn.Module, blip: BLIP) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})


@pytest.mark.parametrize("act", [nothing, a_little, clamped, the_same_again])
def test_weights_inside_their_intervals_are_nothing_to_tell(act: Callable[[nn.Module, BLIP], None], guard: str) -> None:
    model, blip = protected(guard=guard)
    act(model, blip)
    SGD(model.parameters(), lr=0.0).step()


def test_a_step_of_another_model_does_not_look(guard: str) -> None:
    model, blip = protected(guard=guard)
    shift(model, by=1.0)
    train_sgd(Net(seed=1), 0)
    assert blip.tasks == 1


# a state that does not know all that is watched


def test_a_state_of_a_part_is_told(guard: str) -> None:
    model = Net()
    part = BLIP(model, watch=model.backbone, **GUARDS[guard])
    part.consolidate([make_task(0)])
    whole = BLIP(model, **GUARDS[guard])
    with told_here(r"^'heads\.0\.bias' and 7 more is watched here and not in the state, so it is not protected yet"):
        whole.load_state_dict(part.state_dict())


def test_a_state_of_all_that_is_watched_is_nothing_to_tell(guard: str) -> None:
    model, blip = protected(guard=guard)
    BLIP(model, **GUARDS[guard]).load_state_dict(blip.state_dict())
    del model.heads[3]  # absent parameters are known too
    train_sgd(model, 1, rate=5.0)
    blip.consolidate([make_task(1)])
    BLIP(Net(), **GUARDS[guard]).load_state_dict(blip.state_dict())


def test_before_the_first_task_no_parameter_is_known(guard: str) -> None:
    model = Net()
    part = BLIP(model, watch=model.backbone, **GUARDS[guard])
    BLIP(model, **GUARDS[guard]).load_state_dict(part.state_dict())


# a task that ends twice


def test_two_ends_of_a_task_without_training_between_are_told(guard: str) -> None:
    _, blip = protected(guard=guard)
    with told_here("no watched weight has changed between the ends of tasks 1 and 2"):
        blip.consolidate([make_task(0)])


def test_training_between_two_ends_is_nothing_to_tell(guard: str) -> None:
    model, blip = protected(guard=guard)
    train_sgd(model, 1, rate=5.0)
    blip.consolidate([make_task(1)])
    assert blip.tasks == 2


# real targets beside class logits

REAL = r"forward returns class logits \[8, 3\], but the data's labels are real numbers \[8.*\]; return .*Gaussian"


def regression() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(6, 3), torch.randn(8, 6), torch.randn(8)


@pytest.mark.parametrize("shape", [(8,), (8, 1), (8, 3)])
def test_real_targets_beside_class_logits_are_told(shape: tuple[int, ...], guard: str) -> None:
    model, x, _ = regression()
    y = torch.randn(shape)
    with told_here(REAL):
        BLIP(model, **GUARDS[guard]).consolidate([(x, y)])
    with told_here(REAL):
        diagonal_fisher(model, [(x, y)])


def test_real_targets_are_told_of_softened_logits_too() -> None:
    model, x, y = regression()
    with told_here(REAL):
        BLIP(model).consolidate([(x, y)])


@pytest.mark.parametrize(
    "labels",
    [torch.arange(8) % 3, (torch.arange(8) % 3).float(), torch.rand(8, 3).softmax(-1), torch.eye(3)[[0, 1] * 4], None],
    ids=["whole", "whole floats", "probabilities", "one-hot", "none"],
)
def test_other_labels_are_nothing_to_tell(labels: Any, guard: str) -> None:
    model, x, _ = regression()
    BLIP(model, **GUARDS[guard]).consolidate([x if labels is None else (x, labels)])


def test_real_targets_of_a_regression_are_nothing_to_tell(guard: str) -> None:
    model, x, y = regression()
    BLIP(model, **GUARDS[guard]).consolidate([(x, y)], lambda x: Gaussian(model(x)[:, 0]))


# a loader that is partly used up

USED_UP = "iterator of a DataLoader that has given 1 batches already, so these are left out; pass the DataLoader"


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*make_task(0)), batch_size=8)


def test_an_iterator_that_has_given_batches_is_told(guard: str) -> None:
    model, data = Net(), iter(loader())
    next(data)
    with told_here(USED_UP):
        report = BLIP(model, **GUARDS[guard]).consolidate(data)
    assert report.samples == 24
    data = iter(loader())
    next(data)
    with told_here(USED_UP):
        diagonal_fisher(model, data)


@pytest.mark.parametrize("make", [loader, lambda: iter(loader()), lambda: iter(list(loader()))])
def test_data_that_are_whole_are_nothing_to_tell(make: Callable[[], Any], guard: str) -> None:
    model = Net()
    assert BLIP(model, **GUARDS[guard]).consolidate(make()).samples == 32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagonal_fisher(model, make())


# training that nothing clamps

UNCLAMPED = "nothing clamps them.*call blip.attach"


def detached(guard: str) -> BLIP:
    _, blip = protected(guard=guard)
    blip.attach().remove()
    return blip


def loaded(guard: str) -> BLIP:
    """A BLIP that has taken up a state, on the weights that belong to it, and was not attached."""
    model, blip = protected(guard=guard)
    other = BLIP(model, **GUARDS[guard])
    other.load_state_dict(blip.state_dict())
    blip.attach().remove()
    return other


@pytest.mark.parametrize("make", [detached, loaded])
def test_a_second_step_that_nothing_clamps_is_told_once(make: Callable[[str], BLIP], guard: str) -> None:
    blip = make(guard)
    optimizer = SGD(blip.model.parameters(), lr=0.0)
    optimizer.step()
    with told_here(UNCLAMPED):
        optimizer.step()
    optimizer.step()


def test_an_attachment_to_another_optimizer_is_told(guard: str) -> None:
    _, blip = protected(guard=guard)
    blip.attach().remove()
    attached, other = (SGD(blip.model.parameters(), lr=0.0) for _ in range(2))
    blip.attach(attached)
    other.step()
    with told_here(UNCLAMPED):
        other.step()


def test_training_before_the_first_task_is_nothing_to_tell(guard: str) -> None:
    blip = BLIP(Net())
    optimizer = SGD(blip.model.parameters(), lr=0.0)
    for _ in range(3):
        optimizer.step()


def test_clamps_between_steps_of_two_optimizers_are_nothing_to_tell(guard: str) -> None:
    blip = detached(guard)
    first, second = (SGD(blip.model.parameters(), lr=0.0) for _ in range(2))
    for _ in range(3):
        first.step()
        second.step()
        blip.clamp_()


def test_steps_of_another_model_are_nothing_to_tell(guard: str) -> None:
    blip, other = detached(guard), nn.Linear(2, 2)
    optimizer = SGD(other.parameters(), lr=0.0)
    for _ in range(3):
        optimizer.step()
    assert blip.tasks == 1


def test_a_copy_that_is_attached_is_nothing_to_tell_and_a_detached_copy_is(guard: str) -> None:
    _, blip = protected(guard=guard)
    attached = copy.deepcopy(blip)
    optimizer = SGD(attached.model.parameters(), lr=0.0)
    for _ in range(3):
        optimizer.step()
    copied = copy.deepcopy(detached(guard))
    optimizer = SGD(copied.model.parameters(), lr=0.0)
    optimizer.step()
    with told_here(UNCLAMPED):
        optimizer.step()


def test_several_yes_no_labels_beside_class_logits_are_told(guard: str) -> None:
    model, x, _ = regression()
    with told_here("labels are real numbers .*Bernoulli"):
        BLIP(model, **GUARDS[guard]).consolidate([(x, torch.tensor([[1.0, 1.0, 0.0]] * 8))])


# logits with the classes on the second axis


@pytest.mark.parametrize("kind", ["sample", "exact", "true"])
def test_classes_on_the_second_axis_are_refused(kind: str, guard: str) -> None:
    model, x, y = nn.Conv1d(2, 3, 3, padding=1), torch.randn(4, 2, 5), torch.arange(20).reshape(4, 5) % 3
    blip = BLIP(model, **GUARDS[guard])
    sentence = (
        r"logits must have the shape \[n, positions, C\], got \[4, 3, 5\] with labels \[4, 5\]; .*transpose\(1, 2\)"
    )
    with pytest.raises(ValueError, match=sentence):
        blip.consolidate([(x, y)], labels=kind)
    assert blip.tasks == 0
    blip.consolidate([(x, y)], lambda x: model(x).transpose(1, 2), labels=kind)


# a BLIP that nobody kept

GONE = "parameters are trained whose BLIP is gone, .*keep what BLIP.* returned in a variable"


def test_a_blip_that_nobody_kept_is_told_once(guard: str) -> None:
    model, blip = protected(guard=guard)
    del blip
    with told_here(GONE):
        SGD(model.parameters(), lr=0.0).step()
    SGD(model.parameters(), lr=0.0).step()


def test_a_protection_that_nobody_kept_is_told() -> None:
    model = Net()
    protect(model, [make_task(0)])
    with told_here(GONE):
        SGD(model.parameters(), lr=0.0).step()


def leave(blip: BLIP) -> None:
    blip.detach()


def remove(blip: BLIP) -> None:
    blip.attach().remove()


def end_with(blip: BLIP) -> None:
    blip.attach().remove()
    with blip.attach():
        pass


@pytest.mark.parametrize("end", [leave, remove, end_with])
def test_a_blip_that_was_detached_may_go(end: Callable[[BLIP], None], guard: str) -> None:
    model, blip = protected(guard=guard)
    end(blip)
    del blip
    SGD(model.parameters(), lr=0.0).step()


def test_a_blip_may_go_when_another_holds_the_model(guard: str) -> None:
    model, blip = protected(guard=guard)
    state = blip.state_dict()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    blip.load_state_dict(state)
    SGD(model.parameters(), lr=0.0).step()


def test_steps_of_other_parameters_are_nothing_to_tell(guard: str) -> None:
    model, blip = protected(guard=guard)
    del blip
    SGD(Net().parameters(), lr=0.0).step()
    assert model is not None


def test_a_model_that_nobody_keeps_goes_with_its_blip(guard: str) -> None:
    model, blip = protected(guard=guard)
    alive = weakref.ref(model)
    del model, blip
    gc.collect()
    assert alive() is None


def test_a_tolerance_that_was_meant_in_percent_is_told() -> None:
    with pytest.warns(UserWarning, match=r"a tolerance of 5 nats a sample is large, and no percentage"):
        BLIP(nn.Linear(2, 2), tolerance=5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_asking_what_was_lost_of_weights_that_are_not_finite_is_refused(name: str, value: float) -> None:
    model = nn.Linear(2, 2)
    blip = BLIP(model)
    blip.consolidate([torch.randn(8, 2)])
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value
    with pytest.raises(ValueError, match="weights must be finite, got NaN or infinite entries; restore"):
        blip.drift()


def test_a_warning_of_a_wrong_head_that_is_an_error_leaves_all_as_it_was() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(300, 4), torch.arange(300) % 3
    blip = BLIP(nn.Linear(4, 3))
    with pytest.raises(UserWarning, match=r"forward predicts .* hardly more than a guess; use the head of this task"):
        blip.consolidate([(x, y)])
    assert blip.tasks == 0
    assert blip.capacity() == 0


def test_masks_beside_tokens_are_no_labels_to_doubt_a_model_by() -> None:
    tokens = torch.randint(5, (300, 6))
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
    BLIP(model).consolidate([(tokens, torch.ones_like(tokens))])
