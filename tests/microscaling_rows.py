"""Readers and writers of nvfp4, mxfp4 and mxfp8 rows, made from the format pages in rationals."""

import struct
from fractions import Fraction

import torch
from rationals import NAN, WIDTHS, round_to, top_finite, value_of

from kvcodec import get_codec
from kvcodec.registry import IMPLEMENTATIONS, why_unavailable

E2M1 = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
EMAX = {"e2m1": 2, "e4m3fn": 8, "e5m2": 15}


def impls(name):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return [i for i in IMPLEMENTATIONS if why_unavailable(get_codec(name), i, device) is None]


def fp32(value):
    """A rational >= 0 rounded to fp32; overflow becomes the largest, as good as infinity here."""
    return value_of(round_to(value, "fp32"), "fp32")


def align(n):
    return -(-n // 16) * 16


def nearest_e2m1(value):
    """Code of a rational >= 0: the nearest value, of two the even code."""
    return min(range(8), key=lambda c: (abs(E2M1[c] - value), c & 1))


def parts(row, shape, group, code_format, has_global):
    """num_valid, codes and scales in row order, and the global scale or None."""
    tokens, heads, dim = shape
    mode, reserved, num_valid = struct.unpack_from("<BBH", row)
    assert (mode, reserved, row[4:16]) == (0, 0, bytes(12))
    numel = tokens * heads * dim
    packed = numel // 2 if code_format == "e2m1" else numel
    data, at = row[16 : 16 + packed], 16 + align(packed)
    codes = [c for b in data for c in (b & 15, b >> 4)] if code_format == "e2m1" else list(data)
    scales = row[at : at + numel // group]
    at += align(numel // group)
    (bits,) = struct.unpack_from("<I", row, at) if has_global else (None,)
    assert len(row) == at + (16 if has_global else 0)
    return num_valid, codes, list(scales), bits


def signed(negative, magnitude, element):
    return bool(negative) << sum(WIDTHS[element]) | magnitude


def read_nvfp4(row, shape, element, given=None):
    """Element patterns of an nvfp4 row."""
    num_valid, codes, scales, bits = parts(row, shape, 16, "e2m1", given is None)
    if given is not None:
        (bits,) = struct.unpack("<I", struct.pack("<f", given))
    out = []
    for i, code in enumerate(codes):
        if i // (shape[1] * shape[2]) >= num_valid:
            out.append(0)
            continue
        step = fp32(value_of(scales[i // 16], "e4m3fn") * value_of(bits, "fp32"))
        product = fp32(E2M1[code & 7] * step)
        out.append(signed(code >> 3, round_to(product, element), element))
    return out


def read_mx(row, shape, element, code_format):
    """Element patterns of an mxfp4 or mxfp8 row."""
    num_valid, codes, scales, _ = parts(row, shape, 32, code_format, False)
    sign = 8 if code_format == "e2m1" else 0x80
    out = []
    for i, code in enumerate(codes):
        value = E2M1[code & 7] if code_format == "e2m1" else value_of(code & 0x7F, code_format)
        if i // (shape[1] * shape[2]) >= num_valid:
            out.append(0)
            continue
        if value == "nan":
            magnitude = NAN[element]
        elif value == "inf":
            magnitude = top_finite(element)
        else:
            magnitude = round_to(value * Fraction(2) ** (scales[i // 32] - 127), element)
        out.append(signed(code & sign, magnitude, element))
    return out


def elements(bits, element):
    """(sign, value) of patterns; the value is a rational, "inf" or "nan"."""
    width = sum(WIDTHS[element])
    return [(b >> width, value_of(b & ((1 << width) - 1), element)) for b in bits]


def amax_of(group):
    return max((v for _, v in group if isinstance(v, Fraction)), default=Fraction(0))


def code_e2m1(sign, value, step):
    """E2M1 code of x over the step, by way of the fp32 quotient."""
    if value == "nan":
        return 7
    magnitude = 7 if value == "inf" else nearest_e2m1(fp32(value / step))
    return sign << 3 | magnitude


def quantize_nvfp4(group, scale, largest):
    """Scale byte and codes of a group whose largest value gets the code `largest`."""
    amax, byte = amax_of(group), 0x38
    if amax:
        ratio = fp32(amax / fp32(largest * scale))
        byte = round_to(min(max(ratio, Fraction(2) ** -9), Fraction(448)), "e4m3fn")
    step = fp32(value_of(byte, "e4m3fn") * scale)
    return byte, [code_e2m1(s, v, step) for s, v in group]


def minus(a, b):
    return fp32(abs(a - b))


def error_nvfp4(group, byte, codes, scale):
    """Error of a group as the page adds it up."""
    terms = []
    for (_, value), code in zip(group, codes, strict=True):
        finite = isinstance(value, Fraction)
        back = E2M1[code & 7] * value_of(byte, "e4m3fn")
        terms.append(fp32(minus(fp32(value / scale), back) ** 2) if finite else Fraction(0))
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [fp32(a + b) for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


def write_nvfp4(bits, shape, element, valid, four_over_six=False, given=None):
    """The row of a block's patterns."""
    _, heads, dim = shape
    values = elements(bits, element)[: valid * heads * dim]
    amax = amax_of(values)
    scale = max(fp32(amax / 2688), Fraction(2) ** -100) if amax else Fraction(1)
    if given is not None:
        (scale,) = (
            Fraction(*x.as_integer_ratio()) for x in struct.unpack("<f", struct.pack("<f", given))
        )
    codes, scales = [], []
    for begin in range(0, len(values), 16):
        group = values[begin : begin + 16]
        best = quantize_nvfp4(group, scale, 6)
        if four_over_six:
            other = quantize_nvfp4(group, scale, 4)
            if error_nvfp4(group, *other, scale) < error_nvfp4(group, *best, scale):
                best = other
        scales.append(best[0])
        codes += best[1]
    row = frame(codes, scales, shape, 16, valid, "e2m1")
    return row if given is not None else row + struct.pack("<f12x", float(scale))


def write_mx(bits, shape, element, valid, code_format):
    """The row of a block's patterns."""
    _, heads, dim = shape
    values = elements(bits, element)[: valid * heads * dim]
    codes, scales = [], []
    for begin in range(0, len(values), 32):
        group = values[begin : begin + 32]
        byte = max((round_to(amax_of(group), "fp32") >> 23) - EMAX[code_format], 0)
        scales.append(byte)
        step = Fraction(2) ** (byte - 127)
        for sign, value in group:
            if code_format == "e2m1":
                codes.append(code_e2m1(sign, value, step))
            elif value == "nan":
                codes.append(sign << 7 | 0x7F)
            else:
                top = top_finite(code_format)
                code = top if value == "inf" else round_to(fp32(value / step), code_format)
                codes.append(sign << 7 | code)
    return frame(codes, scales, shape, 32, valid, code_format)


def frame(codes, scales, shape, group, valid, code_format):
    """Prefix, codes and scales; zeros for unused tokens and padding."""
    numel = shape[0] * shape[1] * shape[2]
    codes = codes + [0] * (numel - len(codes))
    if code_format == "e2m1":
        codes = [a | b << 4 for a, b in zip(codes[::2], codes[1::2], strict=True)]
    row = struct.pack("<BBH12x", 0, 0, valid) + bytes(codes)
    row += bytes(-len(row) % 16) + bytes(scales)
    row += bytes(numel // group - len(scales))
    return row + bytes(-len(row) % 16)
