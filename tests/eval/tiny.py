"""A small random model, a tokenizer that adds a BOS by itself, and codecs for tests alone."""

from __future__ import annotations

import string

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, PreTrainedTokenizerFast

ALPHABET = string.ascii_lowercase + " .\n"


def char_tokenizer() -> PreTrainedTokenizerFast:
    """A token per character, 0 is `<s>`; called with its defaults it puts one `<s>` in front."""
    vocab = {"<s>": 0, "<unk>": 1} | {char: 2 + i for i, char in enumerate(ALPHABET)}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="<unk>")


def tiny_config(**changes) -> LlamaConfig:
    """Weights are drawn wide, so that attention is sharp and the cache matters."""
    sizes = {
        "vocab_size": 2 + len(ALPHABET),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": None,
    }
    return LlamaConfig(**sizes | changes)
