"""bitplane in C++, under every instruction set of this machine, against the reference."""

import numpy as np
import pytest
import torch
from strategies import KINDS, make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import FORMATS, int_view
from kvcodec.errors import CorruptDataError

native = pytest.importorskip("kvcodec.kernels.bitplane_native")
_native_call = pytest.importorskip("kvcodec.kernels._native_call")
if native.KERNEL.unavailable(torch.device("cpu")) is not None:
    pytest.skip("the extension is not built", allow_module_level=True)

FLOATS = [dtype for dtype, fmt in FORMATS.items() if fmt.exponent_bits]
CODECS = ["bitplane", "bitplane:bits=2+3"]


@pytest.fixture(params=_native_call.extension().isas(), ids=lambda isa: isa[1])
def kernel(request):
    return native.BitplaneNative(request.param[0])


def encode(kernel, codec, cache, valid=None):
    rows = EncodedBlocks.empty(codec, BlockSpec.of(cache), len(cache))
    valid = None if valid is None else torch.tensor(valid, dtype=torch.int32)
    kernel.compress(cache, torch.arange(len(cache)), valid, rows)
    return rows


def used(rows):
    sizes = rows.nbytes.tolist()
    return [row[:size].tobytes() for row, size in zip(rows.payload.numpy(), sizes, strict=True)]


def check_parity(kernel, codec, cache, valid=None):
    expected = codec.compress(cache, range(len(cache)), num_valid=valid, impl="reference")
    assert used(encode(kernel, codec, cache, valid)) == used(expected)
    target = torch.empty_like(cache)
    kernel.decompress(expected, target, torch.arange(len(cache)))
    assert torch.equal(int_view(target), int_view(codec.decode(expected)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("text", CODECS)
def test_rows_equal_the_reference(kernel, text, dtype):
    """Whole and partial slots, an odd number of elements, a channel count that divides no slot."""
    codec = get_codec(text)
    for shape in [(9, 2, 64), (33, 1, 35), (5, 1, 3), (1, 1, 1)]:
        cache = make_cache(BlockSpec(*shape, dtype))
        check_parity(kernel, codec, cache)
        check_parity(kernel, codec, cache, [(5 * i) % (shape[0] + 1) for i in range(len(cache))])


@pytest.mark.parametrize("text", CODECS)
def test_tiles_and_many_tokens_equal_the_reference(kernel, text):
    """Three tiles; more tokens than a byte counts; a level that is neither first nor second."""
    cache = make_cache(BlockSpec(300, 1, 80, torch.bfloat16), ("normal", "outlier", "specials"))
    check_parity(kernel, get_codec(text), cache, [300, 257, 299])


@pytest.mark.parametrize("text", CODECS)
def test_strides_do_not_show(kernel, text):
    codec, spec = get_codec(text), BlockSpec(24, 3, 40, torch.bfloat16)
    cache = make_cache(spec, KINDS[:4])
    rows = encode(kernel, codec, cache, [24, 0, 23, 7])
    room = torch.zeros(4, 3, 26, 2, 40, dtype=torch.int16)
    for view in (room[:, :, 1:25, 0], room[:, :, 2:, 1]):
        heads_first = view.transpose(1, 2).view(torch.bfloat16)
        int_view(heads_first).copy_(int_view(cache))
        assert used(encode(kernel, codec, heads_first, [24, 0, 23, 7])) == used(rows)
        kernel.decompress(rows, heads_first, torch.arange(4))
        assert torch.equal(int_view(heads_first), int_view(codec.decode(rows)))
    assert not room[:, :, 0].any()
    assert not room[:, :, 1, 1].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float16], ids=str)
@pytest.mark.parametrize("text", CODECS)
def test_damaged_rows_fare_as_under_the_reference(kernel, text, dtype):
    """Rows in which some bytes changed, most of them early: the same verdicts and elements."""
    rng, codec, spec = np.random.default_rng(5), get_codec(text), BlockSpec(20, 3, 200, dtype)
    sound = encode(kernel, codec, make_cache(spec, ("normal", "constant")), [20, 19])
    verdicts = set()
    for trial in range(60):
        i = trial % 2
        row, size = sound[i : i + 1].payload.clone(), int(sound.nbytes[i])
        reach = int(rng.choice([16, 700, 760, size]))
        at = torch.from_numpy(rng.integers(0, reach, rng.integers(1, 4)))
        row[0, at] ^= torch.from_numpy(rng.integers(1, 256, len(at), np.uint8))
        rows = EncodedBlocks(codec, spec, row, sound.nbytes[i : i + 1])
        target = torch.zeros(1, *spec.shape, dtype=dtype)
        try:
            expected = codec.decode(rows)
        except CorruptDataError:
            with pytest.raises(CorruptDataError):
                kernel.decompress(rows, target, torch.tensor([0]))
            assert not int_view(target).any()
            verdicts.add("refused")
        else:
            kernel.decompress(rows, target, torch.tensor([0]))
            assert torch.equal(int_view(target), int_view(expected))
            verdicts.add("decoded")
    assert verdicts == {"refused", "decoded"}
