"""Kinds of training: whatever names one names one that is there, and a record holds together."""

from itertools import chain

import pytest

from bitfreeze.lab.methods import methods
from bitfreeze.lab.nets import networks
from bitfreeze.lab.runs.kinds import kind_of, kinds
from bitfreeze.lab.streams import streams


def test_streams_networks_and_methods_name_kinds_that_are_there():
    named = {
        *(stream.trainer for stream in streams.values()),
        *(network.trainer for network in networks.values()),
        *chain.from_iterable(method.record.trainers for method in methods.values()),
    }
    assert named == set(kinds) == {"supervised", "language", "reinforcement"}
    assert {name for name in streams if kind_of(name).matrix == "score"} == {"atari6", "control"}
    assert {name for name in streams if kind_of(name).matrix == "loss"} == {"text5"}


@pytest.mark.parametrize("kind", kinds.values(), ids=lambda kind: kind.name)
def test_the_columns_of_a_kind_are_all_computed_and_each_named_once(kind):
    names = [column.name for column in kind.columns]
    assert len(set(names)) == len(names)
    assert kind.compared_by in names
    assert all((column.of_run is None) != (column.among is None) for column in kind.columns)
    titles = [column.summary[0] for column in kind.columns if column.summary is not None]
    assert len(set(titles)) == len(titles)
