"""Bad arguments are refused with InvalidInputError before anything is written."""

from dataclasses import replace

import pytest
import torch

from conformance.cases import DEVICE, bits, cache_of, same
from kvcodec import EncodedBlocks
from kvcodec.errors import ImplementationUnavailableError, InvalidInputError


def refused(case, message, cache, *args, call="compress", **options):
    """The call raises InvalidInputError with this message, and the cache keeps its bits."""
    before = bits(cache) if isinstance(cache, torch.Tensor) and cache.dtype.itemsize < 8 else None
    if call == "decompress":
        cache, args = args[0], (cache, *args[1:])
    codec = case.codec_for(case.spec())
    with pytest.raises(InvalidInputError, match=message):
        getattr(codec, call)(cache, *args, impl=case.impl, **options)
    cache = args[0] if call == "decompress" else cache
    assert before is None or torch.equal(bits(cache), before)


def test_a_cache_must_be_a_plane_of_a_known_type(case):
    cache = cache_of(case.spec())
    refused(case, "3 axes", cache[0], [0])
    refused(case, "5 axes", cache[None], [0])
    refused(case, "list, wanted a torch.Tensor", [1.0], [0])
    for dtype in (torch.int32, torch.float64, torch.bool, torch.int8):
        refused(case, "is not one of bf16", torch.zeros(2, 4, 2, 64, dtype=dtype), [0])
    refused(case, "at least 1", cache[:, :0], [0])


@pytest.mark.parametrize("call", ["compress", "decompress"])
def test_block_ids_must_be_in_range(case, call):
    cache = cache_of(case.spec())
    rows = [case.compress(cache)] if call == "decompress" else []
    for ids in ([0, 1, 3], [-1, 0, 1], [0, 1, 1 << 40]):
        refused(case, "leave the cache's range 0..2", cache, *rows, ids, call=call)
    for ids in ([0.0, 1.0, 2.0], [[0, 1, 2]], torch.tensor(3), torch.ones(3, dtype=torch.bool)):
        refused(case, "wanted a list of integers", cache, *rows, ids, call=call)


def test_decompress_refuses_a_block_named_twice(case):
    cache = cache_of(case.spec())
    rows = case.compress(cache)
    refused(case, "named twice", cache, rows, [0, 1, 0], call="decompress")


def test_num_valid_must_fit_blocks_and_ids(case):
    cache = cache_of(case.spec())
    size = cache.shape[1]
    refused(case, "2 values for 3 blocks", cache, [0, 1, 2], num_valid=[1, 1])
    refused(case, f"leave 0..{size}", cache, [0, 1, 2], num_valid=[1, 1, size + 1])
    refused(case, f"leave 0..{size}", cache, [0, 1, 2], num_valid=[-1, 1, 1])
    refused(case, "wanted a list of integers", cache, [0, 1, 2], num_valid=[0.5, 1, 1])


def test_num_valid_is_not_cut_to_32_bits(case):
    cache = cache_of(case.spec())
    refused(case, "leave 0..", cache, [0, 1, 2], num_valid=[1, 1 << 32, 1])


def wrong_rows(rows):
    """Rows that do not fit a call on three blocks of their spec, and what is said about them."""
    spec, codec = rows.spec, rows.codec
    bound = codec.max_nbytes(spec)
    yield (
        "the call needs|wanted",
        replace(rows, spec=replace(spec, num_kv_heads=spec.num_kv_heads + 1)),
    )
    yield "2 rows for 3", EncodedBlocks.empty(codec, spec, 2, DEVICE)
    yield "3 rows for 3|rows for 3", replace(rows, nbytes=rows.nbytes[:2])
    yield "wanted uint8", replace(rows, payload=rows.payload.view(torch.int8))
    yield "wanted uint8", replace(rows, payload=rows.payload.flatten())
    yield "int32", replace(rows, nbytes=rows.nbytes.to(torch.int64))
    yield f"wanted {bound} contiguous", replace(rows, payload=rows.payload[:, : bound - 16])
    apart = rows.payload.repeat_interleave(2, 1)[:, ::2]
    yield f"wanted {bound} contiguous", replace(rows, payload=apart)


@pytest.mark.parametrize("call", ["compress", "decompress"])
def test_rows_must_fit_the_call(case, call):
    cache = cache_of(case.spec())
    rows = case.compress(cache)
    for message, wrong in wrong_rows(rows):
        before = wrong.payload.clone(), wrong.nbytes.clone()
        if call == "compress":
            refused(case, message, cache, [0, 1, 2], out=wrong)
        else:
            refused(case, message, cache, wrong, [0, 1, 2], call=call)
        assert torch.equal(wrong.payload, before[0])
        assert torch.equal(wrong.nbytes, before[1])


def test_rows_of_another_codec_are_refused(case):
    """Rows carry their codec, so bytes are never read as what they are not."""
    cache = cache_of(case.spec())
    other = replace(case.compress(cache), codec=object())
    refused(case, "wanted", cache, other, [0, 1, 2], call="decompress")


def test_a_workspace_that_does_not_fit_is_refused(case):
    spec = case.spec()
    cache = cache_of(spec)
    rows = case.compress(cache)
    nbytes = case.codec_for(spec).workspace_nbytes(spec, len(cache), case.impl)
    wrong = [torch.zeros(nbytes, dtype=torch.int8, device=DEVICE)]
    wrong.append(torch.zeros(nbytes + 2, dtype=torch.uint8, device=DEVICE).view(2, -1)[:, ::2])
    if nbytes:
        wrong.append(torch.zeros(nbytes - 1, dtype=torch.uint8, device=DEVICE))
        wrong.append(torch.zeros(2 * nbytes, dtype=torch.uint8, device=DEVICE)[::2])
    for workspace in wrong:
        refused(case, "workspace", cache, [0, 1, 2], workspace=workspace)
        refused(case, "workspace", cache, rows, [0, 1, 2], call="decompress", workspace=workspace)


def test_implementations_are_named_or_refused(codec_case):
    """ "auto" serves every codec on the host."""
    cache, codec = cache_of(codec_case.spec()).cpu(), codec_case.codec_for(codec_case.spec())
    with pytest.raises(InvalidInputError, match="impl is 'fastest', wanted auto or one of"):
        codec.compress(cache, [0], impl="fastest")
    rows = codec.compress(cache, [0, 1, 2])
    target = torch.empty_like(cache)
    codec.decompress(rows, target, [0, 1, 2])
    expected = codec.decode(rows)
    assert same(target, expected)


def test_an_implementation_that_is_missing_is_not_replaced(codec_case, monkeypatch):
    monkeypatch.setattr(type(codec_case.codec), "kernels", "conformance")
    spec = codec_case.spec()
    for impl in ("vector", "native", "triton"):
        with pytest.raises(ImplementationUnavailableError, match=f"no {impl} implementation"):
            codec_case.codec_for(spec).compress(cache_of(spec), [0], impl=impl)
