"""What the tests of fp8 share: implementations, rows, and the parts of rows."""

import math

import numpy as np
import torch

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import DTYPES, FORMATS, from_bits, int_view
from kvcodec.codecs.fp8 import Fp8
from kvcodec.registry import IMPLEMENTATIONS, why_unavailable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMPLS = [i for i in IMPLEMENTATIONS if why_unavailable(get_codec("fp8"), i, DEVICE) is None]
TARGETS = ("e4m3", "e5m2")
ELEMENTS = ("bf16", "fp16", "fp32")
SCALES = ("token_head", "head", "block")
UNIT = {dtype: Fp8(dtype=dtype, scale="block", given=(1.0,)) for dtype in TARGETS}


def fmt(name):
    return FORMATS[DTYPES[name]]


def encoding(dtype):
    return "e4m3fn" if dtype == "e4m3" else "e5m2"


def encode(codec, blocks, impl, num_valid=None):
    """Rows of dense blocks; every reserved byte was 0xA5 before."""
    cache = blocks.to(DEVICE)
    out = EncodedBlocks.empty(codec, BlockSpec.of(cache), len(cache), DEVICE)
    out.payload.fill_(0xA5)
    codec.compress(cache, range(len(cache)), num_valid=num_valid, out=out, impl=impl)
    return out.to("cpu")


def decode(rows, impl):
    """Blocks of rows, decoded over a cache that was all ones bits."""
    cache = torch.empty(len(rows), *rows.spec.shape, dtype=rows.spec.dtype, device=DEVICE)
    int_view(cache).fill_(-1)
    done = rows.codec.decompress(rows.to(DEVICE), cache, range(len(rows)), impl=impl)
    if done is not None:
        done.synchronize()
    return cache.cpu()


def codes_of(rows):
    """Codes [n, *shape] of rows."""
    end = 16 + rows.spec.numel
    return rows.payload[:, 16:end].reshape(-1, *rows.spec.shape).numpy()


def scales_of(rows):
    """Measured scales [n, *scale_shape] of rows."""
    shape = rows.codec.scale_shape(rows.spec)
    begin = 16 + -(-rows.spec.numel // 16) * 16
    data = rows.payload[:, begin : begin + 4 * math.prod(shape)].contiguous()
    return data.numpy().view("<f4").reshape(-1, *shape)


def as_block(bits, name):
    """One block that holds all patterns, zeros at its end; 64 channels."""
    padded = np.zeros((1, -(-len(bits) // 64), 1, 64), bits.dtype)
    padded.reshape(-1)[: len(bits)] = bits
    return from_bits(padded, DTYPES[name])


def random_blocks(spec, n, seed=0, specials=True):
    """Blocks of mixed magnitudes with NaN, infinities and zeros of both signs strewn in."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, *spec.shape)) * np.exp(2 * rng.standard_normal((n, *spec.shape)))
    x *= 10.0 ** rng.integers(-4, 4, (n, *spec.shape[:2], 1))
    if specials:
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0])
        x = np.where(rng.random(x.shape) < 0.05, rng.choice(odd, x.shape), x)
    return torch.from_numpy(x).to(spec.dtype)
