"""fp8: what is particular to the vector and triton implementations."""

import itertools

import numpy as np
import pytest
import torch
from fp8_rows import (
    DEVICE,
    ELEMENTS,
    IMPLS,
    SCALES,
    TARGETS,
    codes_of,
    decode,
    encode,
    fmt,
    random_blocks,
    scales_of,
)
from rationals import midpoints, top_finite, value_of

from kvcodec import BlockSpec, EncodedBlocks, exact
from kvcodec.bits import DTYPES, from_bits, int_view, to_bits
from kvcodec.codecs.fp8 import Fp8
from kvcodec.errors import CorruptDataError
from kvcodec.kernels import fp8_triton, fp8_vector


@pytest.mark.parametrize("target", ["e4m3fn", "e5m2", "bf16", "fp16"])
def test_casts_of_the_vector_kernel_narrow_like_exact(target):
    """At every decision point and for random values, clamped, NaN aside."""
    assert fp8_vector.largest(fmt(target)) == value_of(top_finite(target), target)
    points = np.array(midpoints(target), np.uint32)
    random = np.random.default_rng(9).integers(0, 1 << 32, 1 << 18, np.uint32)
    bits = np.concatenate([points, points | np.uint32(1 << 31), random])
    x = bits.view(np.float32)[(bits & 0x7FFFFFFF) <= 0x7F800000]
    out = torch.empty(x.size, dtype=DTYPES[target])
    fp8_vector.narrow_into(int_view(out), torch.from_numpy(x.copy()), fmt(target))
    assert np.array_equal(to_bits(out), exact.narrow(x, fmt(target)))


@pytest.mark.parametrize("source", ["e4m3fn", "e5m2", "bf16", "fp16"])
def test_casts_of_the_vector_kernel_widen_like_exact(source):
    """Every pattern, NaN aside."""
    itemsize = fmt(source).itemsize
    bits = np.arange(1 << (8 * itemsize), dtype=f"u{itemsize}")
    wide = exact.widen(bits, fmt(source))
    if itemsize == 1:
        got = fp8_vector.widen_codes(torch.from_numpy(bits).view(torch.int8), fmt(source))
    else:
        got = from_bits(bits, DTYPES[source]).to(torch.float32)
    finite = ~exact.is_nan(wide)
    assert np.array_equal(to_bits(got)[finite], wide.view(np.uint32)[finite])


@pytest.mark.parametrize("impl", [i for i in IMPLS if i != "reference"])
@pytest.mark.parametrize("shape", [(16, 2, 128), (5, 3, 100), (1, 1, 3), (64, 1, 9), (2, 2, 576)])
def test_rows_and_blocks_equal_the_reference(shape, impl):
    """Random bits and mixed data; the types and the granularities take turns."""
    turns = itertools.cycle(itertools.product(TARGETS, SCALES))
    for seed, element in enumerate(ELEMENTS):
        dtype, scale = next(itertools.islice(turns, len(shape) + shape[0] + seed, None))
        spec = BlockSpec(*shape, DTYPES[element])
        noise = np.random.default_rng(seed).bytes(spec.nbytes)
        blocks = torch.cat([
            random_blocks(spec, 2, seed),
            torch.frombuffer(bytearray(noise), dtype=spec.dtype).reshape(1, *shape),
        ])  # fmt: skip
        valid = [shape[0], max(0, shape[0] - 1), shape[0] // 2]
        rows = encode(Fp8(dtype, scale), blocks, impl, valid)
        want = encode(Fp8(dtype, scale), blocks, "reference", valid)
        assert torch.equal(rows.payload, want.payload)
        assert torch.equal(rows.nbytes, want.nbytes)
        assert np.array_equal(to_bits(decode(want, impl)), to_bits(decode(want, "reference")))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_block_of_one_token_may_be_empty(impl):
    for scale in SCALES:
        blocks = torch.ones(2, 1, 2, 8, dtype=torch.bfloat16)
        rows = encode(Fp8(scale=scale), blocks, impl, [0, 1])
        empty = 0.0 if scale == "token_head" else 1.0
        assert (scales_of(rows)[0] == empty).all()
        assert torch.equal(decode(rows, impl)[0], torch.zeros(1, 2, 8, dtype=torch.bfloat16))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("head_dim", [1, 5, 19, 64])
def test_nan_keeps_its_sign_at_any_place(head_dim, impl):
    """Vectorised casts treat the tail of a vector otherwise than its bulk."""
    for element, nans in ("fp16", (0xFC01, 0x7E00)), ("bf16", (0xFF81, 0x7FC0)):
        for bits, code in zip(nans, (0xFF, 0x7F), strict=True):
            block = from_bits(np.full((1, 1, 1, head_dim), bits, np.uint16), DTYPES[element])
            codes = codes_of(encode(Fp8(), block, impl)).reshape(-1)
            assert codes.tolist() == [code] * head_dim


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("scale", SCALES)
def test_what_a_row_holds_past_num_valid_decodes_to_zeros(scale, impl):
    spec = BlockSpec(4, 2, 16, torch.float16)
    rows = encode(Fp8(scale=scale), random_blocks(spec, 2), impl)
    sound = decode(rows, impl)
    rows.payload[:, 2] = 3
    decoded = decode(rows, impl)
    assert np.array_equal(to_bits(decoded[:, :3]), to_bits(sound[:, :3]))
    assert not int_view(decoded[:, 3:]).any()


@pytest.mark.parametrize("impl", [i for i in IMPLS if i != "reference"])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("head_dim", [256, 257])
def test_every_code_under_scales_of_every_kind(head_dim, dtype, impl):
    """Powers of two, their neighbours, subnormals, infinities, NaN, random bits, either sign.

    The triton kernel reads words of codes for 256 dimensions and single codes for 257.
    """
    powers = np.arange(0, 256, dtype=np.uint32) << 23
    special = np.array([1, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000], np.uint32)
    random = np.random.default_rng(4).integers(0, 1 << 31, 512 - 256 - special.size, np.uint32)
    scales = np.concatenate([powers, special, random])
    scales = np.concatenate([scales, scales | np.uint32(1 << 31)])
    codes = np.tile(np.resize(np.arange(256, dtype=np.uint8), head_dim), scales.size)
    for element in ELEMENTS:
        spec = BlockSpec(scales.size, 1, head_dim, DTYPES[element])
        rows = encode(Fp8(dtype), torch.ones(1, *spec.shape, dtype=spec.dtype), "reference")
        rows.payload[0, 16 : 16 + codes.size] = torch.from_numpy(codes)
        at = 16 + -(-codes.size // 16) * 16
        rows.payload[0, at : at + scales.nbytes] = torch.from_numpy(scales.view(np.uint8))
        want = to_bits(decode(rows, "reference"))
        assert np.array_equal(to_bits(decode(rows, impl)), want), element


@pytest.mark.parametrize("given", [(), (0.5,)])
def test_vectors_longer_than_a_tile(given, monkeypatch):
    """A vector that no tile holds: the triton kernels walk it."""
    monkeypatch.setattr(fp8_triton, "TILE", 64)
    scale = "block" if given else "token_head"
    spec = BlockSpec(2, 1, 150, torch.float16)
    blocks = random_blocks(spec, 2)
    rows = encode(Fp8("e4m3", scale, given), blocks, "triton", [2, 1])
    want = encode(Fp8("e4m3", scale, given), blocks, "reference", [2, 1])
    assert torch.equal(rows.payload, want.payload)
    assert np.array_equal(to_bits(decode(want, "triton")), to_bits(decode(want, "reference")))


@pytest.mark.parametrize("scale", SCALES)
def test_triton_reads_and_writes_a_cache_of_any_strides(scale):
    """Heads outermost, gaps between channels and tokens; what lies in the gaps stays."""
    spec = BlockSpec(4, 3, 20, torch.bfloat16)
    whole = torch.zeros(3, 6, 5, 7, 41, dtype=torch.int16, device=DEVICE)
    cache = whole[:, 1:4, :, 2:6, ::2][:, :, 0].permute(0, 2, 1, 3)[..., :20].view(torch.bfloat16)
    assert BlockSpec.of(cache) == spec
    blocks = random_blocks(spec, 3)
    cache.copy_(blocks)
    rows = Fp8(scale=scale).compress(cache, [2, 0], impl="triton").to("cpu")
    want = encode(Fp8(scale=scale), blocks[[2, 0]], "reference")
    assert torch.equal(rows.payload, want.payload)
    whole.fill_(-1)
    Fp8(scale=scale).decompress(want.to(DEVICE), cache, [0, 1], impl="triton")
    decoded = decode(want, "reference")
    assert np.array_equal(to_bits(cache[:2].cpu().contiguous()), to_bits(decoded))
    int_view(cache)[:2] = -1
    assert bool((whole == -1).all())


def test_triton_keeps_to_its_block_whatever_a_row_says():
    """num_valid past the block, an unknown mode, scales that are no scales."""
    spec = BlockSpec(4, 2, 16, torch.float32)
    rows = encode(Fp8(), random_blocks(spec, 3), "reference")
    sound = decode(rows, "reference")[2]
    rows.payload[:, 2:4] = 0xFF
    rows.payload[0, 0] = 9
    rows.payload[1, 16 + spec.numel :] = 0xFF
    cache = torch.zeros(5, *spec.shape, dtype=torch.float32, device=DEVICE)
    Fp8().decompress(rows.to(DEVICE), cache, [3, 1, 2], impl="triton")
    assert not cache[0].any()
    assert not cache[4].any()
    assert np.array_equal(to_bits(cache[2].cpu()), to_bits(sound))


def test_a_batch_of_several_chunks_equals_its_blocks(monkeypatch):
    spec = BlockSpec(4, 2, 16, torch.bfloat16)
    blocks, valid = random_blocks(spec, 7), [4, 4, 0, 3, 4, 1, 4]
    whole = encode(Fp8(), blocks, "vector", valid)
    monkeypatch.setattr(fp8_vector, "CHUNK_NUMEL", 3 * spec.numel)
    assert torch.equal(encode(Fp8(), blocks, "vector", valid).payload, whole.payload)
    assert np.array_equal(to_bits(decode(whole, "vector")), to_bits(decode(whole, "reference")))


def test_vector_rows_may_have_any_alignment():
    spec = BlockSpec(2, 1, 16, torch.bfloat16)
    blocks = random_blocks(spec, 3)
    want = encode(Fp8(), blocks, "reference")
    buffer = torch.empty(3, want.payload.shape[1] + 3, dtype=torch.uint8)
    rows = EncodedBlocks(Fp8(), spec, buffer[:, 3:], want.nbytes)
    Fp8().compress(blocks, [0, 1, 2], out=rows, impl="vector")
    assert torch.equal(rows.payload, want.payload)
    assert np.array_equal(to_bits(decode(rows, "vector")), to_bits(decode(want, "reference")))


@pytest.mark.parametrize("impl", ["reference", "vector"])
@pytest.mark.parametrize(
    ("at", "value", "match"), [(0, 1, "mode"), (1, 1, "reserved"), (2, 9, "9")]
)
def test_damaged_rows_name_the_field_and_leave_the_cache(at, value, match, impl):
    spec = BlockSpec(4, 2, 16, torch.bfloat16)
    rows = encode(Fp8(), random_blocks(spec, 2), impl)
    rows.payload[1, at] = value
    cache = torch.ones(2, *spec.shape, dtype=torch.bfloat16)
    with pytest.raises(CorruptDataError, match=match):
        Fp8().decompress(rows, cache, [0, 1], impl=impl)
    assert bool((cache == 1).all())
