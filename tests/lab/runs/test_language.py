"""Runs of language models: what is known is tested but not trained, losses are right, and runs can be cut off."""

import pytest

from bitfreeze.lab import figure, table
from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.results.stored import read_runs
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.events import LossResult
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.training import nats
from support.cut_off import Cut, cut_after
from support.pretrained import take_as_they_are, write_language

pytestmark = pytest.mark.filterwarnings("ignore:stories15m", "ignore:texts")
SMALL = ["stream.length=16", "stream.train=24", "stream.base=8", "stream.test=8", "stream.tasks=3"]
ABLE = [name for name, method in methods.items() if "language" in method.record.trainers]


@pytest.fixture(autouse=True)
def made(tmp_path, monkeypatch):
    root = tmp_path / "data"
    root.mkdir()
    take_as_they_are(root, monkeypatch)
    write_language(root)


def small(method, *changes):
    return make_config("text5", method, changes=[*SMALL, *changes])


def opened():
    stream = make_stream("text5", length=16, train=24, base=8, test=8, tasks=3)
    return stream, build_network({"kind": "stories15m"}, stream.shape, [task.classes for task in stream.tasks])


def test_the_loss_is_the_mean_of_minus_log_p_over_all_tokens():
    stream, net = opened()
    method, task = make_method("ft", {}), stream.tasks[1]
    method.build(net, stream.tasks)
    split, total = stream.load(task).test, 0.0
    for row, labels in zip(split.x, split.y, strict=True):
        odds = net(row[None], 1)[0].double().softmax(-1)
        total -= sum(odds[k, label].log().item() for k, label in enumerate(labels))
    assert nats(method, net, task, split, batch=3) == pytest.approx(total / split.y.numel(), rel=1e-5)


@pytest.mark.parametrize("method", ABLE)
def test_what_is_known_is_tested_before_anything_is_trained(method, tmp_path):
    result = run(small(method), tmp_path)
    assert isinstance(result, LossResult)
    stream, net = opened()
    plain = make_method("ft", {})
    plain.build(net, stream.tasks)
    before = [nats(plain, net, task, stream.load(task).test, 8) for task in stream.tasks]
    assert result.before == pytest.approx(before, rel=1e-5)
    assert result.after_learning[0] == result.before[0]
    assert len(result.final) == 3


@pytest.mark.parametrize("method", ["blip", "er", "lora", "osf", "kl"])
def test_a_run_that_is_cut_off_goes_on_to_the_same_bytes(method, tmp_path):
    config = small(method)
    run(config, tmp_path / "whole")
    for k in range(4):
        try:
            run(
                config, tmp_path / "parts", listeners=[cut_after(1, "task" if k % 2 else "epoch")], checkpoint_seconds=0
            )
            break
        except Cut:
            pass
    whole, parts = ((tmp_path / side / config.name / "loss.csv").read_bytes() for side in ("whole", "parts"))
    assert whole == parts
    results = [read_runs([tmp_path / side / config.name / "config.toml"])[0].result for side in ("whole", "parts")]
    assert results[0].before == results[1].before


def test_the_table_has_losses_of_the_base_and_of_each_text(tmp_path):
    for method in ("ft", "blip"):
        run(small(method), tmp_path)
    found = table("text5", root=tmp_path)
    row = next(row for row in found.rows if row["method"] == "ft")
    final = [row[f"final {name}"] for name in ("stories", "Shakespeare", "Wikipedia")]
    assert row["loss"] == pytest.approx(sum(final) / 3, abs=1e-4)
    assert row["base"] == final[0]
    assert row["base_rise"] == pytest.approx(final[0] - row["before stories"], abs=2e-4)
    assert row["new"] == pytest.approx((row["learned Shakespeare"] + row["learned Wikipedia"]) / 2, abs=1e-4)
    assert "| stories | Shakespeare | Wikipedia |" in str(found)
    (base, new), other = (row["base_rise"], row["new"]), "tradeoff shows accuracies, and these are runs of texts"
    assert f"ft: {base:+.3f} against {new:.3f}" in figure("skills", "text5", root=tmp_path).words
    with pytest.raises(ValueError, match=other):
        figure("tradeoff", "text5", root=tmp_path)
    assert "AdamW lr 3e-05, batch 8, 1 epochs of 24 windows of 16 tokens a task" in row["protocol"]


def test_methods_without_a_part_in_language_are_refused():
    with pytest.raises(ValueError, match="hat has no part in language learning"):
        small("hat")
    with pytest.raises(ValueError, match="no setting of stream 'scenario'"):
        small("ft", "stream.scenario=class")


def test_what_blip_holds_changes_less(tmp_path):
    """A made model knows nothing, so any training changes its loss on the base."""
    changes = {}
    for method, own in (("ft", []), ("blip", ["method.tolerance=0.001"])):
        result = run(small(method, "training.lr=0.02", *own), tmp_path)
        changes[method] = abs(result.final[0] - result.before[0])
    assert changes["blip"] < 0.3 * changes["ft"]
