"""Heads cut out of rows, and rows put together from cuts, without decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from strategies import KINDS, make_cache

from kvcodec import BlockSpec, EncodedBlocks, codec_names, compress, get_codec
from kvcodec.bits import int_view
from kvcodec.codecs.raw import Raw
from kvcodec.errors import CorruptDataError, InvalidInputError, UnsupportedSpecError
from kvcodec.heads import merge_heads, take_heads
from kvcodec.registry import codec_class
from kvcodec.row import Section, read_rows, write_row

SPEC = BlockSpec(4, 6, 10, torch.bfloat16)
VALID = [4, 3, 0, 1, 4, 2, 4, 4, 4, 4][: len(KINDS)]
BUILT_IN = [n for n in codec_names() if codec_class(n).__module__.startswith("kvcodec.codecs.")]
CODECS = [
    *(
        s
        for n in BUILT_IN
        for s in codec_class(n).examples
        if get_codec(s).head_splittable and get_codec(s).supports(SPEC) is None
    ),
    "fp8:scale=head,given=1.0/0.5/0.25/2.0/4.0/3e-05",
    "fp8:dtype=e5m2,scale=head,given=1.0/0.5/0.25/2.0/4.0/3e-05",
]
SHARED = {"fp8:scale=block", "fp8:scale=token"}  # scales of all heads
CUTS = ([2, 4], [1, 2, 3], [5, 1], [6])


def encode(spec: str, cache: torch.Tensor | None = None) -> EncodedBlocks:
    cache = make_cache(SPEC) if cache is None else cache
    return compress(cache, range(len(cache)), spec, num_valid=VALID, impl="reference")


def rows_of(encoded: EncodedBlocks) -> list[bytes]:
    sizes = encoded.nbytes.tolist()
    return [row[:n].numpy().tobytes() for row, n in zip(encoded.payload, sizes, strict=True)]


def decode(encoded: EncodedBlocks) -> torch.Tensor:
    cache = torch.zeros(len(encoded), *encoded.spec.shape, dtype=encoded.spec.dtype)
    encoded.codec.decompress(encoded, cache, range(len(encoded)), impl="reference")
    return int_view(cache)


def cut(encoded: EncodedBlocks, sizes: list[int]) -> list[EncodedBlocks]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [take_heads(encoded, end - n, end) for n, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("codec", CODECS)
def test_taken_heads_decode_to_the_values_they_had(codec):
    encoded = encode(codec)
    whole = decode(encoded)
    for start, stop in ((0, 3), (3, 6), (2, 3), (0, 6)):
        taken = take_heads(encoded, start, stop)
        assert taken.spec == replace(SPEC, num_kv_heads=stop - start)
        assert torch.equal(decode(taken), whole[:, :, start:stop])


@pytest.mark.parametrize("codec", [c for c in CODECS if not SHARED & set(c.split(","))])
def test_taken_heads_are_the_rows_of_a_rank_that_has_only_them(codec):
    taken = take_heads(encode(codec), 2, 5)
    own = compress(make_cache(SPEC)[:, :, 2:5], range(len(VALID)), taken.codec, num_valid=VALID)
    assert rows_of(taken) == rows_of(own)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_cut_rows_merge_to_the_rows_they_were(codec, sizes):
    encoded = encode(codec)
    merged = merge_heads(cut(encoded, sizes))
    assert (merged.codec, merged.spec) == (encoded.codec, encoded.spec)
    assert rows_of(merged) == rows_of(encoded)
    for row, nbytes in zip(merged.payload, merged.nbytes, strict=True):
        assert not row[nbytes:].any()


def test_given_scales_go_with_their_heads():
    encoded = encode("fp8:scale=head,given=1.0/0.5/0.25/2.0/4.0/8.0")
    assert str(take_heads(encoded, 1, 3).codec) == "fp8:scale=head,given=0.5/0.25"
    block = encode("fp8:scale=block,given=0.5")
    assert take_heads(block, 1, 3).codec == block.codec


def test_a_codec_with_a_stream_over_all_heads_says_so():
    encoded = encode("split")
    for call in (lambda: take_heads(encoded, 0, 1), lambda: merge_heads([encoded])):
        with pytest.raises(UnsupportedSpecError, match="split: its rows code all heads together"):
            call()


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 7), (6, 7)])
def test_heads_outside_the_block_are_refused(start, stop):
    with pytest.raises(InvalidInputError, match=r"is not within 6 heads"):
        take_heads(encode("raw"), start, stop)


def test_a_part_of_all_heads_must_be_equal_in_every_cut():
    first, second = make_cache(SPEC), make_cache(SPEC)
    int_view(second)[0] = int_view(second)[1]  # another largest value, another scale of the block
    cuts = [encode("fp8:scale=block", cache[:, :, :3]) for cache in (first, second)]
    with pytest.raises(InvalidInputError, match="row 0: 'scales' belongs to all heads and differs"):
        merge_heads(cuts)


@pytest.mark.parametrize(
    ("second", "piece"),
    [
        (lambda e: encode("fp8"), "fp8 differs from raw"),
        (lambda e: e[:3], "3 rows differ"),
        (lambda e: encode("raw", make_cache(replace(SPEC, head_dim=12))), "head_dim=12"),
        (lambda e: encode("raw", make_cache(replace(SPEC, dtype=torch.float16))), "float16"),
        (lambda e: compress(make_cache(SPEC), range(len(VALID)), "raw"), "num_valid"),
    ],
)
def test_cuts_of_other_blocks_do_not_merge(second, piece):
    first = encode("raw")
    with pytest.raises(InvalidInputError, match=piece):
        merge_heads([first, second(first)])


def test_cuts_with_other_parameters_do_not_merge():
    for one, two in (
        ("fp8", "fp8:dtype=e5m2"),
        ("fp8:scale=block,given=0.5", "fp8:scale=block,given=0.25"),
        ("fp8:scale=head,given=1.0/1.0/1.0/1.0/1.0/1.0", "fp8:scale=head"),
    ):
        with pytest.raises(InvalidInputError, match="differs from"):
            merge_heads([encode(one), encode(two)])


def test_nothing_does_not_merge():
    with pytest.raises(InvalidInputError, match="nothing to merge"):
        merge_heads([])


def test_malformed_rows_are_not_cut():
    encoded = encode("raw")
    encoded.payload[0, 2] = 5  # num_valid of a block of 4
    with pytest.raises(CorruptDataError, match="num_valid 5"):
        take_heads(encoded, 0, 3)


def test_an_empty_batch_is_cut_and_merged():
    encoded = encode("raw")[:0]
    assert len(merge_heads(cut(encoded, [3, 3]))) == 0


def test_any_declared_head_axis_is_followed():
    @dataclass(frozen=True, slots=True)
    class HeadsLast(Raw):
        name = "heads_last"

        def sections(self, spec, mode):
            shape = (spec.block_size, spec.head_dim, spec.num_kv_heads)
            return (Section("turned", "<u2", shape, head_axis=2), Section("note", "u1"))

        def max_nbytes(self, spec):
            return 64 + 16 + 2 * spec.numel

    codec = HeadsLast()
    turned = torch.arange(4 * 3 * 6, dtype=torch.int16).reshape(4, 3, 6)
    spec = BlockSpec(4, 6, 3, torch.bfloat16)
    rows = EncodedBlocks.empty(codec, spec, 1)
    note = torch.tensor([7, 8, 9], dtype=torch.uint8).numpy()
    rows.nbytes[0] = write_row(
        rows.payload.numpy()[0],
        codec.sections(spec, 0),
        0,
        4,
        {"turned": turned.numpy(), "note": note},
    )
    (part,) = read_rows(take_heads(rows, 4, 6))
    assert part.parts["turned"].tolist() == turned[:, :, 4:].tolist()
    assert part.parts["note"].tolist() == [7, 8, 9]
    assert rows_of(merge_heads(cut(rows, [4, 2]))) == rows_of(rows)
