"""Fine-tune a language model with LoRA and keep what it knows: the text that the model writes itself stands for that.

    pip install -e ".[peft]"
    python examples/finetune_lora.py my-base-model my-text.txt --tolerance 0.05

`my-base-model` is a folder of Transformers or a name on the hub, `my-text.txt` has a text on each line. What is
measured is kept in `base.safetensors` and used again. Printed are nats a token on the new text and on text of the base,
before and after. `--free` trains without protection, to compare.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

import bitfreeze
from bitfreeze.integrations.peft import hold_adapters
from bitfreeze.integrations.transformers import likelihood, own_text


@torch.no_grad()
def nats(model, batches):
    """Mean loss a predicted token."""
    loss = count = 0.0
    for batch in batches:
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        tokens = (labels[:, 1:] != -100).sum().item()
        loss, count = loss + tokens * model(**{**batch, "labels": labels}).loss.item(), count + tokens
    return loss / count


def run(name, text, tolerance=0.05, free=False, file="base.safetensors", samples=128, length=64, epochs=3, lr=2e-3):
    if not Path(text).exists():
        raise SystemExit(f"{text} is missing; give a file with a text on each line")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        base = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{name} must be a folder of Transformers or a name on the hub, got neither: {error}"
        ) from None
    tokens = [tokenizer(line, truncation=True, max_length=length) for line in Path(text).read_text().splitlines()]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    held_out = [
        collate(tokens[k : k + 16]) for k in range(0, len(tokens) // 5, 16)
    ]  # the first fifth is not trained on
    measured, base_text = (own_text(base, samples, length, seed=seed) for seed in (0, 1))
    before = nats(base, held_out), nats(base, base_text)

    if not Path(file).exists():
        blip = bitfreeze.protect(base, measured, lambda batch: likelihood(base, batch), watch=base.model.layers)
        bitfreeze.save_protection(blip, file)
    model = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear"))
    held = None if free else hold_adapters(model, file, tolerance=tolerance)
    arguments = TrainingArguments(
        "my-adapter",
        num_train_epochs=epochs,
        learning_rate=lr,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
    )
    Trainer(model, arguments, train_dataset=tokens[len(tokens) // 5 :], data_collator=collate).train()
    after = nats(model.eval(), held_out), nats(model, base_text)
    print(
        f"new text {before[0]:.2f} -> {after[0]:.2f}, text of the base {before[1]:.2f} -> {after[1]:.2f} nats a token"
    )
    if held is not None:
        print(f"estimated cost {held.drift():.3f} nats a token")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--free", action="store_true")
    options = parser.parse_args()
    run(options.model, options.text, options.tolerance, options.free)
