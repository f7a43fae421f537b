"""Adapters inside PEFT, on tiny models made from scratch."""

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="the extra 'peft' is not installed")

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from bitfreeze import Rules, protect, save_protection
from bitfreeze.blip.held_tensor import radius_of
from bitfreeze.blip.protecting import read_protection
from bitfreeze.blip.protection import loaded_turning
from bitfreeze.integrations.peft import hold_adapters
from bitfreeze.integrations.transformers import likelihood, own_text

WORDS = 24
TOLERANCE = 0.004  # the second text contradicts the first, and a network of 16 units bends soon


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2)).eval()


def text(seed: int, step: int, rows: int = 16) -> Tensor:
    """Words that follow each other with a step of their own."""
    start = torch.randint(WORDS, (rows, 1), generator=torch.Generator().manual_seed(seed))
    return torch.cat([torch.ones_like(start), (start + step * torch.arange(11)) % (WORDS - 3) + 3], 1)


def nats(model: Any, step: int) -> float:
    words = text(99, step, 64)
    with torch.no_grad():
        return float(model(input_ids=words, labels=words).loss)


def train(model: Any, step: int, steps: int = 60, lr: float = 1e-2) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for k in range(steps):
        words = text(k, step)
        optimizer.zero_grad()
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def base() -> LlamaForCausalLM:
    model = llama()
    train(model, 1, steps=120)
    return model


@pytest.fixture(scope="module")
def file(base: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = copy.deepcopy(base)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]
    batches = [{"input_ids": text(500 + k, 1)} for k in range(8)]
    blip = protect(model, batches, lambda batch: likelihood(model, batch), watch=layers, tolerance=TOLERANCE)
    path = tmp_path_factory.mktemp("protection") / "base.safetensors"
    save_protection(blip, path)
    return path


def adapted(base: Any, **settings: Any) -> Any:
    torch.manual_seed(1)
    return get_peft_model(copy.deepcopy(base), LoraConfig(**{"r": 4, "target_modules": "all-linear", **settings}))


def merged_change(model: Any, base: Any, name: str) -> Tensor:
    """By brute force: the weight of a copy in which PEFT itself has merged the adapters, less that of the base."""
    merged = copy.deepcopy(model).merge_and_unload()
    return merged.get_parameter(name).detach().double() - base.get_parameter(name).detach().double()


def assert_inside(model: Any, base: Any, file: Path, width: float) -> None:
    table = read_protection(file)
    prior = table["prior"] * table["settings"]["tolerance"]
    for name, saved in table["directions"].items():
        turning = loaded_turning(saved)
        change = turning.outputs[0].double().T @ merged_change(model, base, name) @ turning.inputs[0].double()
        radius = radius_of(turning.fisher[0].double(), prior * width**2)
        assert (change.abs() <= radius * 1.001 + 1e-6).all(), name


def test_adapters_cost_the_base_little_and_merged_weights_lie_in_their_intervals(base: Any, file: Path) -> None:
    before = nats(base, 1), nats(base, 5)
    plain, model = adapted(base), adapted(base)
    held = hold_adapters(model, file)
    for each in (plain, model):
        train(each, 5)
    rises = [nats(each.eval(), 1) - before[0] for each in (plain, model)]
    assert rises[0] > 3
    assert rises[1] < 0.2
    assert nats(model, 5) < before[1] - 1
    assert held.drift() <= TOLERANCE * 1.02
    assert_inside(model, base, file, held.widening.width)


def test_a_blip_of_the_base_will_do(base: Any) -> None:
    model = copy.deepcopy(base)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]
    batches = [{"input_ids": text(500 + k, 1)} for k in range(8)]
    blip = protect(model, batches, lambda batch: likelihood(model, batch), watch=layers)
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    held = hold_adapters(wrapped, blip, tolerance=0.01)
    assert len(held.layers) == 4
    train(wrapped, 5, 10)
    assert 0 < held.drift() <= 0.01 * 1.02


def test_float32_adapters_on_a_base_in_half_precision(base: Any, tmp_path: Path) -> None:
    """The base is measured in float32 and used in bfloat16: the same weights."""
    half = copy.deepcopy(base).bfloat16()
    measured = copy.deepcopy(half).float()
    layers = [name for name, layer in measured.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]
    batches = [{"input_ids": text(500 + k, 1)} for k in range(8)]
    save_protection(
        protect(measured, batches, lambda batch: likelihood(measured, batch), watch=layers), tmp_path / "base.pt"
    )
    model = adapted(half)
    held = hold_adapters(model, tmp_path / "base.pt")
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    train(model, 5, 20)
    assert 0 < held.drift() <= 0.05 * 1.02
    low = get_peft_model(
        copy.deepcopy(half), LoraConfig(r=2, target_modules="all-linear"), autocast_adapter_dtype=False
    )
    with pytest.raises(TypeError, match=r"adapters must be float32, got bfloat16 on 'model.layers.0.self_attn.q_proj'"):
        hold_adapters(low, tmp_path / "base.pt")


def test_several_adapters_in_turn_kept_apart_and_together(base: Any, file: Path) -> None:
    model = adapted(base)
    held = hold_adapters(model, file)
    train(model, 5, 30)
    first = held.drift()
    model.add_adapter("second", LoraConfig(r=4, target_modules="all-linear"))
    model.set_adapter("second")
    assert held.drift() == 0  # B = 0: nothing has changed
    train(model, 7, 30)
    assert held.drift() <= TOLERANCE * 1.02
    assert nats(model.eval(), 1) - nats(base, 1) < 0.2
    model.set_adapter("default")
    assert held.drift() == pytest.approx(first, rel=1e-3)  # the first is as it was left
    with model.disable_adapter():
        assert held.drift() == 0
    # the second on top of the first, which stays: the sum is held
    model.base_model.set_adapter(["default", "second"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name and "second" in name)
    before = {name: p.clone() for name, p in model.named_parameters() if "default" in name}
    held.clamp_()
    train(model, 7, 10)
    assert held.drift() <= TOLERANCE * 1.02
    assert all(torch.equal(dict(model.named_parameters())[name], p) for name, p in before.items())
    assert nats(model.eval(), 1) - nats(base, 1) < 0.2


def test_merged_adapters_count_and_stay(base: Any, file: Path) -> None:
    model = adapted(base)
    held = hold_adapters(model, file)
    train(model, 5, 20)
    drift = held.drift()
    model.merge_adapter()
    assert held.drift() == pytest.approx(drift, rel=1e-3)
    held.clamp_()
    model.unmerge_adapter()
    assert held.drift() == pytest.approx(drift, rel=1e-3)


def test_after_merging_for_good_the_model_is_protected_anew(base: Any, file: Path) -> None:
    """Two adapters in turn, each merged: the base is kept, and so is what the first one learned."""
    model = adapted(base)
    held = hold_adapters(model, file)
    train(model, 5, 60)
    model = model.merge_and_unload().eval()
    learned = nats(model, 5)
    with pytest.raises(ValueError, match=r"must belong to these weights, got one that was measured on others"):
        hold_adapters(get_peft_model(copy.deepcopy(model), LoraConfig(target_modules="all-linear")), file)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]
    batches = [{"input_ids": text(500 + k, 1 if k % 2 else 5)} for k in range(16)]
    blip = protect(model, batches, lambda batch: likelihood(model, batch), watch=layers, tolerance=TOLERANCE)
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    held = hold_adapters(wrapped, blip)
    train(wrapped, 7, 60)
    assert held.drift() <= TOLERANCE * 1.02
    assert nats(wrapped.eval(), 1) - nats(base, 1) < 0.2
    assert nats(wrapped, 5) - learned < 0.2


def test_convolutions_have_adapters_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    blip = protect(net, [torch.randn(64, 3, 8, 8)], rules=Rules.directions(strongest=4))
    model = get_peft_model(net, LoraConfig(r=2, target_modules=["0", "2"]))
    held = hold_adapters(model, blip, tolerance=0.01)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 3, 8, 8)), torch.zeros(16).long()).backward()
        optimizer.step()
    assert 0 < held.drift() <= 0.01 * 1.02


# what is refused


def test_adapters_of_gpt2_cost_what_their_merged_weights_do(tmp_path: Path) -> None:
    """GPT-2's layers keep their weights as [inputs, outputs]."""
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    plain = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    train(plain, 1, steps=20)
    batches = [{"input_ids": text(500 + k, 1)} for k in range(4)]
    rules = Rules.directions(strongest=8)
    measured = copy.deepcopy(plain)
    blip = protect(measured, batches, lambda batch: likelihood(measured, batch), rules=rules, tolerance=TOLERANCE)
    save_protection(blip, tmp_path / "base")
    targets = ["c_attn", "c_fc"]
    model = get_peft_model(copy.deepcopy(plain), LoraConfig(r=4, target_modules=targets, fan_in_fan_out=True))
    held = hold_adapters(model, tmp_path / "base")
    train(model, 2, steps=20)
    held.clamp_()
    cost = held.drift()
    assert 0 < cost <= 1.1 * TOLERANCE
    merged = copy.deepcopy(plain)
    again = protect(merged, tmp_path / "base")
    merged.load_state_dict(model.merge_and_unload().state_dict())
    assert again.drift() == pytest.approx(cost, rel=0.1)


def test_adapters_that_cannot_be_held_are_refused(base: Any, file: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model must be a PeftModel, got LlamaForCausalLM; pass what get_peft_model"):
        hold_adapters(copy.deepcopy(base), file)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        hold_adapters(adapted(base), tmp_path / "none.pt")
    for settings, told in (
        ({"target_modules": ["q_proj", "embed_tokens"]}, "got one on 'model.embed_tokens'; leave it out of"),
        ({"target_modules": ["q_proj", "lm_head"]}, "got one on 'lm_head'; leave it out of target_modules"),
        ({"use_dora": True}, "adapters must be plain LoRA, got DoRA or a bias on"),
        (
            {"target_modules": ["q_proj"], "modules_to_save": ["k_proj"]},
            r"got 'model.layers.0.self_attn.k_proj.weight'",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            hold_adapters(adapted(base, **settings), file)
    other = copy.deepcopy(base)
    with torch.no_grad():
        other.model.layers[0].self_attn.q_proj.weight[0, 0] += 1e-5
    with pytest.raises(
        ValueError, match=r"must belong to these weights.*'model.layers.0.self_attn.q_proj.weight' differs"
    ):
        hold_adapters(adapted(other), file)


# adapters and parameters that come later or beside


def test_an_adapter_on_other_layers_is_held_as_soon_as_it_is_trained(base: Any, file: Path) -> None:
    before = nats(base, 1)
    model = adapted(base, target_modules=["q_proj"])
    held = hold_adapters(model, file)
    model.add_adapter("second", LoraConfig(r=4, target_modules=["v_proj", "down_proj", "gate_proj", "up_proj"]))
    model.set_adapter("second")
    train(model, 5)
    assert nats(model.eval(), 1) - before < 0.5  # 4.8 without the hold
    assert 0 < held.drift() <= TOLERANCE * 1.02


def test_a_later_adapter_that_cannot_be_held_is_refused_before_its_first_step(base: Any, file: Path) -> None:
    model = adapted(base, target_modules=["q_proj"])
    held = hold_adapters(model, file)
    model.add_adapter("second", LoraConfig(r=4, target_modules=["lm_head"]))
    model.set_adapter("second")
    with pytest.raises(
        ValueError, match=r"adapters must be on layers that the protection holds .* got one on 'lm_head'"
    ):
        train(model, 5, steps=1)
    assert held.drift() == 0


def test_trained_parameters_that_are_no_adapters_are_told(base: Any, file: Path) -> None:
    model = adapted(base, modules_to_save=["lm_head"], target_modules=["q_proj"])
    with pytest.warns(UserWarning, match="trained that are no held adapters: lm_head.weight; what they cost the base"):
        hold_adapters(model, file)


def test_adapters_that_nothing_holds_any_more_are_told(base: Any, file: Path) -> None:
    model = adapted(base)
    hold_adapters(model, file)
    with pytest.warns(UserWarning, match="whose BLIP is gone, .*hold_adapters.* returned in a variable"):
        train(model, 5, steps=2)


def test_adapters_are_let_go_without_a_warning(base: Any, file: Path) -> None:
    model = adapted(base)
    held = hold_adapters(model, file)
    held.detach()
    del held
    train(model, 5, steps=2)


@pytest.mark.parametrize("tolerance", [0, -1.0, "0.05"])
def test_a_tolerance_that_is_none_is_refused(base: Any, file: Path, tolerance: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"tolerance must be .*above 0, in nats a sample, got"):
        hold_adapters(adapted(base), file, tolerance=tolerance)


def test_a_base_that_was_rounded_is_told_apart_from_another(base: Any, file: Path) -> None:
    with pytest.raises(
        ValueError, match="weight' in bfloat16; if the model was measured in float32, these are rounded"
    ):
        hold_adapters(adapted(copy.deepcopy(base).bfloat16()), file)


@pytest.mark.parametrize("words", [WORDS, WORDS + 6])
def test_a_base_with_another_vocabulary_is_refused(base: Any, file: Path, words: int) -> None:
    other = copy.deepcopy(base)
    other.resize_token_embeddings(words)
    if words == WORDS:
        with torch.no_grad():
            other.get_input_embeddings().weight.copy_(base.get_input_embeddings().weight.flip(0))
    sentence = "must be of a model with these input embeddings, got one with others: another tokenizer"
    with pytest.raises(ValueError, match=sentence):
        hold_adapters(adapted(other), file)
    with pytest.raises(ValueError, match=sentence):
        protect(other, file)


# text of its own


def test_own_text_is_drawn_from_the_model(base: Any) -> None:
    """Frequencies of the second word are those that the model gives, and seeds and modes are kept."""
    model = copy.deepcopy(base).train()
    state = torch.get_rng_state()
    batches = own_text(model, samples=2400, length=3, batch=200)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    words = torch.cat([batch["input_ids"] for batch in batches])
    assert words.shape == (2400, 3)
    with torch.no_grad():
        odds = base(input_ids=torch.tensor([[1]])).logits[0, -1].softmax(-1)
    beginnings = words[words[:, 0] == 1]
    found = torch.bincount(beginnings[:, 1], minlength=WORDS) / len(beginnings)
    assert (found - odds).abs().max() < 0.06
    again = torch.cat([batch["input_ids"] for batch in own_text(model, samples=2400, length=3, batch=200)])
    assert torch.equal(again, words)


def test_samples_are_cut_from_texts_of_four(base: Any) -> None:
    model = copy.deepcopy(base)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    words = torch.cat([batch["input_ids"] for batch in own_text(model, samples=60, length=4)])
    assert words.shape == (60, 4)
    assert (words[::4, 0] == 1).all()
    assert (words[1::4, 0] != 1).any()


def test_a_text_that_ends_is_masked_behind_its_end() -> None:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[2] = 30 * model.lm_head.weight[2]
    rows = 0
    for batch in own_text(model, samples=32, length=8):
        for words, mask in zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True):
            end = words.index(2) if 2 in words else len(words) - 1
            assert mask == [1] * (end + 1) + [0] * (len(words) - end - 1)
            rows += 1
    assert rows == 32


def test_text_that_cannot_be_written_is_refused(base: Any) -> None:
    with pytest.raises(ValueError, match="length must be from 2 to 16, which is what the model reads, got 17"):
        own_text(base, length=17)
    model = copy.deepcopy(base)
    model.config.bos_token_id = None
    with pytest.raises(ValueError, match="begin must be the token that a text begins with, got none"):
        own_text(model, length=4)
    with pytest.raises(ValueError, match="model must write text, got Linear"):
        own_text(nn.Linear(2, 2))
