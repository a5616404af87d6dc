"""center=profile, as a reader of formats/center.md alone would have it; refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE, all_cases, cache_of, same, used
from profiles import make_profile, make_tables
from rationals import WIDTHS, round_to, value_of
from strategies import make_cache

import kvcodec
from kvcodec import (
    BlockSpec,
    EncodedBlocks,
    Plan,
    Profile,
    codec_from_config,
    codec_names,
    get_codec,
)
from kvcodec.bits import FORMATS, from_bits, int_view, to_bits
from kvcodec.centred import Centred, mean_of, shift
from kvcodec.errors import CorruptDataError, InvalidInputError, UnsupportedSpecError
from kvcodec.frame import dumps, loads
from kvcodec.heads import take_heads
from kvcodec.kernels import _native_call
from kvcodec.kernels._centred_native import NativeShifter
from kvcodec.kernels._centred_vector import shift as torch_shift
from kvcodec.quantizer import transcode
from kvcodec.registry import codec_class
from kvcodec.tables import Tables

SPEC = BlockSpec(4, 2, 64, torch.bfloat16)
CENTRED = [n for n in codec_names() if issubclass(codec_class(n), Centred)]
IMPLS = [case.impl for case in all_cases(lambda case: str(case.codec) == "fp8")]
HOSTS = [impl for impl in IMPLS if impl != "triton"]
ISAS = _native_call.extension().isas() if _native_call._native else []
MEANS = (0x0000, 0x8000, 0x3FC0, 0xC049, 0x0001, 0x8080, 0x7F7F, 0xFF7F, 0x3B01)  # bf16 patterns


def shifted(bits, mean, name, sign):
    """Pattern of one element after the page's sum; name is its format, mean a bf16 pattern."""
    e, m = WIDTHS[name]
    negative, magnitude = bits >> (e + m), bits & ((1 << (e + m)) - 1)
    value = value_of(magnitude, name)
    if isinstance(value, str):
        return bits
    a = -value if negative else value
    b = sign * value_of(mean & 0x7FFF, "bf16") * (-1 if mean >> 15 else 1)
    if a + b == 0:  # IEEE 754: -0 only of two negative zeros
        both = a == 0 and negative and (mean >> 15) ^ (sign < 0)
        return int(both) << (e + m)
    wide = round_to(abs(a + b), "fp32")
    return int(a + b < 0) << (e + m) | round_to(value_of(wide, "fp32"), name)


def patterns_of(dtype):
    """Bit patterns of a format: the edges of every field and some between."""
    fmt = FORMATS[dtype]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << (8 * fmt.itemsize), 400, np.uint64)
    e, m = fmt.exponent_bits, fmt.mantissa_bits
    edges = [s << (e + m) | x << m | y for s in (0, 1)
             for x in (0, 1, (1 << e) // 2 - 1, (1 << e) // 2, (1 << e) - 2, (1 << e) - 1)
             for y in (0, 1, (1 << m) - 1)]  # fmt: skip
    return np.concatenate([bits, np.array(edges, np.uint64)]).astype(f"u{fmt.itemsize}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_shift_is_the_pages_sum_rounded_twice(dtype, sign):
    fmt = FORMATS[dtype]
    bits = patterns_of(dtype)
    for mean in MEANS:
        wanted = [shifted(int(x), mean, fmt.name, sign) for x in bits]
        by = np.array([mean << 16], np.uint32).view(np.float32) * np.float32(sign)
        assert shift(bits, by, fmt).tolist() == wanted, hex(mean)
        moved = torch_shift(from_bits(bits, dtype), torch.from_numpy(by))
        assert to_bits(moved).tolist() == wanted, hex(mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torchs_shift_equals_the_reference_for_every_pattern(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    for mean in MEANS:
        by = np.array([mean << 16], np.uint32).view(np.float32)
        moved = torch_shift(from_bits(bits.copy(), dtype), torch.from_numpy(by))
        assert (to_bits(moved) == shift(bits, by, FORMATS[dtype])).all()


def by_page(blocks, patterns, sign, name, valid):
    """Every valid element of blocks through the page's sum; zeros elsewhere."""
    bits = np.zeros(blocks.shape, f"u{blocks.dtype.itemsize}")
    for i, filled in enumerate(valid):
        for at in np.ndindex(filled, *blocks.shape[2:]):
            found = int(to_bits(blocks)[(i, *at)])
            bits[(i, *at)] = shifted(found, int(patterns[at[1:]]), name, sign)
    return from_bits(bits, blocks.dtype)


@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize("entropy", ["none", "rans"])
def test_rows_are_those_of_the_elements_less_the_means(name, entropy):
    """What the page says: the codec's own row of y, and y' plus the mean."""
    spec = BlockSpec(2, 2, 32, torch.bfloat16)
    plain = get_codec(f"{name}:entropy={entropy}")
    codec = replace(plain, center="profile").bind(make_profile(spec), 0, "key")
    means = codec.held().arrays["mean"]
    cache, valid = make_cache(spec, ("normal", "specials", "zeros")), [2, 2, 1]
    less = by_page(cache, means, -1, "bf16", valid)
    rows = plain.compress(less, range(3), num_valid=valid, impl="reference")
    decoded = torch.empty_like(cache)
    plain.decompress(rows, decoded, range(3), impl="reference")
    wanted = by_page(decoded, means, 1, "bf16", valid)
    for impl in HOSTS:
        made = codec.compress(cache, range(3), num_valid=valid, impl=impl)
        assert used(made) == used(rows), impl
        target = make_cache(spec, ("random_bits",) * 3)
        codec.decompress(made, target, range(3), impl=impl)
        assert same(target, wanted), impl


def test_centring_mends_keys_that_lie_far_from_zero():
    """16 dB here: the mean is 8 times the spread of a channel about it."""
    spec = BlockSpec(16, 2, 64, torch.bfloat16)
    tables = make_tables(spec)
    mean = torch.from_numpy(mean_of(tables)) * 8
    patterns = (mean.to(torch.bfloat16).view(torch.int16).numpy()).view("<u2")
    profile = Profile({(0, "key"): replace(tables, arrays={"mean": patterns})})
    noise = torch.randn(4, *spec.shape, generator=torch.Generator().manual_seed(0))
    cache = (mean + noise).to(torch.bfloat16)
    errors = []
    for text in ("nvfp4", "nvfp4:center=profile"):
        codec = get_codec(text).bind(profile, 0, "key")
        target = torch.empty_like(cache)
        codec.decompress(codec.compress(cache, range(4)), target, range(4))
        errors.append((target.double() - cache.double()).square().mean())
    assert errors[0] > 30 * errors[1]


@pytest.mark.parametrize("name", CENTRED)
def test_without_center_a_config_is_what_it_was(name):
    codec, centred = get_codec(name), get_codec(f"{name}:center=profile")
    assert not {"center", "tables"} & set(codec.config()["params"])
    assert (codec.needs_profile, centred.needs_profile) == (False, True)
    assert codec.bind(make_profile(SPEC), 0, "key") is codec
    bound = centred.bind(make_profile(SPEC), 0, "key")
    assert bound.tables == make_profile(SPEC).plane(0, "key").select(("mean",)).hash
    assert codec_from_config(bound.config()) == bound == get_codec(str(bound))
    assert bound.uncentred == codec


def test_what_cannot_be_centred_says_why():
    with pytest.raises(InvalidInputError, match="center is 'mean', wanted none or profile"):
        get_codec("fp8:center=mean")
    with pytest.raises(InvalidInputError, match="use no profile; leave it out"):
        get_codec(f"fp8:tables={'0' * 64}")
    cache, codec = make_cache(SPEC, ("normal",)), get_codec("fp8:center=profile")
    with pytest.raises(InvalidInputError, match="needs tables of a profile and holds none; use"):
        codec.compress(cache, [0])
    bare = Profile({(0, "key"): make_tables(SPEC).select(("centre",))})
    with pytest.raises(InvalidInputError, match="tables mean are missing, the plane has centre"):
        codec.bind(bare, 0, "key")
    with pytest.raises(InvalidInputError, match="no value tables of layer 0"):
        codec.bind(bare, 0, "value")


@pytest.mark.parametrize("name", CENTRED)
def test_blocks_that_the_means_do_not_fit_are_unsupported(name):
    codec = get_codec(f"{name}:center=profile").bind(make_profile(SPEC), 0, "key")
    for spec in (replace(SPEC, num_kv_heads=3), replace(SPEC, dtype=torch.float16)):
        with pytest.raises(UnsupportedSpecError, match="its tables are of bf16 planes with 2 head"):
            codec.compress(make_cache(spec, ("normal",)), [0])


def test_keys_alone_can_be_centred():
    plan = Plan.parse("key=nvfp4:center=profile,value=nvfp4").bind(make_profile(SPEC))
    assert plan.codec(0, "key", 0).held().arrays.keys() == {"mean"}
    assert plan.codec(0, "value", 0) == get_codec("nvfp4")


def test_a_frame_names_the_means_and_is_read_with_them():
    profile, cache = make_profile(SPEC), make_cache(SPEC, ("normal", "outlier"))
    codec = get_codec("turboquant:center=profile").bind(profile, 0, "key")
    rows = codec.compress(cache, [0, 1])
    frame = loads(dumps(rows), profiles=[profile])
    assert frame.identity.profile_hash == profile.hash
    target, wanted = torch.empty_like(cache), torch.empty_like(cache)
    kvcodec.decompress(next(frame.batches())[1], target, [0, 1])
    codec.decompress(rows, wanted, [0, 1])
    assert same(target, wanted)


def test_entropy_goes_on_and_off_under_the_same_means():
    codec = get_codec("nvfp4:center=profile").bind(make_profile(SPEC), 0, "key")
    coded, cache = replace(codec, entropy="rans"), make_cache(SPEC, ("normal", "specials"))
    rows = codec.compress(cache, [0, 1])
    assert used(transcode(rows, coded)) == used(coded.compress(cache, [0, 1]))
    other = get_codec("nvfp4:center=profile").bind(make_profile(SPEC), 0, "value")
    for wrong in (get_codec("nvfp4"), other):
        with pytest.raises(InvalidInputError, match="transcode"):
            transcode(rows, wrong)


def test_heads_are_not_cut_out_of_centred_rows():
    codec = get_codec("fp8:center=profile").bind(make_profile(SPEC), 0, "key")
    rows = codec.compress(make_cache(SPEC, ("normal",)), [0])
    with pytest.raises(UnsupportedSpecError, match="name tables of all heads"):
        take_heads(rows, 0, 1)


@pytest.mark.parametrize("impl", HOSTS)
def test_a_damaged_row_leaves_the_cache_as_it_was(impl):
    codec = get_codec("nvfp4:center=profile,entropy=rans").bind(make_profile(SPEC), 0, "key")
    rows = codec.compress(cache_of(SPEC), [0, 1, 2], impl=impl)
    rows.payload[1, 1] = 1
    target = make_cache(SPEC, ("random_bits",) * 3)
    before = int_view(target).clone()
    with pytest.raises(CorruptDataError):
        codec.decompress(rows, target, [0, 1, 2], impl=impl)
    assert torch.equal(int_view(target), before)


@pytest.mark.skipif("triton" not in IMPLS, reason="Triton does not run here")
def test_tritons_shift_equals_the_reference():
    """Rows, blocks, unused slots, through strides; every special value of each source."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        spec = BlockSpec(2, 2, 64, dtype)
        codec = get_codec("fp8:center=profile,scale=block").bind(make_profile(spec), 0, "key")
        wide = make_cache(replace(spec, head_dim=65), ("specials", "normal", "random_bits"))
        cache, valid = wide[..., 1:].to(DEVICE), [2, 0, 1]
        rows = codec.compress(cache, [2, 0, 1], num_valid=valid, impl="reference")
        made = codec.compress(cache, [2, 0, 1], num_valid=valid, impl="triton")
        assert used(made) == used(rows)
        targets = [make_cache(spec, ("random_bits",) * 3).to(DEVICE) for _ in "ab"]
        for target, impl in zip(targets, ("triton", "reference"), strict=True):
            codec.decompress(rows, target, [1, 2, 0], impl=impl)
        assert same(*targets)


@pytest.mark.parametrize("isa", [index for index, _ in ISAS], ids=[name for _, name in ISAS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_instruction_set_shifts_as_the_reference(isa, dtype):
    """All patterns of 16 bits, or the edges of 32; a head that fills no piece; unused slots."""
    fmt, shifter = FORMATS[dtype], NativeShifter(isa)
    bits = np.arange(1 << 16, dtype=np.uint16) if fmt.itemsize == 2 else patterns_of(dtype)
    spec = BlockSpec(8, 2, 37, dtype)
    blocks = np.resize(bits, (-(-bits.size // spec.numel), *spec.shape))
    n = len(blocks)
    cache = from_bits(blocks, dtype).transpose(1, 2).contiguous().transpose(1, 2)
    for mean in MEANS:
        arrays = {"mean": np.resize(np.array([mean, 0x3F91], "<u2"), (2, 37))}
        profile = Profile({(0, "key"): Tables((fmt.name, 2, 37), arrays)})
        codec = get_codec("fp8:center=profile").bind(profile, 0, "key")
        rows, by = EncodedBlocks.empty(codec, spec, n), mean_of(codec.held())
        rows.payload.zero_()
        rows.payload[:, 2] = torch.arange(n) % 9
        staged = torch.empty(n, *spec.shape, dtype=dtype)
        shifter.take_off(cache, torch.arange(n), rows, staged, 2)
        assert (to_bits(staged) == shift(blocks, -by, fmt)).all()
        target, staged = torch.full_like(cache, 3), from_bits(blocks.copy(), dtype)
        shifter.put_back(staged, rows, target, torch.arange(n).flip(0), 2)
        wanted = shift(blocks, by, fmt)
        for block, filled in zip(wanted, rows.payload[:, 2].tolist(), strict=True):
            block[filled:] = 0
        assert (to_bits(target.flip(0)) == wanted).all()
