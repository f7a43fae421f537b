"""A published Llama in Transformers against the laboratory's own network and tokenizer."""

import random
import sys

import pytest

pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")

import torch

from bitfreeze.lab.data import PretrainedLlama, Tokenizer
from bitfreeze.lab.nets import pretrained_llama, transformers_llama
from support.tiny_llama import SHAPE, tiny_pieces, tiny_weights, words


def published(shape=SHAPE, tokens=None):
    pieces, scores = zip(*tiny_pieces()[:tokens], strict=True)
    return PretrainedLlama(shape, tiny_weights(shape), Tokenizer(pieces, scores))


@pytest.mark.parametrize("shape", [SHAPE, SHAPE._replace(width=24, heads=3, key_heads=3, layers=3)])
def test_logits_are_those_of_the_laboratory(shape):
    made = published(shape)
    tokens = torch.randint(shape.vocabulary, (3, 20), generator=torch.Generator().manual_seed(0))
    own = pretrained_llama(made)
    model, _ = transformers_llama(made)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, own.scores(own(tokens)), rtol=1e-4, atol=1e-4)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training


def test_a_saved_folder_gives_the_same_model_and_tokenizer(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = transformers_llama(published())
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tokens = tokenizer("the cat sat", return_tensors="pt")["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path)("the cat sat")["input_ids"] == tokens[0].tolist()
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits, model(tokens).logits)


def test_tokens_are_those_of_the_laboratory_and_texts_come_back():
    made = published()
    _, tokenizer = transformers_llama(made)
    drawn = random.Random(0)
    letters = "".join(drawn.choice("thecasn  \n\tÄ😀z") for _ in range(500))
    for text in (words(50, 0), letters, " ", "  the", "the\nhat"):
        assert tokenizer(text)["input_ids"] == made.tokenizer.encode(text), text
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_another_tokenizer_is_refused():
    with pytest.raises(ValueError, match=rf"the model's {SHAPE.vocabulary} tokens, got 270; use the one that"):
        transformers_llama(published(tokens=270))


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the extra 'transformers': pip install -e"):
        transformers_llama(published())
