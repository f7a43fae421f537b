"""The callback inside the Transformers Trainer, with tiny models made from scratch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bitfreeze import BLIP, Rules, diagonal_fisher
from bitfreeze.integrations.state_file import load_state, save_state
from bitfreeze.integrations.transformers import BLIPCallback, likelihood
from support.doc_blocks import run_block
from support.protected_nets import assert_detached_after_failing, assert_inside, assert_same, entries_at_an_end

NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


def bert(kind: type, **settings: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(BertConfig(**sizes, intermediate_size=16, max_position_embeddings=8, **NO_DROPOUT, **settings))


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


def sentences(seed: int, rows: int = 24) -> list[dict[str, Tensor]]:
    """Of 3 to 6 words, padded with 0, and a label for each."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 20, (rows, 6), generator=generator)
    lengths = torch.randint(3, 7, (rows, 1), generator=generator)
    mask = (torch.arange(6) < lengths).long()
    labels = torch.randint(2, (rows,), generator=generator)
    return [{"input_ids": w * m, "attention_mask": m, "labels": y} for w, m, y in zip(words, mask, labels, strict=True)]


def train(model: Any, folder: Path, data: Any, *callbacks: Any, resume: Any = None, **options: Any) -> None:
    defaults = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 5e-2, "save_strategy": "no"}
    arguments = TrainingArguments(
        output_dir=str(folder), report_to=[], disable_tqdm=True, use_cpu=True, **{**defaults, **options}
    )
    Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks)).train(resume_from_checkpoint=resume)


def test_less_is_forgotten_with_the_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = run_block("how-to/integrations.md", "Transformers", {"callbacks=[callback]": "callbacks=[]"})
    names = run_block("how-to/integrations.md", "Transformers")
    assert max(names["learned"]) < 1  # log 24 = 3.2 is guessing
    assert plain["forgotten"] > 1.5
    assert names["forgotten"] < 0.5
    assert names["blip"].tasks == 2


class Inside(TrainerCallback):
    def __init__(self, blip: BLIP) -> None:
        self.blip, self.at_an_end = blip, 0

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        assert_inside(self.blip)
        self.at_an_end = max(self.at_an_end, entries_at_an_end(self.blip))


def test_sequence_classification_with_padding(tmp_path: Path) -> None:
    model = bert(BertForSequenceClassification)
    blip = BLIP(model.bert, budget=0.3)
    callback, inside = BLIPCallback(blip, samples=20), Inside(blip)
    for task in range(2):
        train(model, tmp_path, sentences(task), callback, inside)
        assert blip.tasks == task + 1
        assert callback.report.samples == 20
    assert inside.at_an_end > 0
    with pytest.warns(UserWarning, match="nothing clamps them"):
        train(model, tmp_path, sentences(2))
    with pytest.raises(AssertionError):
        assert_inside(blip)


def test_straight_through_rules_work_here(tmp_path: Path) -> None:
    model = bert(BertForSequenceClassification)
    blip = BLIP(model, rules=Rules.text(straight_through=True), budget=0.3)
    train(model, tmp_path, sentences(0), BLIPCallback(blip))
    assert blip.tasks == 1


# likelihoods


def batch_of(data: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in data]) for name in data[0]}


def assert_padding_says_nothing(model: Any, batch: dict[str, Tensor]) -> None:
    """Each sentence alone, cut to its length and thus without padding, has the same Fisher."""
    padded = diagonal_fisher(model, [batch], lambda x: likelihood(model, x), labels="exact")
    total: dict[str, Tensor] = {}
    for k, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        row = {name: v[k : k + 1, :length] if v.ndim > 1 else v[k : k + 1] for name, v in batch.items()}
        for name, value in diagonal_fisher(model, [row], lambda x: likelihood(model, x), labels="exact").items():
            total[name] = total.get(name, 0) + value / len(batch["input_ids"])
    for name, value in padded.items():
        torch.testing.assert_close(value, total[name], rtol=1e-3, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kind", ["next token", "token", "sequence"])
def test_padding_says_nothing(kind: str) -> None:
    batch = batch_of(sentences(0, rows=4))
    if kind != "sequence":
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    model = {
        "next token": gpt2,
        "token": lambda: bert(BertForMaskedLM),
        "sequence": lambda: bert(BertForSequenceClassification),
    }[kind]()
    assert_padding_says_nothing(model.eval(), batch)


def test_the_likelihood_of_true_labels_is_the_models_own_loss() -> None:
    batch = batch_of(sentences(0, rows=6))
    tokens = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    tokens[0, 1] = -100  # a position that is not asked for
    for model, labels, shift in (
        (gpt2(), tokens, 1),
        (bert(BertForMaskedLM), tokens, 0),
        (bert(BertForTokenClassification, num_labels=20), tokens, 0),
        (bert(BertForSequenceClassification, num_labels=3), batch["labels"], 0),
    ):
        model.eval()
        asked = {**batch, "labels": labels}
        expected = model(**asked).loss
        targets = labels[:, shift:] if labels.ndim > 1 else labels
        found = likelihood(model, asked)
        number = (targets >= 0).sum()
        torch.testing.assert_close(-found.log_prob(targets).sum() / number, expected)
        without = found.log_prob(targets.masked_fill(targets < 0, 3))  # what stands where nothing counts
        torch.testing.assert_close(without, found.log_prob(targets))


def test_regression_and_several_labels() -> None:
    batch = batch_of(sentences(0, rows=6))
    for problem, labels in (("regression", torch.randn(6, 2)), ("multi_label_classification", torch.ones(6, 2))):
        model = bert(BertForSequenceClassification, num_labels=2, problem_type=problem).eval()
        expected = model(**{**batch, "labels": labels}).loss * labels.numel()
        found = -likelihood(model, batch).log_prob(labels).sum()
        scale = 2 if problem == "regression" else 1  # the squared error has no half
        torch.testing.assert_close(found * scale, expected)


# saving


def test_a_training_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """Resumed in the midst of the second task: the same weights, bits and centres as without a break."""

    def new() -> tuple[Any, BLIP]:
        model = bert(BertForSequenceClassification)
        return model, BLIP(model, budget=0.3)

    options = {"save_strategy": "epoch", "num_train_epochs": 4}
    model, blip = new()
    train(model, tmp_path / "first", sentences(0), BLIPCallback(blip))
    train(model, tmp_path / "second", sentences(1), BLIPCallback(blip), **options)
    halfway = tmp_path / "second" / "checkpoint-6"
    for resume in ({}, {"resume_from": halfway}):
        other, fresh = new()
        folder = tmp_path / ("elsewhere" if resume else "second")
        train(other, folder, sentences(1), BLIPCallback(fresh, **resume), resume=str(halfway), **options)
        assert fresh.tasks == 2
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
        assert_same(fresh.state_dict(), blip.state_dict())


def test_a_checkpoint_without_a_state_is_named(tmp_path: Path) -> None:
    model = bert(BertForSequenceClassification)
    train(model, tmp_path, sentences(0), save_strategy="epoch")
    with pytest.raises(FileNotFoundError, match=r"checkpoint-6/blip\.safetensors does not exist; give the folder"):
        train(model, tmp_path, sentences(0), BLIPCallback(BLIP(model)), resume=str(tmp_path / "checkpoint-6"))


def test_the_state_as_a_file(tmp_path: Path) -> None:
    model = bert(BertForSequenceClassification)
    blip = BLIP(model, budget=0.3)
    train(model, tmp_path, sentences(0), BLIPCallback(blip))
    save_state(blip, tmp_path)
    assert [path.name for path in tmp_path.glob("*blip*")] == ["blip.safetensors"]
    fresh = BLIP(model, budget=0.3)
    load_state(fresh, tmp_path)
    assert_same(fresh.state_dict(), blip.state_dict())


def test_what_is_refused(tmp_path: Path) -> None:
    model = bert(BertForQuestionAnswering)
    with pytest.raises(ValueError, match=r"must be for one of .*, got BertForQuestionAnswering; give forward="):
        train(model, tmp_path, sentences(0), BLIPCallback(BLIP(model)))
    with pytest.raises(ValueError, match="must train the model that BLIP watches"):
        train(model, tmp_path, sentences(0), BLIPCallback(BLIP(gpt2())))
    several = SimpleNamespace(world_size=2)
    with pytest.raises(ValueError, match="must run in one process, got 2; start it without a launcher"):
        BLIPCallback(BLIP(model)).on_train_begin(several, SimpleNamespace(global_step=0), None, model=model)


def test_a_consolidation_that_fails_leaves_nothing_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert(BertForSequenceClassification)
    blip = BLIP(model, budget=0.3)
    callback = BLIPCallback(blip)
    train(model, tmp_path, sentences(0), callback)
    assert_detached_after_failing(blip, lambda: train(model, tmp_path, sentences(1), callback), monkeypatch)
