"""BLIP as a callback of the Transformers Trainer. A task is a ``trainer.train()``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._messages import install

try:
    from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{__name__} needs the extra 'transformers': {install('transformers')}") from missing

from ..blip.attachment import Attachment
from ..blip.blip import BLIP
from ..blip.consolidation import Consolidation
from ..likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from .state_file import load_state, save_state

WINDOWS = 4  # samples that are cut from one text that a model writes


class BLIPCallback(TrainerCallback):
    """Clamps after each optimizer step, and consolidates with the training data at the end of training.

    BLIP's state is saved in every checkpoint, and loaded when training resumes. ``report`` holds the last
    ``Consolidation``.

    Args:
        blip: a BLIP of the trainer's model or of a part of it.
        forward: maps a batch to logits or a likelihood. Default: ``likelihood``, by the kind of model.
        samples: how many samples to consolidate with. Default: all.
        resume_from: the checkpoint that training resumes from, if it is not in the trainer's ``output_dir``.

    Raises:
        ValueError: there are several processes, the trainer trains another model, or the model's kind needs
            ``forward`` (when training starts).
        FileNotFoundError: the checkpoint to resume from has no state of BLIP.

    Example:
        ```python
        callback = BLIPCallback(BLIP(model, watch=model.transformer))
        for dataset in tasks:
            Trainer(model, args, train_dataset=dataset, callbacks=[callback]).train()
        ```
    """

    def __init__(
        self,
        blip: BLIP,
        *,
        forward: Callable[[Any], Any] | None = None,
        samples: int | None = None,
        resume_from: str | Path | None = None,
    ) -> None:
        self.blip, self.forward, self.samples, self.resume_from = blip, forward, samples, resume_from
        self.report: Consolidation | None = None
        self._attachment: Attachment | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        _require_usable(self.blip.model, model, args, self.forward)
        if state.global_step > 0:
            load_state(self.blip, self.resume_from or _checkpoint(args, state))
        self._attachment = self.blip.attach()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        save_state(self.blip, _checkpoint(args, state))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        forward = self.forward or (lambda batch: likelihood(model, batch))
        try:
            self.report = self.blip.consolidate(train_dataloader, forward, samples=self.samples)
        finally:
            assert self._attachment is not None
            self._attachment.remove()


def likelihood(model: Any, batch: Mapping[str, Tensor]) -> Likelihood:
    """Likelihood of a batch's labels under the model. Padding and labels of -100 do not count.

    Args:
        model: a model for causal or masked language modelling, or for classification of tokens or sequences.
        batch: the model's inputs by name.

    Returns:
        The model's output on the batch, as one of ``bitfreeze.likelihoods``.
    """
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return LIKELIHOODS[_kind(model)](model, logits, batch)


def own_text(
    model: Any, samples: int = 256, length: int = 128, *, begin: int | None = None, batch: int = 16, seed: int = 0
) -> list[dict[str, Tensor]]:
    """Text that a generative language model writes itself, as data to protect it with where its own are not at hand.

    Each text starts at the token of the beginning, and each next token is drawn from the model, at temperature 1. Texts
    are up to four samples long and cut into samples, because the model knows more than beginnings.

    Args:
        model: a Transformers model with ``generate``.
        samples: number of samples.
        length: tokens of a sample. One that ends earlier is padded.
        begin: token that a text begins with. Default: the ``bos_token_id`` of the model's configuration.
        batch: texts that are written side by side, and samples of a returned batch.
        seed: of the draws. Random states outside stay as they are.

    Returns:
        Batches with ``input_ids`` and ``attention_mask``, for ``likelihood``.

    Raises:
        ValueError: the model cannot generate, names no first token, or reads fewer tokens than ``length``.

    Example:
        ```python
        blip = bitfreeze.protect(model, own_text(model), lambda batch: likelihood(model, batch))
        ```
    """
    if not getattr(model, "can_generate", bool)():
        raise ValueError(f"model must write text, got {type(model).__name__}; give data of your own")
    config = model.config
    begin = config.bos_token_id if begin is None else begin
    if begin is None:
        raise ValueError("begin must be the token that a text begins with, got none in the model's configuration")
    most = getattr(config, "max_position_embeddings", None) or length
    if not 2 <= length <= most:
        raise ValueError(f"length must be from 2 to {most}, which is what the model reads, got {length}")
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends = [end for end in ends if end is not None]
    size = length * min(WINDOWS, most // length)
    found: list[Tensor] = []
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            while (missing := samples - sum(len(part) for part in found)) > 0:
                start = torch.full((min(batch, -(-missing * length // size)), 1), begin, device=model.device)
                tokens = model.generate(
                    start, attention_mask=torch.ones_like(start), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                    max_new_tokens=size - 1, pad_token_id=ends[0] if ends else begin, eos_token_id=ends or None,
                )  # fmt: skip
                both = torch.stack([tokens, _until_end(tokens, ends)], -1)
                both = F.pad(both, (0, 0, 0, -tokens.shape[1] % length)).view(-1, length, 2)
                found.append(both[both[..., 1].sum(1) > 1])  # a sample needs a token and the next one
    finally:
        model.train(training)
    written = torch.cat(found)[:samples]
    return [{"input_ids": part[..., 0], "attention_mask": part[..., 1]} for part in torch.split(written, batch)]


def _until_end(tokens: Tensor, ends: list[int]) -> Tensor:
    """1 for the tokens of a text up to its end, which the first token cannot be."""
    is_end = torch.isin(tokens, torch.tensor(ends, dtype=tokens.dtype, device=tokens.device))
    is_end[:, 0] = False
    return (is_end.cumsum(1) - is_end.long() == 0).long()


def _kind(model: Any) -> Any:
    """The name of the model's loss. Older decoders such as GPT2LMHeadModel have none, and count as causal."""
    decoder = isinstance(model, PreTrainedModel) and model.can_generate() and not model.config.is_encoder_decoder
    return getattr(model, "loss_type", None) or ("ForCausalLM" if decoder else None)


def _next_tokens(model: Any, logits: Tensor, batch: Mapping[str, Tensor]) -> Likelihood:
    return Categorical(logits[:, :-1], _counts(batch, slice(1, None)))


def _tokens(model: Any, logits: Tensor, batch: Mapping[str, Tensor]) -> Likelihood:
    return Categorical(logits, _counts(batch, slice(None)))


def _sequence(model: Any, logits: Tensor, batch: Mapping[str, Tensor]) -> Likelihood:
    kinds: dict[str | None, Callable[[Tensor], Likelihood]] = {
        "regression": Gaussian,
        "multi_label_classification": Bernoulli,
    }
    return kinds.get(model.config.problem_type, Categorical)(logits)


LIKELIHOODS: dict[str, Callable[[Any, Tensor, Mapping[str, Tensor]], Likelihood]] = {
    "ForCausalLM": _next_tokens,
    "ForMaskedLM": _tokens,
    "ForTokenClassification": _tokens,
    "ForSequenceClassification": _sequence,
}


def _counts(batch: Mapping[str, Tensor], positions: slice) -> Tensor | None:
    """Mask of the positions that count: neither padding nor labelled -100."""
    masks = [batch["attention_mask"][:, positions].bool()] if "attention_mask" in batch else []
    masks += [batch["labels"][:, positions] != -100] if "labels" in batch else []
    return masks[0] & masks[-1] if masks else None


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _require_usable(watched: nn.Module, model: Any, args: TrainingArguments, forward: Any) -> None:
    if args.world_size > 1:
        raise ValueError(f"the trainer must run in one process, got {args.world_size}; start it without a launcher")
    if not any(module is watched for module in model.modules()):
        raise ValueError("the trainer must train the model that BLIP watches; build BLIP from its model or a part")
    if forward is None and _kind(model) not in LIKELIHOODS:
        raise ValueError(
            f"the model must be for one of {', '.join(LIKELIHOODS)}, got {type(model).__name__}; give forward=, which "
            "maps a batch to logits or one of bitfreeze.likelihoods"
        )
