"""segments in Triton: views of aligned layouts, copies of others, runs, raw blocks, any strides."""

import numpy as np
import pytest
import torch
from conformance.views import padded_everywhere

from kvcodec import BlockSpec, get_codec, registry

SPEC = BlockSpec(6, 1, 1, torch.uint8)
MANY = "a.u8x2+b.u8x2+c.u8x1+d.u8x2+e.bf16x2+f.u8x1+g.u8x1+h.u8x1+i.u8x1"  # a prefix of 48 bytes
LAYOUTS = [
    ("a.bf16x16+b.bf16x8", "fp8:scale=head/raw"),
    ("k.bf16x16/s.bf16x4", "fp8:scale=head/raw"),
    ("a.u8x1+b.bf16x8", "raw/fp8"),  # bf16 at odd bytes
    (MANY, "raw/raw/raw/raw/fp8/raw/raw/raw/raw"),
    ("a.bf16x32+b.e4m3x16", "split/raw"),  # lossless: blocks that grow stay raw
    ("k.e4m3x33/s.bf16x4", "raw/split"),
]


def check(codec, cache, view, valid):
    ids = [2, 0, 1]
    rows = codec.compress(cache, ids, num_valid=valid, impl="reference")
    ours = codec.compress(view(cache), ids, num_valid=valid, impl="triton")
    assert ours.nbytes.tolist() == rows.nbytes.tolist()
    for i, size in enumerate(rows.nbytes.tolist()):
        assert torch.equal(ours.payload[i, :size], rows.payload[i, :size])
    expected = torch.full_like(cache, 0x5A)
    target = view(expected.clone())
    codec.decompress(rows, expected, [1, 2, 0], impl="reference")
    codec.decompress(rows, target, [1, 2, 0], impl="triton")
    assert torch.equal(target, expected)
    return rows


@pytest.mark.parametrize("valid", [None, [6, 3, 0]])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("layout", "codecs"), LAYOUTS, ids=[layout for layout, _ in LAYOUTS])
def test_rows_and_blocks_equal_the_references(layout, codecs, strided, valid):
    codec = get_codec(f"segments:layout={layout},codecs={codecs}")
    width = sum(part.head_dim * part.dtype.itemsize for part in codec.part_specs(SPEC))
    noise = np.random.default_rng(0).integers(0, 256, (3, 6, 1, width), np.uint8)
    cache = torch.from_numpy(noise)
    cache[1] = torch.arange(width, dtype=torch.uint8) // 16  # compressible
    view = (lambda c: padded_everywhere(c)[1]) if strided else (lambda c: c)
    rows = check(codec, cache, view, valid)
    modes = set(rows.payload[:, 0].tolist())
    assert modes == {1} if not codec.lossless else 0 in modes


def test_a_segment_whose_codec_has_no_gpu_kernel_is_named():
    codec = get_codec("segments:layout=a.bf16x16+b.bf16x8,codecs=zstd/raw")
    with pytest.raises(registry.ImplementationUnavailableError, match="zstd"):
        registry.load_kernel(codec, "triton")
