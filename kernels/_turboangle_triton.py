"""What both directions of turboangle do on a GPU: scales, levels, logarithms, packing."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import widen


@triton.jit
def scale_for(magnitude):
    """(down, up) for fp32 values >= 0, powers of two; see formats/turboangle.md."""
    field = (magnitude.to(tl.uint32, bitcast=True) >> 23).to(tl.int32)
    e = tl.minimum(tl.maximum(field, 1), 253)
    down = ((254 - e) << 23).to(tl.float32, bitcast=True)
    return down, (e << 23).to(tl.float32, bitcast=True)


@triton.jit
def norm_value(bits, E: tl.constexpr, M: tl.constexpr):
    """fp32 of stored norms, uint32 patterns; what no writer stores reads as 0."""
    INF: tl.constexpr = ((1 << E) - 1) << M
    return widen(tl.where(bits < INF, bits, 0), E, M)


@triton.jit
def levels(low, high, LOG: tl.constexpr):
    """Lowest and highest level of a vector."""
    if LOG:
        low = tl.maximum(low, high * 0.0009765625)  # 2^-10
    return tl.minimum(low, high), high


@triton.jit
def clamp(x, low, high):
    """x between its levels."""
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def log_of(logs_ptr, x):
    """`fixed_log.log_of`, int32."""
    bits = x.to(tl.int32, bitcast=True)
    j, f = (bits >> 15) & 0xFF, bits & 0x7FFF
    at = tl.load(logs_ptr + j)
    between = ((tl.load(logs_ptr + j + 1) - at) * f + 0x4000) >> 15
    return ((bits >> 23) << 16) + at + between


@triton.jit
def power_of(powers_ptr, log):
    """`fixed_log.power_of`, fp32."""
    j, f = (log >> 8) & 0xFF, log & 0xFF
    at = tl.load(powers_ptr + j)
    between = ((tl.load(powers_ptr + j + 1) - at) * f + 0x80) >> 8
    return (((log >> 16) << 23) + at + between).to(tl.float32, bitcast=True)


@triton.jit
def round_small(x):
    """Nearest integer of 0 <= x < 2^22, ties to even: the sum's last bit is worth 1."""
    return (x + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF


@triton.jit
def pack_codes(
    codes, at, inside, powers_ptr,
    COUNT: tl.constexpr, BASE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUP_NBYTES: tl.constexpr, NBYTES: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Store int32 codes [ROWS, PAIRS], 0 past COUNT, as NBYTES bytes at each of [ROWS] pointers."""
    if BITS > 0:
        WIDE: tl.constexpr = triton.next_power_of_2(GROUP_NBYTES)
        place = tl.arange(0, GROUP)[None, None, :, None] * BITS
        t = tl.arange(0, WIDE)[None, None, None, :]
        shift = place - 8 * t  # of a code into byte t of its group
        digits = tl.reshape(codes, [ROWS, PAIRS // GROUP, GROUP, 1])
        up, down = digits << tl.minimum(tl.maximum(shift, 0), 8), digits >> tl.maximum(-shift, 0)
        data = tl.sum(tl.where(shift >= 0, up, down) & 0xFF, 2)  # [ROWS, groups, WIDE]
        byte = tl.arange(0, WIDE)[None, None, :]
        place = tl.arange(0, PAIRS // GROUP)[None, :, None] * GROUP_NBYTES + byte
        keep = (byte < GROUP_NBYTES) & (place < NBYTES) & inside[:, None, None]
        tl.store(at[:, None, None] + place, data.to(tl.uint8), mask=keep)
    else:
        p = tl.arange(0, PAIRS)[None, :]
        values = codes.to(tl.int64) * tl.load(powers_ptr + p % GROUP)
        byte = tl.arange(0, 8)[None, :]
        for g in range(0, (COUNT + GROUP - 1) // GROUP):
            word = tl.sum(tl.where(p // GROUP == g, values, 0), 1)  # [ROWS], mod 2^64
            place = g * GROUP_NBYTES + byte
            keep = (byte < GROUP_NBYTES) & (place < NBYTES) & inside[:, None]
            data = (word[:, None] >> (8 * byte).to(tl.int64)) & 0xFF
            tl.store(at[:, None] + place, data.to(tl.uint8), mask=keep)


@triton.jit
def unpack_codes(
    at, inside, powers_ptr,
    COUNT: tl.constexpr, BASE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUP_NBYTES: tl.constexpr, NBYTES: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """int32 codes [ROWS, PAIRS] below BASE behind [ROWS] pointers; 0 outside."""
    p = tl.arange(0, PAIRS)[None, :]
    inside = inside[:, None] & (p < COUNT)
    if BITS > 0:
        place = p * BITS // 8
        low = tl.load(at[:, None] + place, mask=inside, other=0).to(tl.int32)
        more = inside & (place + 1 < NBYTES)
        high = tl.load(at[:, None] + place + 1, mask=more, other=0).to(tl.int32)
        codes = ((low | (high << 8)) >> (p * BITS % 8)) & (BASE - 1)
    else:
        word = tl.zeros([1, 1], tl.uint64)
        for t in tl.static_range(GROUP_NBYTES):
            place = p // GROUP * GROUP_NBYTES + t
            byte = tl.load(at[:, None] + place, mask=inside & (place < NBYTES), other=0)
            word = word | (byte.to(tl.uint64) << (8 * t))
        power = tl.load(powers_ptr + p % GROUP).to(tl.uint64)
        quotient = word // power
        codes = (quotient - quotient // BASE * BASE).to(tl.int32)
    return codes


@triton.jit
def load_bytes(at, first, inside, COUNT: tl.constexpr, NBYTES: tl.constexpr):
    """COUNT <= 4 bytes from `first` on behind each of these pointers as uint32; 0 past NBYTES."""
    word = (first * 0).to(tl.uint32)
    for t in tl.static_range(COUNT):
        byte = tl.load(at + first + t, mask=inside & (first + t < NBYTES), other=0)
        word = word | (byte.to(tl.uint32) << (8 * t))
    return word


@triton.jit
def load_run(at, run, inside, BITS: tl.constexpr, NBYTES: tl.constexpr):
    """Runs of 8 codes of BITS <= 8 bits by number behind pointers, as two words."""
    first = run * BITS
    if BITS == 8 and NBYTES % 8 == 0:
        words_ptr = at.to(tl.pointer_type(tl.uint32)) + 2 * run
        low = tl.load(words_ptr, mask=inside, other=0)
        high = tl.load(words_ptr + 1, mask=inside, other=0)
    else:
        low = load_bytes(at, first, inside, BITS if BITS < 4 else 4, NBYTES)
        high = load_bytes(at, first + 4, inside, BITS - 4 if BITS > 4 else 0, NBYTES)
    return low, high


@triton.jit
def code_of(low, high, BITS: tl.constexpr, J: tl.constexpr):
    """Code J of a run."""
    AT: tl.constexpr = J * BITS
    if AT >= 32:
        code = high >> (AT - 32)
    elif AT + BITS <= 32:
        code = low >> AT
    else:
        code = (low >> AT) | (high << (32 - AT))
    return (code & ((1 << BITS) - 1)).to(tl.int32)
