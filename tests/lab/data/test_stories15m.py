"""The reader of stories15M, on a tiny file of the same format."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bitfreeze.lab.data import DataCorrupt, DataMissing, load_stories15m, stories15m
from bitfreeze.lab.data.stories15m import FILE, STORIES15M, read_llama
from bitfreeze.lab.data.tokenizer import FIRST_PIECE
from support.tiny_llama import SHAPE, llama_file, tiny_pieces, tiny_weights, write_llama


@pytest.fixture
def made(tmp_path, monkeypatch):
    files = tuple(replace(file, digest=None) for file in STORIES15M.files)
    monkeypatch.setattr(stories15m, "STORIES15M", replace(STORIES15M, files=files))
    write_llama(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:stories15m")
def test_shape_weights_and_tokenizer_are_read(made):
    found = load_stories15m(made)
    assert found.shape == SHAPE
    for kind, values in tiny_weights().items():
        assert torch.equal(found.weights[kind], values), kind
    assert found.tokenizer.ids == {piece: k for k, (piece, _) in enumerate(tiny_pieces()) if k >= FIRST_PIECE}
    assert found.tokenizer.scores == [score for _, score in tiny_pieces()]


def test_other_weights_are_refused(tmp_path):
    write_llama(tmp_path)
    with pytest.raises(DataCorrupt, match=r"its digest must be .* run `bitfreeze data get stories15m`"):
        load_stories15m(tmp_path)


def test_missing_weights_name_the_command_that_gets_them(tmp_path):
    with pytest.raises(DataMissing, match=r"stories15m needs llama2.data .* run `bitfreeze data get stories15m`"):
        load_stories15m(tmp_path)


@pytest.mark.parametrize("kept", [0, 20, 3000, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path, kept):
    (tmp_path / FILE).write_bytes(llama_file()[:kept])
    with pytest.raises(DataCorrupt, match=r"holds no Llama with its tokenizer"):
        read_llama(tmp_path / FILE)


@pytest.mark.parametrize("change", [{"width": -1}, {"key_heads": 1}, {"heads": 5, "key_heads": 5}, {"vocabulary": 100}])
def test_a_header_that_cannot_be_is_refused(tmp_path, change):
    header = np.array(SHAPE._replace(**change), "<i4").tobytes()
    (tmp_path / FILE).write_bytes(header + llama_file()[28:])
    with pytest.raises(DataCorrupt, match=r"holds no Llama with its tokenizer"):
        read_llama(tmp_path / FILE)
