"""zstd: rows by an independent reader, hostile frames, threads, and what it does not promise."""

import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import zstandard
from strategies import KINDS, make_cache

import kvcodec
from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import DTYPES, to_bits
from kvcodec.errors import (
    CorruptDataError,
    ImplementationUnavailableError,
    InvalidInputError,
    UnknownCodecError,
)
from kvcodec.registry import find_kernel

SPEC = BlockSpec(16, 2, 64, torch.bfloat16)
N = SPEC.numel


def align(n: int) -> int:
    return (n + 15) // 16 * 16


def read(row: bytes, itemsize: int, token_numel: int) -> list[int]:
    """The elements of a row, after formats/zstd.md."""
    mode, reserved, valid = struct.unpack_from("<BBH", row)
    assert reserved == 0
    n, num_parts = valid * token_numel, itemsize if mode else 1
    sizes = struct.unpack_from(f"<{num_parts}I", row, 4)
    at, parts = align(4 + 4 * num_parts), []
    for size in sizes:
        parts.append(row[at : at + size])
        assert not any(row[at + size : at + align(size)])
        at += align(size)
    assert at == len(row)
    if mode == 0:
        return [x for (x,) in struct.iter_unpack({1: "<B", 2: "<H", 4: "<I"}[itemsize], parts[0])]
    planes = [zstandard.ZstdDecompressor().decompress(part) for part in parts]
    assert [len(plane) for plane in planes] == [n] * itemsize
    return [int.from_bytes(each, "big") for each in zip(*planes, strict=True)]


@pytest.mark.parametrize("impl", ["reference", "vector"])
@pytest.mark.parametrize("name", ["bf16", "fp32", "e4m3fn", "u8"])
def test_rows_are_what_the_format_page_says(name, impl):
    spec = BlockSpec(16, 2, 64, DTYPES[name])
    cache = make_cache(spec, KINDS, 0, "cpu")
    valid = [16 - i % 3 for i in range(len(KINDS))]
    rows = kvcodec.compress(cache, range(len(KINDS)), "zstd", num_valid=valid, impl=impl)
    modes = set()
    for i, size in enumerate(rows.nbytes.tolist()):
        row = rows.payload[i, :size].numpy().tobytes()
        wanted = to_bits(cache[i])[: valid[i]].reshape(-1).tolist()
        assert read(row, spec.dtype.itemsize, spec.token_numel) == wanted
        modes.add(row[0])
    assert modes == {0, 1}


def row_of(*planes: bytes, valid: int = 16) -> EncodedBlocks:
    """A batch of one coded row that holds these parts."""
    row = struct.pack("<BBH2I", 1, 0, valid, *map(len, planes)).ljust(16, b"\0")
    row += b"".join(plane.ljust(align(len(plane)), b"\0") for plane in planes)
    payload = np.zeros((1, max(len(row), get_codec("zstd").max_nbytes(SPEC))), np.uint8)
    payload[0, : len(row)] = np.frombuffer(row, np.uint8)
    nbytes = torch.tensor([len(row)], dtype=torch.int32)
    return EncodedBlocks(get_codec("zstd"), SPEC, torch.from_numpy(payload), nbytes)


def frame(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


GOOD = frame(bytes(N))
ONE_BYTE_MORE = frame(bytes(N + 1))
# Magic; 8-byte content size and a window descriptor; a content size of 2^40; one RLE block.
CLAIMS_2_40 = bytes.fromhex("28b52ffd") + b"\xc0\x60" + struct.pack("<Q", 1 << 40) + b"\x03\0\0\0"
WINDOW_2_31 = bytes.fromhex("28b52ffd") + b"\x40\xa8" + struct.pack("<H", N - 256) + b"\x03\0\0\0"
HOSTILE = {
    "nothing": (b"", "damaged"),
    "no_frame": (b"\0" * 32, "damaged"),
    "cut": (GOOD[:-1], "damaged"),
    "header_alone": (GOOD[:6], "damaged"),
    "one_byte_less": (frame(bytes(N - 1)), f"a plane of {N - 1} bytes"),
    "one_byte_more": (ONE_BYTE_MORE, f"a plane of {N + 1} bytes"),
    "bomb": (frame(bytes(1 << 26)), f"a plane of {1 << 26} bytes"),
    "claims_2_40_bytes": (CLAIMS_2_40, f"a plane of {1 << 40} bytes"),
    "claims_less_than_it_holds": (
        ONE_BYTE_MORE.replace(struct.pack("<H", N + 1 - 256), struct.pack("<H", N - 256), 1),
        "damaged",
    ),
    "window_2_31": (WINDOW_2_31, f"a window of {1 << 31}"),
    "no_content_size": (frame(bytes(N), write_content_size=False), "a plane of"),
    "second_frame": (GOOD + frame(b""), "damaged"),
    "bytes_behind": (GOOD + b"\0", "damaged"),
    "skippable": (struct.pack("<II", 0x184D2A50, N) + bytes(N), "a plane"),
}


def test_a_row_made_by_hand_decodes():
    cache = torch.ones(1, *SPEC.shape, dtype=SPEC.dtype)
    rows = row_of(GOOD, frame(bytes([7]) * N, write_checksum=True))
    rows.codec.decompress(rows, cache, [0])
    assert (to_bits(cache) == 7).all()


@pytest.mark.parametrize("impl", ["reference", "vector"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_is_refused_before_it_allocates(name, first, impl):
    part, message = HOSTILE[name]
    rows = row_of(part, GOOD) if first else row_of(GOOD, part)
    cache = torch.full((1, *SPEC.shape), 3.0, dtype=SPEC.dtype)
    tracemalloc.start()
    with pytest.raises(CorruptDataError, match=message):
        rows.codec.decompress(rows, cache, [0], impl=impl)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert (cache == 3).all()


def test_a_coded_row_without_tokens_is_refused():
    rows = row_of(frame(b""), frame(b""), valid=0)
    with pytest.raises(CorruptDataError, match="without valid tokens"):
        rows.codec.decode(rows)


@pytest.mark.parametrize("level", [-8, 20, 0, True, "1", 1.0])
def test_a_level_that_does_not_exist_is_refused(level):
    with pytest.raises(InvalidInputError, match="level"):
        type(get_codec("zstd"))(level=level)


def test_a_level_of_a_spec_string_or_a_frame_is_checked():
    with pytest.raises(UnknownCodecError):
        kvcodec.codec_from_config({"name": "zstd", "version": 1, "params": {"level": 23}})
    assert get_codec("zstd:level=19").level == 19
    assert str(get_codec("zstd:level=1")) == "zstd"


@pytest.mark.parametrize("level", [-7, -1, 1, 3, 12, 19])
def test_a_context_that_coded_other_blocks_gives_the_bytes_of_a_fresh_one(level):
    """A row does not depend on the batch it is in, nor on how rows were dealt to threads."""
    codec = get_codec(f"zstd:level={level}")
    cache = make_cache(SPEC, KINDS * 2, 0, "cpu")
    together = codec.compress(cache, range(len(cache)), impl="reference")
    dealt = codec.compress(cache, range(len(cache)), impl="vector", num_threads=2)
    for i, size in enumerate(together.nbytes.tolist()):
        alone = codec.compress(cache, [i], impl="reference")
        assert alone.nbytes.tolist() == [size] == dealt.nbytes[i : i + 1].tolist()
        assert torch.equal(alone.payload[0, :size], together.payload[i, :size])
        assert torch.equal(dealt.payload[i, :size], together.payload[i, :size])


def test_one_codec_serves_many_threads():
    codec, cache = get_codec("zstd"), make_cache(SPEC, KINDS, 0, "cpu")
    ids = range(len(cache))

    def cycle(seed: int) -> bool:
        impl = ("reference", "vector")[seed % 2]
        rows = codec.compress(cache, ids, impl=impl, num_threads=2)
        target = torch.zeros_like(cache)
        codec.decompress(rows, target, ids, impl=impl, num_threads=2)
        return bool((to_bits(target) == to_bits(cache)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(cycle, range(24)))


def test_a_damaged_row_among_threads_leaves_the_cache_as_it_was():
    spec = BlockSpec(256, 2, 128, torch.bfloat16)  # 128 KiB: threads start
    cache = make_cache(spec, ("normal",) * 6, 0, "cpu")
    rows = kvcodec.compress(cache, range(6), "zstd")
    rows.payload[5, 40:80] = 0xFF
    target = torch.zeros_like(cache)
    with pytest.raises(CorruptDataError):
        rows.codec.decompress(rows, target, range(6), num_threads=2)
    assert not target.any()
    with pytest.raises(InvalidInputError, match="num_threads"):
        rows.codec.decompress(rows, target, range(6), num_threads=0)


@pytest.mark.parametrize(("impl", "device"), [("triton", "cpu"), ("auto", "cuda")])
def test_it_says_that_it_is_for_the_host(impl, device):
    with pytest.raises(ImplementationUnavailableError, match="host tier only"):
        find_kernel(get_codec("zstd"), impl, torch.device(device))
