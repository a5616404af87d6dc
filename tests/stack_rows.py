"""What the tests of the stack share: a quantizer with a part of every coding, and its rows."""

from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import BlockSpec, EncodedBlocks, Section
from kvcodec.quantizer import Quantizer
from kvcodec.row import write_row

SPEC = BlockSpec(30, 2, 20, torch.bfloat16)
WIDE = BlockSpec(36, 2, 128, torch.bfloat16)  # 18 KiB: 64 lanes


@dataclass(frozen=True, slots=True)
class AllCodings(Quantizer):
    """Parts of every coding, of tokens, of groups of 4 tokens, and of the block."""

    name = "all-codings"
    lossless = False

    entropy: str = "none"

    def supports(self, spec):
        return None

    def parts(self, spec):
        t, h, d = spec.shape
        groups = -(-t // 4)
        return (
            Section("global", "<f4", (3,)),
            Section("codes", "u1", (t, h, d // 2), coding="e2m1", tokens=1),
            Section("angles", "u1", (t, h, d // 4), coding="bytes", tokens=1),
            Section("elements", "u1", (t, h, d), coding="e4m3fn", tokens=1),
            Section("odd", "u1", (t, 3), coding="e5m2", tokens=1),
            Section("scales", "<u2", (groups, h, 1), coding="fp16", tokens=4),
            Section("pairs", "u1", (groups, 3), coding="nibbles", tokens=4),
            Section("norms", "<f4", (h,), coding="fp32"),
            Section("offsets", "<u2", (t, h), coding="bf16", tokens=1),
            Section("low", "u1", (t, 5), tokens=1),
        )

    def quantize(self, blocks, num_valid, out, positions=None):
        raise NotImplementedError

    dequantize = quantize


def plain_rows(codec, spec, num_valid, kind, seed=0):
    """Plain rows whose parts hold random bytes of a kind, and zeros past the valid tokens."""
    rng = np.random.default_rng(seed)
    rows = EncodedBlocks.empty(codec.plain, spec, len(num_valid))
    rows.payload.fill_(0xA5)
    parts = codec.parts(spec)
    for i, valid in enumerate(num_valid):
        data = {}
        for section in parts:
            data[section.name] = random_bytes(rng, section.nbytes(), kind)
            data[section.name][section.used_nbytes(valid) :] = 0
            data[section.name] = data[section.name].view(section.dtype).reshape(section.shape)
        rows.nbytes[i] = write_row(rows.payload[i].numpy(), parts, 0, valid, data)
    return rows


def random_bytes(rng, n, kind):
    if kind == "noise":
        return rng.integers(0, 256, n, np.uint8)
    if kind == "constant":
        return np.full(n, 0x38, np.uint8)
    return np.minimum(rng.geometric(0.3, n) * 8 + rng.integers(0, 3, n), 255).astype(np.uint8)
