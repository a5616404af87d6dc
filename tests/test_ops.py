"""The operators of torch: their schema, their fakes, and code that is compiled around them."""

import pytest
import torch
from strategies import make_cache

import kvcodec.ops
from kvcodec import BlockSpec, get_codec
from kvcodec.bits import int_view
from kvcodec.errors import UnsupportedSpecError

SPEC = BlockSpec(4, 2, 64, torch.bfloat16)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def plane() -> torch.Tensor:
    return make_cache(SPEC, ("normal", "wild_channels", "random_bits"), device=DEVICE)


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("codec", ["split", "fp8:scale=head"])
def test_the_operators_give_what_the_calls_give(codec):
    cache = plane()
    payload, nbytes = torch.ops.kvcodec.compress(cache, ids(2, 0), None, codec)
    rows = get_codec(codec).compress(cache, ids(2, 0))
    assert torch.equal(nbytes, rows.nbytes)
    for got, wanted, size in zip(payload, rows.payload, nbytes.tolist(), strict=True):
        assert torch.equal(got[:size], wanted[:size])
    ours, theirs = torch.zeros_like(cache), torch.zeros_like(cache)
    torch.ops.kvcodec.decompress(payload, nbytes, ours, ids(1, 0), codec)
    rows.codec.decompress(rows, theirs, ids(1, 0))
    assert torch.equal(int_view(ours), int_view(theirs))


def test_tokens_that_do_not_count_are_left_out():
    cache = plane()
    valid = torch.tensor([1, 4], dtype=torch.int32, device=DEVICE)
    _, nbytes = torch.ops.kvcodec.compress(cache, ids(0, 1), valid, "split")
    assert torch.equal(nbytes, get_codec("split").compress(cache, [0, 1], num_valid=[1, 4]).nbytes)


def test_schemas_and_fakes_are_true():
    """Torch's own checks: what is mutated, what the fake promises, tracing with symbolic shapes."""
    cache = plane()
    utils = ("test_schema", "test_faketensor")
    args = (cache, ids(0, 2), None, "fp8")
    torch.library.opcheck(kvcodec.ops.compress, args, test_utils=utils)
    payload, nbytes = torch.ops.kvcodec.compress(*args)
    torch.library.opcheck(
        kvcodec.ops.decompress, (payload, nbytes, cache, ids(0, 2), "fp8"), test_utils=utils
    )


def test_a_compiled_function_holds_both_without_a_graph_break():
    def evict_and_fetch(cache, victims, target):
        payload, nbytes = torch.ops.kvcodec.compress(cache, victims, None, "split")
        torch.ops.kvcodec.decompress(payload, nbytes, target, victims, "split")
        return nbytes * 1

    cache = plane()
    target = torch.zeros_like(cache)
    compiled = torch.compile(evict_and_fetch, backend="aot_eager", fullgraph=True)
    nbytes = compiled(cache, ids(2, 1), target)
    assert torch.equal(int_view(target)[1:], int_view(cache)[1:])
    assert not int_view(target)[0].any()
    assert torch.equal(nbytes, get_codec("split").compress(cache, [2, 1]).nbytes)


def test_a_codec_that_cannot_take_the_blocks_says_so():
    opaque = torch.zeros(2, 4, 1, 8, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(UnsupportedSpecError, match="no exponent field"):
        torch.ops.kvcodec.compress(opaque, ids(0), None, "split")


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
def test_a_cuda_graph_holds_both():
    cache, target = plane(), torch.zeros_like(plane())
    where = ids(2, 1)

    def step():
        payload, nbytes = torch.ops.kvcodec.compress(cache, where, None, "split")
        torch.ops.kvcodec.decompress(payload, nbytes, target, where, "split")

    step()  # compiles; capture cannot
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    int_view(cache).copy_(int_view(cache.flip(0)))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(int_view(target)[1:], int_view(cache)[1:])
