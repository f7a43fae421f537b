"""The page on fine-tuning and its example run as they are written, on a tiny model made from scratch."""

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="the extra 'peft' is not installed")

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from support.checkout import ROOT
from support.doc_blocks import run_block

PAGE = "tutorials/finetune.md"
WORDS = ["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrstu"]


def line(start: int, step: int) -> str:
    return " ".join(WORDS[3 + (start + step * k) % (len(WORDS) - 3)] for k in range(10))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that continues the alphabet, and a text in which every second letter is left out."""
    folder = tmp_path_factory.mktemp("models")
    plain = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<pad>"
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes, **tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for seed in range(80):
        starts = torch.randint(21, (32,), generator=torch.Generator().manual_seed(seed)).tolist()
        words = tokenizer([line(start, 1) for start in starts], return_tensors="pt")["input_ids"]
        optimizer.zero_grad()
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "my-base-model")
    tokenizer.save_pretrained(folder / "my-base-model")
    (folder / "my-text.txt").write_text("\n".join(line(start, 2) for start in range(60)))
    return folder


def in_short(**more: str) -> dict[str, str]:
    """Less text, and quicker."""
    return {"report_to=[]": "report_to=[], disable_tqdm=True, use_cpu=True, save_strategy='no'", **more}


def test_the_blocks_of_the_page_run_and_share_the_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    names = run_block(PAGE, "LoRA with Transformers and PEFT", in_short(**{"length=64": "length=12"}))
    assert 0 < names["held"].drift() <= 0.05 * 1.02
    assert (saved / "base.safetensors").exists()
    assert (saved / "my-adapter" / "adapter_model.safetensors").exists()
    names = run_block(PAGE, "All weights", in_short())
    assert 0 < names["blip"].drift() <= 0.05 * 1.02


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's use of torch
@pytest.mark.filterwarnings("ignore:Found . module.s. in eval mode", "ignore:The 'train_dataloader' does not have many")
def test_the_block_for_pictures_keeps_the_first_digits() -> None:
    pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
    held = run_block(PAGE, "Pictures with Lightning")
    without = {"blip.clamp_()": "", "tuned = Class": "blip._attachments[0].remove()\ntuned = Class"}
    with pytest.warns(UserWarning, match="nothing clamps them"):
        free = run_block(PAGE, "Pictures with Lightning", without)
    assert held["kept"] > 90
    assert held["learned"] > 80
    assert free["kept"] < held["kept"] - 5


def test_the_example_costs_the_base_less_than_training_freely(saved: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = runpy.run_path(str(ROOT / "examples" / "finetune_lora.py"))["run"]
    sizes = {"samples": 64, "length": 12, "epochs": 4, "lr": 5e-3}
    found = [run(saved / "my-base-model", saved / "my-text.txt", free=free, **sizes) for free in (True, False)]
    rises = [after[1] - before[1] for before, after in found]
    assert rises[0] > 0.3
    assert rises[1] < rises[0] / 3
    assert all(after[0] < before[0] for before, after in found)


def test_what_is_missing_is_named(saved: Path, tmp_path: Path) -> None:
    run = runpy.run_path(str(ROOT / "examples" / "finetune_lora.py"))["run"]
    with pytest.raises(SystemExit, match=r"none.txt is missing; give a file with a text on each line"):
        run(saved / "my-base-model", tmp_path / "none.txt")
    with pytest.raises(SystemExit, match=r"must be a folder of Transformers or a name on the hub, got neither"):
        run(str(tmp_path / "nothing"), saved / "my-text.txt")


def test_trl_is_held_as_well(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl", reason="trl is not installed")
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from trl import SFTConfig, SFTTrainer

    import bitfreeze
    from bitfreeze.integrations.peft import hold_adapters
    from bitfreeze.integrations.transformers import likelihood, own_text

    monkeypatch.chdir(saved)
    base = LlamaForCausalLM.from_pretrained(saved / "my-base-model", dtype=torch.float32)
    blip = bitfreeze.protect(
        base, own_text(base, 64, 12), lambda batch: likelihood(base, batch), watch=base.model.layers
    )
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    held = hold_adapters(model, blip, tolerance=0.02)
    text = Dataset.from_dict({"text": (saved / "my-text.txt").read_text().splitlines()})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(saved / "my-base-model")
    options = {
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "max_steps": 5,
        "learning_rate": 1e-2,
    }
    SFTTrainer(model, SFTConfig("sft", **options), train_dataset=text, processing_class=tokenizer).train()
    assert held.attachment.steps == 5
    assert 0 < held.drift() <= 0.02 * 1.02
