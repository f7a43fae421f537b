"""Five kinds of text: windows, what is known already, and what is held out."""

import pytest
import torch

from bitfreeze.lab.data import BEGIN, DataMissing, load_stories15m
from bitfreeze.lab.nets import pretrained_llama
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.streams.text5 import EASY, windows
from support.pretrained import take_as_they_are, write_language
from support.tiny_llama import SHAPE, write_llama

pytestmark = pytest.mark.filterwarnings("ignore:stories15m", "ignore:texts")


@pytest.fixture
def made(tmp_path, monkeypatch):
    take_as_they_are(tmp_path, monkeypatch)
    write_language(tmp_path)


def small(**options):
    return make_stream("text5", length=16, train=40, base=12, test=8, **options)


def test_windows_do_not_overlap_and_leave_out_the_end():
    assert windows(torch.arange(11), 4).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_stories_are_known_and_come_first(made):
    stream = small()
    assert [task.name for task in stream.tasks] == [
        "stories", "Shakespeare", "Wikipedia", "leaflets", "German captions", "Python",
    ]  # fmt: skip
    assert [task.known for task in stream.tasks] == [True] + [False] * 5
    assert {task.classes for task in stream.tasks} == {SHAPE.vocabulary}


def test_labels_are_the_next_tokens_and_batches_are_tokens_as_they_are(made):
    stream = small()
    for task in stream.tasks:
        data = stream.load(task)
        assert [len(part) for part in (data.train, data.valid, data.test)] == [40 if task.index else 12, 8, 8]
        x, y = data.train.take(torch.tensor([3, 1]))
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(x[:, 1:], y[:, :-1])
        assert torch.equal(x, data.train.x[[3, 1]])


def test_no_window_serves_two_purposes(made, monkeypatch):
    """With tokens that are numbered, a window tells its place in the text."""
    from bitfreeze.lab.data import Tokenizer

    counted = iter(range(10**9))
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: [next(counted) for _ in text])
    stream = small()
    for task in stream.tasks:
        data = stream.load(task)
        starts = [set(part.x[:, 0].tolist()) for part in (data.train, data.valid, data.test)]
        assert sum(map(len, starts)) == len(set.union(*starts)) == len(data.train) + 16
        if task.index:
            assert max(starts[0]) < min(starts[1]) <= max(starts[1]) < min(starts[2])
        else:
            assert max(starts[1] | starts[2]) < min(starts[0])
            assert max(starts[1] | starts[2]) - min(starts[1] | starts[2]) <= EASY


def test_tuning_never_looks_at_what_is_tested(made):
    stream, tuned = small(), small(tuning=True)
    for task in stream.tasks:
        whole, part = stream.load(task), tuned.load(task)
        rows = {tuple(row) for row in whole.test.x.tolist()}
        assert not any(torch.equal(part.test.x, other) for other in (whole.test.x,))
        assert not rows & {tuple(row) for row in part.train.x.tolist()} or task.index  # short made texts repeat words
        if task.known:
            assert torch.equal(part.test.x, whole.valid.x)
        else:
            assert len(part.train) + len(part.test) == 40


def test_the_base_may_be_what_the_model_writes_itself(made):
    stream, own = small(), small(base_text="own")
    real, written = stream.load(stream.tasks[0]), own.load(own.tasks[0])
    assert written.train.x.shape == real.train.x.shape
    short = make_stream("text5", length=8, train=40, base=12, test=8, base_text="own")
    begins = (short.load(short.tasks[0]).train.x[:, 0] == BEGIN).tolist()
    assert any(begins)
    assert not all(begins)  # because windows for tests begin anywhere in a story
    assert torch.equal(written.test.x, real.test.x)
    assert torch.equal(written.train.x, small(base_text="own").load(own.tasks[0]).train.x)


def test_texts_are_drawn_from_the_model(made):
    """First tokens of many texts against the model's own odds."""
    model = pretrained_llama(load_stories15m())
    texts = model.write(4000, 2, torch.Generator().manual_seed(0))
    odds = model.scores(model(torch.tensor([[BEGIN]])))[0, 0].softmax(-1).detach()
    found = texts[:, 1].bincount(minlength=len(odds)) / 4000
    assert (found - odds).abs().sum() < 2 * (2 * odds * (1 - odds) / (torch.pi * 4000)).sqrt().sum()


def test_another_seed_draws_other_windows(made):
    first, second = (small(seed=seed) for seed in (0, 1))
    task = first.tasks[1]
    assert torch.equal(first.load(task).train.x, small().load(task).train.x)
    assert not torch.equal(first.load(task).train.x, second.load(task).train.x)


def test_bad_input_is_told(tmp_path, monkeypatch):
    take_as_they_are(tmp_path, monkeypatch)
    with pytest.raises(DataMissing, match="run `bitfreeze data get stories15m`"):
        small()
    write_llama(tmp_path)
    stream = small()
    with pytest.raises(DataMissing, match="run `bitfreeze data get texts`"):
        stream.load(stream.tasks[0])
    with pytest.raises(ValueError, match=r"stream.length must be at least 8, got 3"):
        make_stream("text5", length=3)
