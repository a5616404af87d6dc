"""The native kernels of nvfp4, mxfp4 and mxfp8 at every instruction set, against the references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance.views import VIEWS
from strategies import make_cache
from test_native import ISAS, check_parity, decode, encode, used

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import int_view, to_bits
from kvcodec.errors import CorruptDataError
from kvcodec.kernels._dense import reference_kernel
from kvcodec.kernels._microscaling_native import Mxfp4Native, Mxfp8Native, Nvfp4Native

CLASSES = {"nvfp4": Nvfp4Native, "mxfp4": Mxfp4Native, "mxfp8": Mxfp8Native}
NAMES = (
    "nvfp4", "nvfp4:four_over_six=true", "nvfp4:given=0.003", "mxfp4", "mxfp8", "mxfp8:dtype=e5m2"
)  # fmt: skip
VALID = [0, 1, 2, 3, 4, 5, 7, 8, 9, 1]


@pytest.fixture(params=[index for index, _ in ISAS] or [0], ids=[name for _, name in ISAS] or ["-"])
def isa(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_rows_and_blocks_equal_the_reference(isa, name, dtype):
    """An odd number of groups to a run, and more of them than are taken together."""
    codec = get_codec(name)
    for head_dim in (96, 16) if codec.name == "nvfp4" else (96,):
        cache = make_cache(BlockSpec(9, 3, head_dim, dtype))
        check_parity(CLASSES[codec.name](isa), codec, cache)
        check_parity(CLASSES[codec.name](isa), codec, cache, VALID)


@pytest.mark.parametrize("make", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8"])
def test_strides_do_not_show(isa, name, make):
    codec, spec = get_codec(name), BlockSpec(6, 3, 32, torch.bfloat16)
    kernel, cache = CLASSES[name](isa), make_cache(spec, ("normal", "outlier", "specials", "ramp"))
    _, view = make(cache)
    rows = encode(kernel, codec, cache, [2, 0, 3], [6, 0, 5])
    assert used(encode(kernel, codec, view, [2, 0, 3], [6, 0, 5])) == used(rows)
    _, target = make(torch.zeros_like(cache))
    kernel.decompress(rows, target, torch.tensor([2, 0, 3]))
    np.testing.assert_array_equal(to_bits(target)[[2, 0, 3]], to_bits(codec.decode(rows)))
    assert (int_view(target)[1] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_damaged_rows_fare_as_under_the_reference(isa, name):
    """The same verdict on every row, and the same values where it is sound."""
    codec, rng = get_codec(name), np.random.default_rng(5)
    spec = BlockSpec(9, 1, 32, torch.float16)
    sound = encode(CLASSES[codec.name](), codec, make_cache(spec, ("normal",)), num_valid=[7])
    refused = 0
    for _ in range(150):
        row, size = sound.payload.clone(), sound.nbytes.clone()
        reach = int(rng.choice([4, 16, int(size[0])]))
        row[0, rng.integers(0, reach, 2)] = torch.from_numpy(rng.integers(0, 256, 2, np.uint8))
        if rng.random() < 0.1:
            size += int(rng.choice([-16, 16, 3]))
        rows = EncodedBlocks(codec, spec, row, size)
        try:
            expected = to_bits(codec.decode(rows))
        except CorruptDataError:
            refused += 1
            with pytest.raises(CorruptDataError, match=f"^{codec.name}: row 0 of "):
                decode(CLASSES[codec.name](isa), rows)
        else:
            np.testing.assert_array_equal(decode(CLASSES[codec.name](isa), rows), expected)
    assert 30 < refused < 140


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8"])
def test_threads_and_workspaces_do_not_show(isa, name):
    spec, codec = BlockSpec(16, 2, 64, torch.bfloat16), get_codec(name)
    cache, kernel = make_cache(spec), CLASSES[name](isa)
    expected = encode(reference_kernel(codec), codec, cache)
    nbytes = codec.workspace_nbytes(spec, len(cache), "native")
    scratch = torch.full((nbytes,), 0xA5, dtype=torch.uint8)
    rows = encode(kernel, codec, cache, num_threads=5, workspace=scratch)
    assert used(rows) == used(expected)
    blocks = decode(kernel, rows, num_threads=5, workspace=scratch)
    np.testing.assert_array_equal(blocks, decode(kernel, rows, num_threads=1))


def test_a_head_of_part_groups_is_refused_by_the_extension_too():
    """`supports` refuses it first; the extension trusts no integer."""
    spec = BlockSpec(2, 1, 20, torch.bfloat16)
    out = EncodedBlocks(
        get_codec("mxfp4"),
        spec,
        torch.empty(1, 256, dtype=torch.uint8),
        torch.empty(1, dtype=torch.int32),
    )
    cache = torch.zeros(1, *spec.shape, dtype=spec.dtype)
    with pytest.raises(ValueError, match="no whole groups"):
        Mxfp4Native().compress(cache, torch.tensor([0]), None, out)
