"""A replayed prefix is the prefix: the same logits as one cache that lived through both."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)
from transformers.cache_utils import DynamicCache

from eval.tiny import tiny_config
from kvcodec.errors import UnsupportedSpecError
from kvcodec.eval.replay import forward, record, replay

IDS = list(range(2, 26)) * 2
PREFIX = 32


def sliding_config() -> Gemma3TextConfig:
    """Every other layer sees 8 tokens, far fewer than the prefix has."""
    return Gemma3TextConfig(
        vocab_size=31,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        max_position_embeddings=256,
    )


@pytest.mark.parametrize("config", [tiny_config(), sliding_config()], ids=["full", "sliding"])
def test_a_continuation_through_replayed_states_gives_the_same_logits(config):
    model = AutoModelForCausalLM.from_config(config).bfloat16().eval()
    with torch.inference_mode():
        lived = DynamicCache(config=config)
        forward(model, IDS[:PREFIX], lived)
        expected = forward(model, IDS[PREFIX:], lived)
        states = record(model, IDS[:PREFIX])
        got = forward(model, IDS[PREFIX:], replay(states, DynamicCache(config=config)))
    assert torch.equal(got, expected)
    assert [keys.shape[2] for keys, _ in states.values()] == [PREFIX] * config.num_hidden_layers


def test_only_the_last_logits_are_made_when_no_more_are_wanted():
    model = LlamaForCausalLM(tiny_config()).eval()
    with torch.inference_mode():
        whole = forward(model, IDS, DynamicCache(config=model.config))
        last = forward(model, IDS, DynamicCache(config=model.config), last=True)
    assert whole.shape == (len(IDS), 31)
    assert last.shape == (1, 31)


def test_a_model_with_other_state_than_keys_and_values_is_refused():
    config = MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, state_size=4)
    with torch.inference_mode(), pytest.raises(UnsupportedSpecError, match="keeps more than keys"):
        record(MambaForCausalLM(config).eval(), IDS)
