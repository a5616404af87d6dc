"""The native kernels of int4 and turboquant at every instruction set, against the references."""

import numpy as np
import pytest
import torch
from conformance.views import VIEWS
from strategies import KINDS, make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import int_view, to_bits
from kvcodec.errors import CorruptDataError
from kvcodec.kernels import _native_call
from kvcodec.kernels._dense import reference_kernel
from kvcodec.kernels.int4_native import Int4Native
from kvcodec.kernels.turboquant_native import TurboquantNative

CLASSES = {"int4": Int4Native, "turboquant": TurboquantNative}
CODECS = (
    "int4",
    "int4:bits=2,group=16,meta=bf16",
    "int4:axis=channel,group=16,meta=fp32",
    "int4:bits=2,axis=channel",
    "turboquant",
    "turboquant:bits=3,norm=fp32",
    "turboquant:bits=2",
    "turboquant:bits=1",
)
ISAS = _native_call.extension().isas() if _native_call._native else []


@pytest.fixture(params=[index for index, _ in ISAS] or [0], ids=[name for _, name in ISAS] or ["-"])
def isa(request):
    if not ISAS:
        pytest.fail("the extension is not built", pytrace=False)
    return request.param


def encode(kernel, codec, cache, num_valid=None, **options):
    valid = None if num_valid is None else torch.tensor(num_valid, dtype=torch.int32)
    rows = EncodedBlocks.empty(codec, BlockSpec.of(cache), len(cache))
    kernel.compress(cache, torch.arange(len(cache)), valid, rows, **options)
    return rows


def decode(kernel, rows, **options):
    cache = torch.empty(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
    kernel.decompress(rows, cache, torch.arange(len(rows)), **options)
    return to_bits(cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_rows_and_blocks_equal_the_reference(isa, name, dtype):
    """head_dims with a last group, piece and rotation block of their own."""
    codec, kernel = get_codec(name), CLASSES[name.split(":")[0]](isa)
    for head_dim in (40, 104):
        cache = make_cache(BlockSpec(34, 3, head_dim, dtype), KINDS[::2] + KINDS[-3:])
        valid = [34, 33, 32, 31, 17, 16, 1, 0][: len(cache)]
        for num_valid in (None, valid):
            want = encode(reference_kernel(codec), codec, cache, num_valid)
            rows = encode(kernel, codec, cache, num_valid)
            assert torch.equal(rows.payload, want.payload)
            assert rows.nbytes.tolist() == want.nbytes.tolist()
            np.testing.assert_array_equal(decode(kernel, rows), to_bits(codec.decode(want)))


@pytest.mark.parametrize("make", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize("name", ["int4", "int4:axis=channel,group=16", "turboquant:bits=3"])
def test_strides_do_not_show(isa, name, make):
    codec, kernel = get_codec(name), CLASSES[name.split(":")[0]](isa)
    cache = make_cache(BlockSpec(18, 3, 40, torch.bfloat16), KINDS[:3])
    _, view = make(cache)
    rows = encode(kernel, codec, cache, [18, 0, 17])
    assert torch.equal(encode(kernel, codec, view, [18, 0, 17]).payload, rows.payload)
    _, target = make(torch.zeros_like(cache))
    kernel.decompress(rows, target, torch.arange(3))
    np.testing.assert_array_equal(to_bits(target.contiguous()), to_bits(codec.decode(rows)))


@pytest.mark.parametrize("name", ["int4", "int4:axis=channel,group=16", "turboquant:bits=3"])
def test_damaged_rows_fare_as_under_the_reference(isa, name):
    codec, kernel = get_codec(name), CLASSES[name.split(":")[0]](isa)
    rng = np.random.default_rng(5)
    sound = encode(kernel, codec, make_cache(BlockSpec(16, 2, 32, torch.float16), KINDS[:4]))
    refused = 0
    for i in range(160):
        row = sound[i % 4 : i % 4 + 1].to("cpu")
        row = EncodedBlocks(codec, row.spec, row.payload.clone(), row.nbytes.clone())
        reach = int(rng.choice([2, 4, 16, row.payload.shape[1]]))
        row.payload[0, int(rng.integers(reach))] ^= int(rng.integers(1, 256))
        row.payload[0, 16:] ^= torch.from_numpy(
            rng.integers(0, 256, row.payload.shape[1] - 16, np.uint8) * np.uint8(i % 5 == 0)
        )
        row.nbytes[0] += 16 * int(rng.choice([0, 0, 0, -1]))
        try:
            expected = to_bits(codec.decode(row))
        except CorruptDataError:
            refused += 1
            target = torch.ones(1, *row.spec.shape, dtype=torch.float16)
            with pytest.raises(CorruptDataError, match=f"^{codec.name}: row 0 of "):
                kernel.decompress(row, target, torch.arange(1))
            assert bool((target == 1).all())
        else:
            np.testing.assert_array_equal(decode(kernel, row), expected)
    assert 30 < refused < 140


@pytest.mark.parametrize("name", CODECS)
def test_threads_and_a_workspace_of_the_stated_size_do_not_show(name):
    codec, kernel = get_codec(name), CLASSES[name.split(":")[0]]()
    spec = BlockSpec(32, 2, 64, torch.bfloat16)
    cache = make_cache(spec)
    workspace = torch.full((codec.workspace_nbytes(spec, len(cache), "native"),), 0xA5).byte()
    rows = encode(kernel, codec, cache, num_threads=1)
    many = encode(kernel, codec, cache, workspace=workspace, num_threads=4)
    assert torch.equal(rows.payload, many.payload)
    target = torch.zeros_like(cache)
    kernel.decompress(rows, target, torch.arange(len(cache)), workspace=workspace, num_threads=4)
    assert torch.equal(int_view(target), int_view(codec.decode(rows)))
