"""A published Llama as a model and a tokenizer of Transformers, for what is built on that library."""

from typing import Any

from torch import Tensor

from ..._messages import install
from ..data import BEGIN, PretrainedLlama, Tokenizer

END = 2  # token of a text's end, after those of unknown text and of the beginning
SPECIAL = ("<unk>", "<s>", "</s>")

# Our kinds of weights by their names in a block of Transformers.
NAMES = {
    "input_layernorm": "before_attention", "self_attn.q_proj": "query", "self_attn.k_proj": "key",
    "self_attn.v_proj": "value", "self_attn.o_proj": "out", "post_attention_layernorm": "before_gate",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip


def transformers_llama(published: PretrainedLlama) -> tuple[Any, Any]:
    """The model and the tokenizer of a published file, as Transformers has them.

    Args:
        published: what ``load_stories15m`` returns.

    Returns:
        A ``LlamaForCausalLM`` in float32 and eval mode, and a ``PreTrainedTokenizerFast``. Both have
        ``save_pretrained``.

    Raises:
        ModuleNotFoundError: Transformers is not installed.
        ValueError: the tokenizer has another number of tokens than the model.

    Example:
        ```python
        base, tokenizer = transformers_llama(load_stories15m())
        ```
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(f"{__name__} needs the extra 'transformers': {install('transformers')}") from missing
    shape = published.shape
    if len(published.tokenizer) != shape.vocabulary:
        raise ValueError(
            f"the tokenizer must have the model's {shape.vocabulary:,} tokens, got {len(published.tokenizer):,}; use "
            "the one that came with the weights"
        )
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
        max_position_embeddings=shape.context, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=BEGIN, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    weights = published.weights
    state = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"]}
    state["lm_head.weight"] = weights["embedding"]  # the same tensor, because embeddings are tied
    for layer in range(shape.layers):
        for theirs, ours in NAMES.items():
            weight = weights[ours][layer]
            moved = halves_of_pairs(weight, shape.heads) if ours in ("query", "key") else weight
            state[f"model.layers.{layer}.{theirs}.weight"] = moved
    model.load_state_dict(state)
    return model.eval(), _fast_tokenizer(published.tokenizer)


def halves_of_pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head as Transformers has them: first those that are first in a pair of neighbours, then the others.

    The file rotates rows 2 i and 2 i + 1 of a head together, Transformers rows i and i + size / 2.
    """
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _fast_tokenizer(own: Tokenizer) -> Any:
    """The same pieces and order of merges in the library that Transformers uses."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    bytes_ = {f"<0x{byte:02X}>": len(SPECIAL) + byte for byte in range(256)}
    vocabulary = {**{word: k for k, word in enumerate(SPECIAL)}, **bytes_, **own.ids}
    merges = [
        (-own.scores[token], own.ids[piece[:k]], own.ids[piece[k:]], (piece[:k], piece[k:]))
        for piece, token in own.ids.items()
        for k in range(1, len(piece))
        if piece[:k] in own.ids and piece[k:] in own.ids
    ]
    pairs = [pair for *_, pair in sorted(merges)]
    fast = Fast(models.BPE(vocabulary, pairs, unk_token=SPECIAL[0], fuse_unk=True, byte_fallback=True))
    fast.normalizer = normalizers.Prepend(" ")
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, unk_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2]
    )
