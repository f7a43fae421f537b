"""Protecting a small language model: `python research/protected_text.py --measure own --save own.safetensors`, then
`python research/protected_text.py --protect own.safetensors --adapters 8`.

stories15M learns Shakespeare in 60 steps of 4 x 128 tokens, all linear layers or LoRA adapters on them. Each run
appends a row to a CSV: nats a token on held-out Shakespeare and on held-out stories. Weights and files: see
pretrained_text.py.
"""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from bitfreeze import protect, save_protection
from bitfreeze.blip.adapters import HeldAdapters
from bitfreeze.blip.low_rank import Term
from bitfreeze.blip.protecting import read_protection
from bitfreeze.lab.data import load_stories15m
from bitfreeze.lab.nets.llama import Llama, pretrained_llama
from pretrained_runs import Clock, append_row
from pretrained_text import (
    BATCH,
    WINDOWS,
    Batches,
    logits,
    mean_nats,
    nats,
    own_stories,
    parameters_of,
    play_tokens,
    some,
    story_windows,
    windows,
)  # fmt: skip

STEPS, ROWS = 60, 4


class Adapted(nn.Module):
    """A layer that stays, and a low-rank change of it, with LoRA's beginning."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), 2.0
        self.down = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(rank, layer.in_features), a=5**0.5))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.scale * x @ self.down.T @ self.up.T

    def terms(self) -> list[Term]:
        return [Term(self.down.detach(), self.up.detach(), self.scale)]


def adapt(model: Llama, rank: int) -> dict[str, Adapted]:
    """Put adapters on all linear layers; by the names of their weights."""
    found = {}
    for name in parameters_of(model, "linear"):
        parent, _, attribute = name.removesuffix(".weight").rpartition(".")
        owner = model.get_submodule(parent)
        found[name] = Adapted(getattr(owner, attribute), rank)
        setattr(owner, attribute, found[name])
    return found


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Measure the base on stories, real ones or its own, and write what was found."""
    published = load_stories15m()
    model, tokenizer = pretrained_llama(published), published.tokenizer
    torch.manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)
    if options.measure == "own":
        found = own_stories(model, folder, options.seed)
    else:
        real = story_windows(folder, tokenizer)["train"]
        found = real[torch.randperm(len(real), generator=order)[:WINDOWS]]
    batches, watch = list(found[:, :-1].split(BATCH)), parameters_of(model, "linear")
    blip = protect(model, batches, partial(logits, model), watch=watch)
    save_protection(blip, options.save, strongest=options.strongest)
    print(f"{options.save}: {options.save.stat().st_size / 1e6:.1f} MB")


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    published = load_stories15m()
    model, tokenizer = pretrained_llama(published), published.tokenizer
    torch.manual_seed(options.seed)
    stories, plays = story_windows(folder, tokenizer), play_tokens(folder, tokenizer)
    held_out = {"new": some(windows(plays[options.split])), "base": stories[options.split]}
    trained = parameters_of(model, "linear")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    held: Any = None
    if options.adapters:
        layers = adapt(model, options.adapters)
        if options.protect:
            table, tolerance = read_protection(options.protect), options.tolerance
            held = HeldAdapters(table, {name: layer.terms for name, layer in layers.items()}, tolerance)
            held.attach()
    elif options.protect:
        held = protect(model, options.protect, tolerance=options.tolerance)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=options.lr)
    clock, batches = Clock(), Batches(plays["train"], stories["train"], 0.0, options.seed)
    with clock.of("training"):
        for _ in range(options.steps):
            optimizer.zero_grad()
            nats(model, batches.next()[:ROWS]).backward()
            optimizer.step()
    if held is not None:
        held.clamp_()
    after = {f"{name}_after": mean_nats(model, found) for name, found in held_out.items()}
    return {**after, "drift": held.drift() if held is not None else "", "seconds_training": clock.seconds["training"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=Path(os.environ.get("BITFREEZE_PRETRAINED", "pretrained")))
    parser.add_argument("--out", type=Path, default=Path("protected.csv"))
    parser.add_argument("--measure", choices=["stories", "own"], help="measure the base only, and save")
    parser.add_argument("--save", type=Path, default=Path("base.safetensors"))
    parser.add_argument("--strongest", type=int)
    parser.add_argument("--protect", type=Path, help="a file that --save has written")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--adapters", type=int, default=0, help="rank of LoRA adapters; 0 trains the layers themselves")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--split", choices=["valid", "test"], default="valid")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.measure:
        measure(options.texts, options)
        return
    described = {
        "protect": options.protect.stem if options.protect else "", "tolerance": options.tolerance,
        "adapters": options.adapters, "lr": options.lr, "steps": options.steps, "split": options.split,
        "seed": options.seed,
    }  # fmt: skip
    append_row(options.out, {**described, **run(options.texts, options)})


if __name__ == "__main__":
    main()
