"""Names that commands know."""

import warnings

import pytest

from bitfreeze.lab.data import datasets
from bitfreeze.lab.methods import methods
from bitfreeze.lab.nets import networks
from bitfreeze.lab.registry import Registry, look_up
from bitfreeze.lab.results.figures.registry import figures
from bitfreeze.lab.streams import streams
from bitfreeze.lab.sweeps import engines


@pytest.mark.parametrize(
    ("registry", "name", "sentence"),
    [
        (streams, "digit5", "there is no stream 'digit5': did you mean digits5"),
        (methods, "blib", "there is no method 'blib': did you mean blip"),
        (networks, "alexnte", "there is no network 'alexnte': did you mean alexnet"),
        (figures, "matrx", "there is no figure 'matrx': did you mean matrix"),
        (engines, "loca", "there is no engine 'loca': did you mean local"),
        (datasets, "Fashion-MNIST", "there is no dataset 'Fashion-MNIST': did you mean fashion_mnist"),
        (Registry[int]("thing"), "x", "there is no thing 'x': choose from none"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(registry, name, sentence):
    before = set(registry)
    with pytest.raises(ValueError, match=sentence):
        registry[name]
    assert name not in registry
    assert registry.get(name) is None
    assert set(registry) == before


def test_names_far_from_all_known_are_answered_with_all():
    with pytest.raises(ValueError, match=r"there is no fruit 'zzz': choose from apple, pear$"):
        look_up("fruit", "zzz", {"pear": 1, "apple": 2})
    assert look_up("fruit", "pear", {"pear": 1}) == 1


def test_a_name_that_is_registered_twice_is_a_warning_unless_it_is_the_same_entry():
    registry: Registry[object] = Registry("thing")
    one, other = object(), object()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.register("a", one) is one
        registry.register("a", one)
        registry.register("b", other)
    with pytest.warns(UserWarning, match="the thing 'a' is registered twice: give one of them another name"):
        registry.register("a", other)
    assert dict(registry) == {"a": other, "b": other}
