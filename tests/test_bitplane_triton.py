"""bitplane's Triton kernels against the reference: what the contract suite's small blocks miss."""

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE, same, used
from strategies import make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import DTYPES, int_view
from kvcodec.codecs.bitplane import CODED

pytest.importorskip("triton")
bitplane_triton = pytest.importorskip("kvcodec.kernels.bitplane_triton")

CODECS = ["bitplane", "bitplane:bits=2+3"]
SHAPES = {  # what it shows -> type and shape
    "pairs of halves": ("bf16", (16, 2, 32)),
    "channels that divide no slot": ("fp16", (35, 3, 35)),
    "pairs of words": ("fp32", (20, 2, 16)),
    "two tiles, of bytes": ("e5m2", (17, 3, 170)),
    "tokens past a chunk, no slot like another": ("e4m3fn", (70, 1, 33)),
}


def check_parity(codec, cache, valid):
    rows = codec.compress(cache, range(len(cache)), num_valid=valid, impl="triton")
    expected = codec.compress(cache, range(len(cache)), num_valid=valid, impl="reference")
    assert used(rows) == used(expected)
    target = torch.empty_like(cache)
    codec.decompress(expected, target, range(len(cache)), impl="triton")
    wanted = torch.empty_like(cache)
    codec.decompress(expected, wanted, range(len(cache)), impl="reference")
    assert same(target, wanted)
    return expected


@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("text", CODECS)
def test_triton_rows_and_blocks_equal_the_references(text, what):
    name, shape = SHAPES[what]
    cache = make_cache(BlockSpec(*shape, DTYPES[name]), ("outlier",), device=str(DEVICE))
    rows = check_parity(get_codec(text), cache, [shape[0] - 1])
    assert rows.payload[0, 0] == CODED


@pytest.mark.parametrize("text", CODECS)
def test_triton_takes_caches_whose_pairs_do_not_lie_side_by_side(text):
    spec = BlockSpec(16, 2, 30, torch.bfloat16)
    dense = make_cache(spec, ("normal",), device=str(DEVICE))
    for gaps in (
        torch.zeros(1, 16, 2, 60, dtype=torch.int16, device=DEVICE)[..., ::2],
        torch.zeros(1, 16, 2, 31, dtype=torch.int16, device=DEVICE)[..., :30],
        torch.zeros(1, 16, 2, 32, dtype=torch.int16, device=DEVICE)[..., 1:31],
    ):
        cache = gaps.view(torch.bfloat16)
        assert bitplane_triton.paired(cache) is None
        int_view(cache).copy_(int_view(dense))
        check_parity(get_codec(text), cache, None)
    assert bitplane_triton.paired(dense) is not None


@pytest.mark.parametrize("text", CODECS)
def test_triton_decodes_rows_whose_sizes_do_not_tile_to_zeros(text):
    codec, spec = get_codec(text), BlockSpec(16, 1, 32, torch.bfloat16)
    rows = codec.compress(make_cache(spec, ("normal",)), [0], impl="reference")
    row, size = rows.payload[0].numpy(), int(rows.nbytes[0])
    damaged = []
    last = 12 if codec.two_level else 8
    for at, value in [(0, 2), (1, 1), (2, 8), (3, 1), (4, 1), (8, 16), (last, 16)]:
        damaged.append(row.copy())
        damaged[-1][at] ^= value
    sizes = [size] * len(damaged) + [size - 16, 0, -16, size]
    payload = torch.from_numpy(np.stack([*damaged, row, row, row, row])).to(DEVICE)
    batch = EncodedBlocks(
        codec, spec, payload, torch.tensor(sizes, dtype=torch.int32, device=DEVICE)
    )
    target = make_cache(spec, ("ramp",) * len(batch), device=str(DEVICE))
    codec.decompress(batch, target, range(len(batch)), impl="triton")
    assert not int_view(target[:-1]).any()
    assert int_view(target[-1]).any()
