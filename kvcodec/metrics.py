"""What a codec costs and what it changes, measured on its rows and on what they decode to."""

from __future__ import annotations

import math

import torch

from kvcodec.block import EncodedBlocks
from kvcodec.errors import InvalidInputError

CHUNK = 1 << 24  # elements held in fp64 at a time


def bits_per_element(encoded: EncodedBlocks) -> float:
    """Bits of whole rows, side information and padding included, per element; NaN without rows.

    A partly filled block counts as a whole one. Syncs on a GPU.
    """
    numel = len(encoded) * encoded.spec.numel
    return 8 * encoded.total_nbytes() / numel if numel else math.nan


def sqnr_db(reference: torch.Tensor, decoded: torch.Tensor) -> float:
    """Signal to quantization noise in dB: 10 log10(sum x^2 / sum (x - y)^2), summed in fp64.

    Elements whose reference is NaN or infinite are left out. Infinite when nothing differs, minus
    infinity when only the signal is zero, NaN when a decoded value is NaN.
    """
    if reference.shape != decoded.shape:
        raise InvalidInputError(
            f"sqnr_db: decoded has shape {tuple(decoded.shape)}, wanted {tuple(reference.shape)}"
        )
    signal = noise = 0.0
    flat, other = reference.reshape(-1), decoded.reshape(-1)
    for begin in range(0, flat.numel(), CHUNK):
        x, y = (t[begin : begin + CHUNK].double() for t in (flat, other))
        finite = x.isfinite()
        x, y = x[finite], y[finite]
        signal += float(x.square().sum())
        noise += float((x - y).square().sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
