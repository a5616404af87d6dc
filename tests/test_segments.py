"""Rows that mix formats: where each segment lies, and that its codec sees it and nothing else."""

import numpy as np
import pytest
import torch

from kvcodec import BlockSpec, EncodedBlocks, Plan, get_codec
from kvcodec.bits import DTYPES, from_bits, to_bits
from kvcodec.errors import CorruptDataError, InvalidInputError, UnsupportedSpecError
from kvcodec.segments import LAYOUTS, parse_layout

TOKENS = 6
# Bytes of a token, then (segment, type, byte at which token t's elements begin, elements).
NAMED = {
    "mla": (1152, [("nope", "bf16", lambda t: 1152 * t, 512),
                   ("rope", "bf16", lambda t: 1152 * t + 1024, 64)]),
    "fp8_ds_mla": (656, [("nope", "e4m3fn", lambda t: 656 * t, 512),
                         ("scale", "fp32", lambda t: 656 * t + 512, 4),
                         ("rope", "bf16", lambda t: 656 * t + 528, 64)]),
    "deepseek_v4": (584, [("nope", "e4m3fn", lambda t: 576 * t, 448),
                          ("rope", "bf16", lambda t: 576 * t + 448, 64),
                          ("scale", "u8", lambda t: 576 * TOKENS + 8 * t, 8)]),
    "deepseek_v41": (528, [("kv", "e4m3fn", lambda t: 512 * t, 512),
                           ("scale", "u8", lambda t: 512 * TOKENS + 16 * t, 16)]),
    "nvfp4_ds_mla": (352, [("nope", "u8", lambda t: 352 * t, 256),
                           ("rope", "e4m3fn", lambda t: 352 * t + 256, 64),
                           ("scale", "e4m3fn", lambda t: 352 * t + 320, 32)]),
    "indexer": (132, [("k", "e4m3fn", lambda t: 128 * t, 128),
                      ("scale", "fp32", lambda t: 128 * TOKENS + 4 * t, 1)]),
}  # fmt: skip


def pages(nbytes: int, n: int = 3, seed: int = 0) -> torch.Tensor:
    """Opaque blocks [n, TOKENS, 1, nbytes] of random bytes."""
    data = np.random.default_rng(seed).integers(0, 256, (n, TOKENS, 1, nbytes), np.uint8)
    return torch.from_numpy(data)


def round_trip(codec, cache, impl, **options):
    rows = codec.compress(cache, range(len(cache)), impl=impl, **options)
    target = torch.full_like(cache, 0x5A)
    codec.decompress(rows, target, range(len(cache)), impl=impl)
    return rows, target


def test_every_named_layout_is_described_here():
    assert set(NAMED) == set(LAYOUTS)


@pytest.mark.parametrize("name", NAMED)
def test_segments_lie_where_the_engines_put_them(name):
    """The row of a segment is what its codec makes of the bytes at those offsets."""
    nbytes, segments = NAMED[name]
    codec, cache = get_codec(f"segments:layout={name}"), pages(nbytes)
    # what a cache holds, so that rows are cut and not kept raw
    cache[:] = torch.arange(nbytes, dtype=torch.uint8) // 16
    rows = codec.compress(cache, [1], impl="reference")
    assert rows.payload[0, 0] == 1
    flat, at = cache[1].flatten().numpy(), 16 * -(-(4 + 4 * len(segments)) // 16)
    counts = np.frombuffer(rows.payload[0, 4 : 4 + 4 * len(segments)].numpy().tobytes(), "<u4")
    for (_, kind, begin, numel), size, of in zip(segments, counts, codec.parts, strict=True):
        dtype = DTYPES[kind]
        raw = [flat[begin(t) : begin(t) + numel * dtype.itemsize] for t in range(TOKENS)]
        word = f"<u{dtype.itemsize}"
        elements = np.concatenate(raw).view(word).reshape(1, TOKENS, 1, numel)
        part = of.compress(from_bits(elements.astype(word[1:]), dtype), [0], impl="reference")
        wanted = part.payload[0, : int(part.nbytes[0])]
        assert torch.equal(rows.payload[0, at : at + int(size)], wanted)
        at += int(size)
    assert at == int(rows.nbytes[0])


@pytest.mark.parametrize("impl", ["reference", "vector", "native"])
@pytest.mark.parametrize("name", NAMED)
def test_every_byte_returns(name, impl):
    codec = get_codec(f"segments:layout={name}")
    assert codec.lossless
    cache = pages(NAMED[name][0])
    cache[0] = 7  # a block that shrinks; the others are kept raw
    rows, target = round_trip(codec, cache, impl)
    assert rows.payload[:, 0].tolist() == [1, 0, 0]
    assert torch.equal(target, cache)


@pytest.mark.parametrize("impl", ["reference", "vector", "native"])
@pytest.mark.parametrize("fill", [7, None], ids=["cut", "raw"])
@pytest.mark.parametrize("name", ["deepseek_v4", "indexer", "fp8_ds_mla"])
def test_unused_tokens_are_zeros_wherever_their_bytes_lie(name, fill, impl):
    nbytes, segments = NAMED[name]
    cache = pages(nbytes, 1)
    if fill is not None:
        cache[:] = fill
    other = cache.clone()
    wanted = torch.zeros_like(cache)
    for _, kind, begin, numel in segments:
        size = numel * DTYPES[kind].itemsize
        for t in range(TOKENS):
            where = slice(begin(t), begin(t) + size)
            (wanted if t < 4 else other).view(-1)[where] = cache.view(-1)[where] if t < 4 else 0x99
    codec = get_codec(f"segments:layout={name}")
    rows, target = round_trip(codec, cache, impl, num_valid=[4])
    assert torch.equal(target, wanted)
    again = codec.compress(other, [0], num_valid=[4], impl=impl)
    assert torch.equal(again.payload[0, : again.nbytes[0]], rows.payload[0, : rows.nbytes[0]])


def test_a_lossy_segment_leaves_the_others_exact():
    codec = get_codec("segments:layout=mla,codecs=fp8/split")
    assert not codec.lossless
    assert not Plan(codec, codec).lossless
    cache = torch.randn(2, TOKENS, 1, 576).to(torch.bfloat16)
    for impl in ("reference", "vector", "native"):
        _, target = round_trip(codec, cache.clone(), impl)
        assert np.array_equal(to_bits(target)[..., 512:], to_bits(cache)[..., 512:])
        error = (target - cache)[..., :512].abs() / cache[..., :512].abs().clamp(min=0.1)
        assert 0 < error.max() < 2**-4 + 2**-8


def test_a_codec_keeps_its_name_through_text_and_json():
    text = "segments:layout=mla,codecs=fp8:scale=head/split"
    codec = get_codec(text)
    assert str(codec) == text
    assert codec.codecs == ("fp8:scale=head", "split")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layout=nope", "no segment; wanted NAME.TYPExCOUNT"),
        ("layout=a.e4m3x4+b", "'b' is no segment"),
        ("layout=a.int4x4", "'a.int4x4' is no segment"),
        ("layout=a.u8x0", "is no segment"),
        ("layout=a.u8x4/a.u8x4", "name occurs twice"),
        ("layout=mla,codecs=split", "1 codecs for the 2 segments"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(text, message):
    with pytest.raises(InvalidInputError, match=message):
        get_codec(f"segments:{text}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            BlockSpec(16, 1, 584, torch.uint8),
            "fp8_ds_mla has 656 bytes a token, 584 elements of u8",
        ),
        (BlockSpec(16, 1, 328, torch.bfloat16), "view the cache as uint8, not bf16"),
    ],
)
def test_blocks_of_another_layout_are_refused(spec, message):
    assert message in get_codec("segments").supports(spec)


def test_several_runs_take_one_head():
    cache = torch.zeros(1, TOKENS, 2, 584, dtype=torch.uint8)
    with pytest.raises(UnsupportedSpecError, match="several runs, which take one head, not 2"):
        get_codec("segments:layout=deepseek_v4").compress(cache, [0])


@pytest.mark.parametrize("impl", ["reference", "vector", "native"])
def test_damaged_rows_are_told_and_leave_the_cache_alone(impl):
    codec = get_codec("segments:layout=fp8_ds_mla")
    cache = torch.full((1, TOKENS, 1, 656), 7, dtype=torch.uint8)
    sound = codec.compress(cache, [0], impl=impl)
    target = torch.full_like(cache, 0x5A)

    def attempt(rows: EncodedBlocks) -> None:
        codec.decompress(rows, target, [0], impl=impl)

    for at, value in ((0, 2), (1, 1), (2, TOKENS + 1), (4, 8), (18, 3), (33, 1)):
        rows = codec.compress(cache, [0], impl=impl)
        rows.payload[0, at] = value
        assert not torch.equal(rows.payload, sound.payload)
        with pytest.raises(CorruptDataError):
            attempt(rows)
    assert (target == 0x5A).all()


def test_layouts_are_parsed_once():
    assert parse_layout("mla") is parse_layout("mla")
    assert parse_layout("mla").token_nbytes == 1152
