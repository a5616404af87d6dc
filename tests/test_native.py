"""The native host kernels at every instruction set, against the references."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance.views import VIEWS
from strategies import FLOATS, KINDS, make_cache

from kvcodec import BlockSpec, Codec, EncodedBlocks, get_codec, rans
from kvcodec.bits import from_bits, int_view, to_bits
from kvcodec.errors import CorruptDataError, ImplementationUnavailableError, InvalidInputError
from kvcodec.kernels import _native_call
from kvcodec.kernels._dense import reference_kernel
from kvcodec.kernels._native_call import NativeKernel
from kvcodec.kernels.fp8_native import Fp8Native
from kvcodec.kernels.raw_native import RawNative
from kvcodec.kernels.split_native import SplitNative
from kvcodec.registry import find_kernel
from kvcodec.row import align

CLASSES = {"raw": RawNative, "split": SplitNative, "fp8": Fp8Native}
FP8 = (
    "fp8",
    "fp8:dtype=e5m2",
    "fp8:scale=head",
    "fp8:scale=block",
    "fp8:scale=block,given=0.03",
    "fp8:scale=channel",
    "fp8:scale=token,scale_dtype=ue8m0",
)
NATIVE = Path(__file__).resolve().parents[1] / "kernels" / "native"
ISAS = _native_call.extension().isas() if _native_call._native else []
SMALL = (9, 3, 100)  # 32 lanes for every type; no size is a power of two


@pytest.fixture(scope="module", autouse=True)
def _built():
    if not ISAS:
        pytest.fail(f"not built: {RawNative().unavailable(torch.device('cpu'))}", pytrace=False)


@pytest.fixture(params=[index for index, _ in ISAS] or [0], ids=[name for _, name in ISAS] or ["-"])
def isa(request):
    return request.param


def encode(kernel, codec, cache, ids=None, num_valid=None, **options) -> EncodedBlocks:
    ids = torch.arange(len(cache)) if ids is None else torch.tensor(ids)
    valid = None if num_valid is None else torch.tensor(num_valid, dtype=torch.int32)
    rows = EncodedBlocks.empty(codec, BlockSpec.of(cache), len(ids))
    kernel.compress(cache, ids, valid, rows, **options)
    return rows


def decode(kernel, rows: EncodedBlocks, **options) -> np.ndarray:
    cache = torch.empty(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
    kernel.decompress(rows, cache, torch.arange(len(rows)), **options)
    return to_bits(cache)


def used(rows: EncodedBlocks) -> list[bytes]:
    payload, sizes = rows.payload.numpy(), rows.nbytes.tolist()
    return [row[:size].tobytes() for row, size in zip(payload, sizes, strict=True)]


def check_parity(kernel: NativeKernel, codec: Codec, cache: torch.Tensor, num_valid=None) -> None:
    expected = encode(reference_kernel(codec), codec, cache, num_valid=num_valid)
    rows = encode(kernel, codec, cache, num_valid=num_valid)
    assert used(rows) == used(expected)
    np.testing.assert_array_equal(decode(kernel, rows), to_bits(codec.decode(expected)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["split", "raw"])
def test_lossless_rows_equal_the_reference(isa, name, dtype):
    cache = make_cache(BlockSpec(*SMALL, dtype))
    check_parity(CLASSES[name](isa), get_codec(name), cache)
    check_parity(CLASSES[name](isa), get_codec(name), cache, [0, 1, 2, 3, 4, 5, 7, 8, 9, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", FP8)
def test_fp8_rows_equal_the_reference(isa, name, dtype):
    cache = make_cache(BlockSpec(*SMALL, dtype))
    check_parity(Fp8Native(isa), get_codec(name), cache)
    check_parity(Fp8Native(isa), get_codec(name), cache, [0, 1, 2, 3, 4, 5, 7, 8, 9, 1])


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 3), (5, 1, 1), (2, 3, 50), (256, 1, 128)], ids=str
)
def test_few_elements_and_many_lanes_equal_the_reference(isa, shape):
    cache = make_cache(BlockSpec(*shape, torch.bfloat16), KINDS[:8])
    for name, kernel in CLASSES.items():
        check_parity(kernel(isa), get_codec(name), cache)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_groups_cut_short_equal_the_reference(isa, dtype):
    """Tokens of 33 elements, so that the last group holds 1, 2, 3 or 4."""
    cache = make_cache(BlockSpec(80, 1, 33, dtype), ("normal",) * 4)
    check_parity(SplitNative(isa), get_codec("split"), cache, [77, 78, 79, 80])


@pytest.mark.parametrize("make", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize("name", ["split", "raw", "fp8", "fp8:scale=block"])
def test_strides_do_not_show(isa, name, make):
    codec, spec = get_codec(name), BlockSpec(6, 3, 40, torch.bfloat16)
    kernel, cache = CLASSES[codec.name](isa), make_cache(spec, KINDS[:4])
    _, view = make(cache)
    rows = encode(kernel, codec, cache, [2, 0, 3], [6, 0, 5])
    assert used(encode(kernel, codec, view, [2, 0, 3], [6, 0, 5])) == used(rows)

    _, target = make(torch.zeros_like(cache))
    kernel.decompress(rows, target, torch.tensor([2, 0, 3]))
    np.testing.assert_array_equal(to_bits(target)[[2, 0, 3]], to_bits(codec.decode(rows)))
    assert (int_view(target)[1] == 0).all()


def test_decompress_writes_only_its_blocks(isa):
    spec = BlockSpec(4, 2, 48, torch.bfloat16)
    noise = torch.randint(-(1 << 15), 1 << 15, (5, 3, 6, 64), dtype=torch.int16)
    for name, kernel in CLASSES.items():
        codec = get_codec(name)
        rows = encode(kernel(isa), codec, make_cache(spec, KINDS[:2]))
        buffer = noise.clone()
        view = buffer.view(torch.bfloat16)[:, :2, 1:5, 8:56].transpose(1, 2)
        kernel(isa).decompress(rows, view, torch.tensor([3, 1]))
        changed = buffer != noise
        changed.view(5, 3, 6, 64)[:, :2, 1:5, 8:56].transpose(1, 2)[[3, 1]] = False
        assert not changed.any()


def damaged_rows(codec: Codec, spec: BlockSpec, count: int) -> EncodedBlocks:
    """Sound rows with a few changed bytes each, most of them near the front, some cut."""
    rng = np.random.default_rng(5)
    kinds = ("normal", "two_symbols", "constant", "random_bits")
    sound = encode(CLASSES[codec.name](), codec, make_cache(spec, kinds), num_valid=[9, 8, 9, 7])
    payload = sound.payload.repeat(count // len(sound), 1)
    sizes = sound.nbytes.repeat(count // len(sound))
    for row in range(count):
        if rng.random() < 0.15:
            sizes[row] += int(rng.choice([-16, 16, -3, -int(sizes[row]), 1 << 30]))
            continue
        reach = int(rng.choice([2, 4, 16, 80, int(sizes[row])]))
        at = torch.from_numpy(rng.integers(0, reach, rng.integers(1, 4)))
        payload[row, at] ^= torch.from_numpy(rng.integers(1, 256, len(at), np.uint8))
    return EncodedBlocks(codec, spec, payload, sizes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float16], ids=str)
def test_damaged_split_rows_fare_as_under_the_reference(isa, dtype):
    check_damage(isa, get_codec("split"), BlockSpec(9, 3, 20, dtype))


def test_a_symbol_too_wide_matters_only_where_it_is_decoded(isa, monkeypatch):
    """A table may name exponent 40 of a 5-bit field, as long as no element has it."""

    def with_forty(counts: np.ndarray) -> np.ndarray:
        freqs = normalize(counts)
        freqs[np.argmax(freqs)] -= 1
        freqs[40] = 1
        return freqs

    normalize = rans.normalize
    monkeypatch.setattr(rans, "normalize", with_forty)
    codec, cache = get_codec("split"), make_cache(BlockSpec(16, 2, 64, torch.float16), ("normal",))
    rows = encode(reference_kernel(codec), codec, cache)
    np.testing.assert_array_equal(decode(SplitNative(isa), rows), to_bits(cache))


def test_words_left_over_are_refused(isa):
    """A coded row with eight more words than its states ask for, and the sizes to match."""
    codec, spec = get_codec("split"), BlockSpec(16, 2, 64, torch.bfloat16)
    row = encode(SplitNative(isa), codec, make_cache(spec, ("normal",))).payload[0].numpy().copy()
    table, words, raw = (int(n) for n in row[4:16].view("<u4"))
    end = 16 + align(table) + 4 * 32 + align(2 * words)
    longer = np.concatenate([row[:end], np.zeros(16, np.uint8), row[end : end + align(raw)]])
    longer[8:12].view("<u4")[:] += 8
    sizes = torch.tensor([longer.size], dtype=torch.int32)
    rows = EncodedBlocks(codec, spec, torch.from_numpy(longer)[None], sizes)
    with pytest.raises(CorruptDataError, match="does not end where its states do"):
        codec.decode(rows)
    with pytest.raises(CorruptDataError, match="words do not end where its states do"):
        decode(SplitNative(isa), rows)


@pytest.mark.parametrize("name", ["raw", "fp8", "fp8:scale=head"])
def test_damaged_fixed_rows_fare_as_under_the_reference(isa, name):
    check_damage(isa, get_codec(name), BlockSpec(9, 3, 20, torch.float16))


def check_damage(isa: int, codec: Codec, spec: BlockSpec) -> None:
    kernel, rows = CLASSES[codec.name](isa), damaged_rows(codec, spec, 400)
    refused = 0
    for i in range(len(rows)):
        row = rows[i : i + 1]
        try:
            with np.errstate(all="ignore"):
                expected = to_bits(codec.decode(row))
        except CorruptDataError:
            refused += 1
            with pytest.raises(CorruptDataError, match=f"^{codec.name}: row 0 of "):
                decode(kernel, row)
        else:
            np.testing.assert_array_equal(decode(kernel, row), expected)
    assert 50 < refused < 350


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", ["split", "raw", "fp8"])
def test_one_damaged_row_leaves_the_cache_alone_and_is_named(isa, name, num_threads):
    codec, kernel = get_codec(name), CLASSES[name](isa)
    cache = make_cache(BlockSpec(8, 2, 64, torch.bfloat16))
    rows = encode(kernel, codec, cache)
    rows.payload[6, 1] = 1
    rows.payload[8, 0] = 7
    target = torch.full_like(cache, 3.0)
    with pytest.raises(CorruptDataError, match=f"^{name}: row 6 .*reserved byte is not 0"):
        kernel.decompress(rows, target, torch.arange(len(cache)), num_threads=num_threads)
    assert (target == 3.0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("target", ["e4m3", "e5m2"])
def test_fp8_scales_of_any_bits_decode_as_under_the_reference(isa, target, dtype):
    """Every code that is a number under scales no encoder writes; each code that is NaN under 1."""
    scales = np.array(
        [1, np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, -3, 1e38, 1e-45, 2.0**-126, 2.0**101, 0.1],
        np.float32,
    )
    codec, spec = get_codec(f"fp8:dtype={target}"), BlockSpec(1, len(scales), 256, dtype)
    codes = np.tile(np.arange(256, dtype=np.uint8), (len(scales), 1))
    codes[1:][(codes[1:] & 0x7F) >= (0x7F if target == "e4m3" else 0x7D)] = 0
    row = np.zeros(codec.max_nbytes(spec), np.uint8)
    row[2] = 1
    row[16 : 16 + codes.size] = codes.ravel()
    row[16 + codes.size :][: scales.nbytes] = scales.view(np.uint8)
    sizes = torch.tensor([row.size], dtype=torch.int32)
    rows = EncodedBlocks(codec, spec, torch.from_numpy(row)[None], sizes)
    np.testing.assert_array_equal(decode(Fp8Native(isa), rows), to_bits(codec.decode(rows)))


def frequency_blocks() -> torch.Tensor:
    """Block f - 1 has f exponents of one value and 4096 - f of another, in a shuffled order."""
    rank = torch.from_numpy(np.random.default_rng(0).permutation(4096))
    first = rank < torch.arange(1, 4096)[:, None]
    bits = torch.where(first, 0x3F80, 0x4080) + (rank & 127)
    return bits.to(torch.int16).view(4095, 64, 1, 64).view(torch.bfloat16)


def test_every_frequency_comes_back(isa):
    cache, codec = frequency_blocks(), get_codec("split")
    rows = encode(SplitNative(isa), codec, cache)
    np.testing.assert_array_equal(decode(SplitNative(isa), rows), to_bits(cache))
    some = [0, 1, 2046, 2047, 2048, 3000, 3277, 4093, 4094]
    expected = encode(reference_kernel(codec), codec, cache, some)
    assert used(encode(SplitNative(isa), codec, cache, some)) == used(expected)


def test_a_coded_row_of_equal_size_stays_raw(isa):
    """96 equal exponents: 16 + 16 + 128 + 0 + 48 bytes coded, 16 + 192 raw."""
    bits = 0x3F80 + np.arange(96, dtype=np.uint16).reshape(1, 6, 1, 16)
    cache, codec = from_bits(bits, torch.bfloat16), get_codec("split")
    rows = encode(SplitNative(isa), codec, cache)
    assert rows.nbytes.tolist() == [16 + 192]
    assert rows.payload[0, 0] == 0
    check_parity(SplitNative(isa), codec, cache)


def test_ties_between_frequencies_go_to_the_smallest_symbol(isa):
    """Three equal counts leave 1 of 4096 to give; two equal ones and 100 rare ones, 33 to take."""
    three = np.arange(6144) % 3
    rare = np.concatenate([np.arange(100) + 10, np.arange(6044) % 2])
    bits = np.stack([three, rare]).astype(np.uint16) << 7
    cache = from_bits(bits.reshape(2, 64, 1, 96), torch.bfloat16)
    check_parity(SplitNative(isa), get_codec("split"), cache)


def test_reciprocals_divide_exactly():
    """A state is below freq * 2^20; the error of a reciprocal grows with it, so the top decides."""
    for freq in range(1, 4096):
        reciprocal, packed = _native_call.extension().encode_entry(freq, 0)
        bias, inc, shift = packed & 0x1FFF, packed >> 13 & 1, packed >> 16 & 15
        assert packed >> 20 == freq - 1
        for quotient in (1, 2, 77777, (1 << 20) - 1):
            for x in (quotient * freq, quotient * freq + freq - 1):
                q = ((x + inc) * reciprocal >> 32) >> shift
                assert x + bias + q * (4096 - freq) == x // freq * 4096 + x % freq


def test_threads_do_not_show(isa):
    spec = BlockSpec(64, 2, 64, torch.bfloat16)
    cache = make_cache(spec, KINDS * 3)
    for name, kernel in CLASSES.items():
        codec = get_codec(name)
        one = encode(kernel(isa), codec, cache, num_threads=1)
        many = encode(kernel(isa), codec, cache, num_threads=5)
        assert used(one) == used(many)
        np.testing.assert_array_equal(
            decode(kernel(isa), one, num_threads=1), decode(kernel(isa), one, num_threads=5)
        )


def test_no_thread_is_refused():
    with pytest.raises(InvalidInputError, match="num_threads is 0, wanted at least 1"):
        get_codec("raw").compress(torch.zeros(1, 1, 1, 8), [0], impl="native", num_threads=0)


@pytest.mark.parametrize("name", ["split", "raw", "fp8", "fp8:scale=head"])
def test_workspace_of_the_stated_size_is_enough_and_less_is_refused(name):
    codec, spec = get_codec(name), BlockSpec(16, 2, 64, torch.bfloat16)
    kernel, cache = CLASSES[codec.name](), make_cache(spec)
    needed = codec.workspace_nbytes(spec, len(cache), "native")
    workspace = torch.full((needed,), 0xA5, dtype=torch.uint8)
    rows = encode(kernel, codec, cache, workspace=workspace, num_threads=64)
    assert used(rows) == used(encode(kernel, codec, cache))
    np.testing.assert_array_equal(decode(kernel, rows, workspace=workspace), decode(kernel, rows))
    for bad in (workspace[: needed // 2][:-1], workspace.view(torch.int8)):
        if needed:
            with pytest.raises(InvalidInputError, match="workspace"):
                decode(kernel, rows, workspace=bad)


def test_offsets_past_2_31_elements(isa):
    """The third block of a plane whose blocks lie 2^30 + 64 elements apart; pages stay virtual."""
    apart = (1 << 30) + 64
    memory = np.frombuffer(mmap.mmap(-1, 2 * (2 * apart + 64)), np.uint16)
    cache = from_bits(memory, torch.bfloat16).as_strided((3, 4, 1, 16), (apart, 16, 16, 1))
    blocks = make_cache(BlockSpec(4, 1, 16, torch.bfloat16), ("normal", "ramp", "specials"))
    int_view(cache).copy_(int_view(blocks))
    for name, kernel in CLASSES.items():
        codec = get_codec(name)
        rows = encode(kernel(isa), codec, cache)
        assert used(rows) == used(encode(kernel(isa), codec, blocks))
        int_view(cache).zero_()
        kernel(isa).decompress(rows, cache, torch.arange(3))
        np.testing.assert_array_equal(to_bits(cache), to_bits(codec.decode(rows)))
        int_view(cache).copy_(int_view(blocks))


def test_rows_apart_and_scattered_sizes_are_kept(isa):
    """Rows may be a slice of wider ones, and sizes every second integer."""
    codec, spec = get_codec("split"), BlockSpec(4, 2, 32, torch.bfloat16)
    cache = make_cache(spec)
    wide = torch.full((len(cache), codec.max_nbytes(spec) + 48), 7, dtype=torch.uint8)
    sizes = torch.full((2 * len(cache),), -1, dtype=torch.int32)
    rows = EncodedBlocks(codec, spec, wide[:, :-48], sizes[::2])
    SplitNative(isa).compress(cache, torch.arange(len(cache)), None, rows)
    assert used(rows) == used(encode(reference_kernel(codec), codec, cache))
    assert (wide[:, -48:] == 7).all()
    assert (sizes[1::2] == -1).all()


def test_without_the_extension_vector_serves_and_native_says_why(monkeypatch):
    monkeypatch.setattr(_native_call, "_native", None)
    monkeypatch.setattr(_native_call, "_missing", "no module", raising=False)
    cpu = torch.device("cpu")
    for name in CLASSES:
        assert not isinstance(find_kernel(get_codec(name), "auto", cpu), NativeKernel)
        with pytest.raises(ImplementationUnavailableError, match=r"missing .*no module.*build_ext"):
            find_kernel(get_codec(name), "native", cpu)


def test_native_serves_the_host_only():
    assert RawNative().unavailable(torch.device("cpu")) is None
    assert "on cuda" in RawNative().unavailable(torch.device("cuda"))


def test_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="lacks the instruction set"):
        encode(RawNative(9), get_codec("raw"), torch.zeros(1, 1, 1, 8))


def test_instruction_sets_agree_under_sanitizers(tmp_path):
    """The fuzz driver with AVX-512 in plain C++; any access outside a row or a cache ends it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler: the extension could not have been built either"
    flags = "-std=c++17 -O0 -g1 -ffp-contract=off -DKV_EMULATE_AVX512 -c "
    flags += "-fsanitize=address,undefined -fno-sanitize-recover=all"
    sources = sorted(path for path in NATIVE.glob("*.cpp") if not path.stem.startswith("module"))
    running, halves = [], (sources[::2], sources[1::2])
    for half in halves:
        command = [compiler, *flags.split(), *map(str, half)]
        running.append(subprocess.Popen(command, cwd=tmp_path))
    assert [process.wait() for process in running] == [0, 0]
    objects = sorted(map(str, tmp_path.glob("*.o")))
    link = [compiler, "-fsanitize=address,undefined", "-pthread", *objects, "-o", "fuzz"]
    subprocess.run(link, cwd=tmp_path, check=True)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        ["./fuzz", "400", "1"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(ISAS) + (len(ISAS) < 3)} instruction sets" in done.stdout
