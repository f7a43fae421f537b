"""Five kinds of text for a language model that writes stories. What it knows already is the stream's first task."""

import re
from functools import cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..data import PretrainedLlama, Tokenizer, load_stories15m, load_texts
from ..nets import pretrained_llama
from ..tasks import Split, Task, TaskData
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, first_tasks

DOMAINS = ("shakespeare", "wikipedia", "leaflets", "captions", "python")
NAMES = {"captions": "German captions", "python": "Python", "shakespeare": "Shakespeare", "wikipedia": "Wikipedia"}
CHARACTERS = 600_000  # of a text that are used, from its beginning
BEGINNING = r"\n\n(?=Once upon a time|One day, a )"  # the file of stories does not mark where one ends
EASY = 9288  # first tokens of the file of stories, with 1.4 nats each; the others have 2.3, from another writer
SHARE = 0.15  # of a text that is held for validation, and as much for tests


def text5(
    *,
    seed: Seed = 0,
    length: Annotated[int, "tokens of a window"] = 64,
    train: Annotated[int, "windows of each text to train on; with training.batch they give the steps"] = 480,
    base_text: Annotated[
        Literal["stories", "own"], "text that stands for the base: stories, or what the model itself writes"
    ] = "stories",
    base: Annotated[int, "windows of stories that stand for what the model knows: measured or replayed"] = 48,
    test: Annotated[int, "windows of each text to test on"] = 48,
    tasks: TaskCount = 6,
) -> Stream:
    """Stories, which are known, then Shakespeare, Wikipedia, package leaflets, German captions and Python source."""
    for name, count in (("length", length), ("train", train), ("base", base), ("test", test)):
        if count < 8:
            raise ValueError(f"stream.{name} must be at least 8, got {count}")
    kinds = [("stories", *DOMAINS)[k] for k in first_tasks(list(range(6)), tasks)]
    published = cache(load_stories15m)
    texts = cache(load_texts)

    @cache  # a text is encoded once
    def data(index: int) -> TaskData:
        text, wanted = texts()[kinds[index]], train if index else base
        parts = (_split_text if index else _split_stories)(published().tokenizer, text, length)
        if not index and base_text == "own":
            parts[0] = _written(published(), base, length, _drawing(seed))
        counts = (wanted, test, test)
        return TaskData(*(_some(part, n, seed, kinds[index]) for part, n in zip(parts, counts, strict=True)))

    vocabulary = len(published().tokenizer)
    named = tuple(Task(k, NAMES.get(kind, kind), vocabulary, known=k == 0) for k, kind in enumerate(kinds))
    return Stream("text5", (length,), named, lambda task: data(task.index))


def _split_text(tokenizer: Tokenizer, text: str, length: int) -> list[Tensor]:
    """Windows to train on, to validate and to test: the beginning, what follows it, and the end."""
    found = windows(torch.tensor(tokenizer.encode(text[:CHARACTERS])), length)
    held = round(SHARE * len(found))
    return list(found.tensor_split([len(found) - 2 * held, len(found) - held]))


def _split_stories(tokenizer: Tokenizer, text: str, length: int) -> list[Tensor]:
    """Windows that stand for the base, and of the easy stories every other one to validate and to test."""
    tokens = torch.tensor([token for story in re.split(BEGINNING, text) for token in tokenizer.encode(story.strip())])
    easy = windows(tokens[:EASY], length)
    return [windows(tokens[EASY:], length), easy[0::2], easy[1::2]]


def _written(published: PretrainedLlama, count: int, length: int, drawing: torch.Generator) -> Tensor:
    """Windows of texts that the model writes to the end of what it reads, because it knows more than beginnings."""
    in_a_text = max(1, published.shape.context // (length + 1))
    texts = pretrained_llama(published).write(-(-count // in_a_text), in_a_text * (length + 1), drawing)
    return texts.view(-1, length + 1)


def windows(tokens: Tensor, length: int) -> Tensor:
    """Windows [n, length + 1] without overlap: inputs, and the same moved by one as labels."""
    return tokens[: len(tokens) // (length + 1) * (length + 1)].view(-1, length + 1)


def _some(found: Tensor, count: int, seed: int, kind: str) -> Split:
    if not len(found):
        raise ValueError(f"the text of {kind} must have some windows for each purpose, got none; lower stream.length")
    chosen = found[torch.randperm(len(found), generator=_drawing(seed))[:count]]
    return Split(chosen[:, :-1].clone(), chosen[:, 1:].clone(), (), ())


def _drawing(seed: int) -> torch.Generator:
    """For one draw each, so that other windows of one part leave the other parts as they are."""
    return torch.Generator().manual_seed(seed)


register_stream(
    "text5",
    "stories15M, a small language model, over five kinds of text; what it knows of stories is tested after each",
    ("stories15m", "texts"),
    text5,
    trainer="language",
)
