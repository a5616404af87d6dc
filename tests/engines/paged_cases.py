"""Codecs, layers and tiny models that the tests of paged layers share."""

from dataclasses import dataclass

import torch
import transformers

from kvcodec import Plan
from kvcodec.codecs.raw import Raw
from kvcodec.engines.transformers import PagedLayer

HEADS, KEY_DIM, VALUE_DIM = 3, 8, 5
CHUNKS = (37, 1, 1, 1, 30, 1, 16, 1)


@dataclass(frozen=True, slots=True)
class Zeros(Raw):
    """A broken codec: everything comes back as zero."""

    name = "test_zeros"
    lossless = False

    def decode(self, encoded, positions=None):
        return torch.zeros_like(Raw.decode(self, encoded))


@dataclass(frozen=True, slots=True)
class Halve(Raw):
    """A lossy codec that shows how often it was applied."""

    name = "test_halve"
    lossless = False

    def decode(self, encoded, positions=None):
        return Raw.decode(self, encoded) / 2


@dataclass(frozen=True, slots=True)
class Positions(Raw):
    """Blocks come back as 1000 times the position given to encode, plus the one given to decode."""

    name = "test_positions"
    lossless = False
    needs_positions = True

    def encode(self, blocks, num_valid, out, positions=None):
        blocks = positions.to(blocks.dtype).reshape(-1, 1, 1, 1).expand(blocks.shape)
        Raw.encode(self, blocks.contiguous(), num_valid, out)

    def decode(self, encoded, positions=None):
        blocks = Raw.decode(self, encoded)
        return blocks * 1000 + positions.to(blocks.dtype).reshape(-1, 1, 1, 1)


def plan_of(codec, **options):
    return Plan(codec, codec, **options)


def paged(plan="raw", *, index=0, block_size=4, hot_tokens=0, impl="auto"):
    plan = Plan.parse(plan) if isinstance(plan, str) else plan
    return PagedLayer(plan, index, block_size=block_size, hot_tokens=hot_tokens, impl=impl)


def states(num_tokens, *, batch=1, dtype=torch.bfloat16):
    """Keys and values of new tokens; their head_dims differ."""
    keys = torch.randn(batch, HEADS, num_tokens, KEY_DIM).to(dtype)
    values = torch.randn(batch, HEADS, num_tokens, VALUE_DIM).to(dtype)
    return keys, values


def same_bits(got, wanted):
    """Tensors of 16-bit elements, pairwise."""
    return all(
        a.shape == b.shape and torch.equal(a.view(torch.int16), b.view(torch.int16))
        for a, b in zip(got, wanted, strict=True)
    )


def tiny_llama(*, kv_heads=2, attention="sdpa", dtype=torch.bfloat16):
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=16,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def feed(model, cache, *, batch=2, chunks=CHUNKS):
    """Logits of every token of the same random text, fed in chunks."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 64, (batch, sum(chunks)), generator=generator)
    with torch.no_grad():
        return torch.cat([model(part, cache=cache).logits for part in ids.split(chunks, 1)], 1)
