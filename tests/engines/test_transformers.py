"""KVCodecCache in tiny random models, against the library's DynamicCache."""

import copy
import importlib
import math
import sys

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicCache

from engines.paged_cases import CHUNKS, Zeros, feed, same_bits, tiny_llama
from kvcodec import KVCodecError, Plan, get_codec
from kvcodec.engines.transformers import KVCodecCache, PagedLayer
from kvcodec.errors import InvalidInputError, MissingExtraError


@pytest.mark.parametrize(
    ("plan", "kv_heads", "attention", "dtype"),
    [
        ("split", 2, "sdpa", torch.bfloat16),
        ("split", 2, "eager", torch.float16),
        ("raw", 1, "sdpa", torch.float32),
        # one head per query head in eager mode: matmul reads the cache itself, strides and all
        ("raw", 4, "eager", torch.float32),
        ("raw", 4, "eager", torch.bfloat16),
    ],
)
def test_lossless_logits_equal_those_of_the_dynamic_cache(plan, kv_heads, attention, dtype):
    model = tiny_llama(kv_heads=kv_heads, attention=attention, dtype=dtype)
    cache = KVCodecCache(model.config, plan, block_size=16)
    wanted = feed(model, DynamicCache(config=model.config))
    assert torch.equal(feed(model, cache), wanted)
    assert cache.stats().live_rows == 2 * 2 * 2 * (sum(CHUNKS) // 16)


@pytest.mark.parametrize(
    ("name", "paged_layers", "options"),
    [
        (
            "Gemma3Text",
            [1],
            {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
        ),
        ("Lfm2", [1], {"layer_types": ["conv", "full_attention"]}),
        ("Mistral", [], {"sliding_window": 16}),
    ],
)
def test_layers_that_forget_stay_the_librarys(name, paged_layers, options):
    config = getattr(transformers, f"{name}Config")(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
        **options,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    theirs, ours = DynamicCache(config=config), KVCodecCache(config, "split", block_size=16)
    for index, layer in enumerate(theirs.layers):
        expected = PagedLayer if index in paged_layers else type(layer)
        assert type(ours.layers[index]) is expected
    assert torch.equal(feed(model, ours), feed(model, theirs))
    assert list(ours.layer_stats()) == paged_layers


def test_layers_of_a_plan_are_those_of_the_model():
    model = tiny_llama()
    raw = get_codec("raw")
    cache = KVCodecCache(model.config, Plan(raw, raw, layers=((1, "key", Zeros()),)), block_size=16)
    feed(model, cache)
    zeroed = [[not states[:, :, :16].any() for states in layer.fetch()] for layer in cache.layers]
    assert zeroed == [[False, False], [True, False]]


def test_latent_attention_is_cached_in_two_head_dims():
    config = transformers.DeepseekV3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        first_k_dense_replace=2,
    )
    model = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16).eval()
    cache = KVCodecCache(config, "split", block_size=16)
    wanted = feed(model, DynamicCache(config=config))
    assert torch.equal(feed(model, cache), wanted)
    keys, values = cache.layers[0].fetch()
    assert keys.shape[-1] != values.shape[-1]


def test_a_forward_with_gradients_keeps_no_graph():
    model = tiny_llama()
    cache = KVCodecCache(model.config, "raw", block_size=16)
    ids = torch.arange(3, 53)[None]
    with torch.no_grad():
        wanted = model(ids, cache=DynamicCache(config=model.config)).logits
    got = model(ids, cache=cache).logits
    assert torch.equal(got, wanted)
    assert not any(fetched.requires_grad for layer in cache.layers for fetched in layer.fetch())


def test_prompt_lookup_decoding_crops_and_writes_the_same_text():
    model = tiny_llama()
    ids = torch.arange(3, 13).repeat(3)[None]
    options = {"max_new_tokens": 24, "do_sample": False, "prompt_lookup_num_tokens": 4}
    theirs, ours = DynamicCache(config=model.config), KVCodecCache(model.config, block_size=4)
    wanted = model.generate(ids, cache=theirs, **options)
    assert torch.equal(model.generate(ids, cache=ours, **options), wanted)
    assert ours.get_seq_length() == theirs.get_seq_length()


def test_reset_makes_a_cache_as_good_as_new():
    model = tiny_llama()
    cache = KVCodecCache(model.config, "raw", block_size=16)
    wanted = feed(model, cache, batch=1)
    feed(model, KVCodecCache(model.config, "raw"), batch=2)
    cache.reset()
    assert cache.get_seq_length() == 0
    feed(model, cache, batch=2)
    cache.reset()
    assert torch.equal(feed(model, cache, batch=1), wanted)


def test_a_deep_copy_goes_on_alone():
    model = tiny_llama()
    prompt = KVCodecCache(model.config, "split", block_size=16)
    feed(model, prompt)
    other = copy.deepcopy(prompt)
    wanted = [fetched for layer in prompt.layers for fetched in layer.fetch()]
    feed(model, other)
    other.crop(-150)
    assert same_bits([fetched for layer in prompt.layers for fetched in layer.fetch()], wanted)
    other.crop(-(other.get_seq_length() - 20))
    prompt.crop(-(prompt.get_seq_length() - 20))
    assert torch.equal(feed(model, other), feed(model, prompt))


def test_stats_count_blocks_and_bytes():
    model = tiny_llama()
    cache = KVCodecCache(model.config, "key=fp8:scale=block,value=raw", block_size=16)
    feed(model, cache, batch=3, chunks=(30, 5))
    stats = cache.stats()
    blocks, numel = 2 * 3 * 2, 16 * 2 * 16
    fp8_row, raw_row = 16 + numel + 16, 16 + 2 * numel
    assert stats.blocks_encoded == stats.live_rows == 2 * blocks
    assert stats.blocks_decoded == 2 * 3 * 2  # the first block, in the second forward
    assert stats.bypassed == blocks
    assert stats.raw_nbytes == stats.live_raw_nbytes == 2 * blocks * 2 * numel
    assert stats.encoded_nbytes == stats.live_nbytes == blocks * (fp8_row + raw_row)
    assert stats.hot_nbytes == 2 * 2 * 3 * 3 * 2 * 16 * 2
    assert stats.ratio == stats.raw_nbytes / stats.encoded_nbytes
    assert stats.bits_per_element == 8 * (fp8_row + raw_row) / (2 * numel)
    assert stats.encode_seconds > 0
    assert stats.decode_seconds > 0
    layers = cache.layer_stats()
    assert list(layers) == [0, 1]
    assert layers[0] + layers[1] == stats
    cache.crop(-99)
    assert cache.stats().live_rows == 0
    assert cache.stats().blocks_encoded == 2 * blocks
    assert math.isnan(cache.stats().ratio)


@pytest.mark.parametrize(
    ("plan", "chunks", "active"),
    [("split", (15,), False), ("raw", (40,), False), ("split", (16,), True)],
)
def test_assert_active_tells_a_cache_that_compresses_nothing(plan, chunks, active):
    model = tiny_llama()
    cache = KVCodecCache(model.config, plan, block_size=16)
    feed(model, cache, chunks=chunks)
    if active:
        cache.assert_active()
    else:
        with pytest.raises(KVCodecError, match="compressed nothing: "):
            cache.assert_active()


@pytest.mark.parametrize("options", [{"block_size": 0}, {"hot_tokens": -1}])
def test_sizes_are_checked(options):
    with pytest.raises(InvalidInputError, match="wanted at least 1 and 0"):
        KVCodecCache(tiny_llama().config, **options)


def test_without_transformers_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    monkeypatch.delitem(sys.modules, "kvcodec.engines.transformers")
    with pytest.raises(MissingExtraError, match=r"kvcodec-paged\[eval\]"):
        importlib.import_module("kvcodec.engines.transformers")
