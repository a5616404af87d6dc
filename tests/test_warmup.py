"""warmup: every codec of a plan both ways, on memory like the plane's, and nothing of the plane."""

import pytest
import torch
from profiles import make_profile

from kvcodec import BlockSpec, Codec, Plan, get_codec, warmup
from kvcodec.bits import int_view
from kvcodec.errors import InvalidInputError

SPEC = BlockSpec(4, 2, 64, torch.bfloat16)


@pytest.fixture
def calls(monkeypatch):
    """(call, codec, strides, has num_valid) of every paged call."""
    seen = []

    def spy(name):
        original = getattr(Codec, name)

        def call(self, *args, **options):
            cache = args[0] if name == "compress" else args[1]
            seen.append((name, str(self), cache.stride(), options.get("num_valid") is not None))
            return original(self, *args, **options)

        monkeypatch.setattr(Codec, name, call)

    spy("compress")
    spy("decompress")
    return seen


def test_every_codec_runs_both_ways_with_and_without_counts(calls):
    plan = Plan.parse("key=split,value=fp8:scale=head,first_blocks=1")
    assert warmup(plan, SPEC) == 2
    stride = (512, 128, 64, 1)
    for codec in ("split", "fp8:scale=head"):
        assert ("compress", codec, stride, False) in calls
        assert ("compress", codec, stride, True) in calls
        assert ("decompress", codec, stride, False) in calls


def test_a_plane_gives_its_strides_and_stays_as_it_is(calls):
    buffer = torch.randint(-999, 999, (3, 2, 4, 96), dtype=torch.int16)
    plane = buffer.view(torch.bfloat16)[..., :64].transpose(1, 2)
    before = buffer.clone()
    assert warmup("split", plane) == 1
    assert {strides for _, _, strides, _ in calls} == {plane.stride()}
    assert torch.equal(buffer, before)


def test_the_codec_of_exact_first_blocks_is_warm_too(calls):
    assert warmup("fp8,first_blocks=1", SPEC) == 2
    assert {codec for _, codec, _, _ in calls} == {"fp8", "split"}


def test_a_codec_that_cannot_take_the_blocks_is_left_out(calls):
    opaque = BlockSpec(4, 2, 64, torch.uint8)
    assert warmup(Plan(get_codec("split"), get_codec("raw")), opaque) == 1
    assert {codec for _, codec, _, _ in calls} == {"raw"}


def test_one_codec_is_a_plan_too():
    assert warmup(get_codec("fp8"), SPEC) == 1
    plane = torch.zeros(1, *SPEC.shape, dtype=SPEC.dtype)
    assert warmup(get_codec("fp8"), plane) == 1
    assert not int_view(plane).any()


def test_a_bound_plan_is_warmed_up_with_the_tables_it_holds():
    plan = Plan.parse("key=fp8:center=profile,value=fp8")
    assert warmup(plan.bind(make_profile(SPEC)), SPEC) == 2
    with pytest.raises(InvalidInputError, match="holds none"):
        warmup(plan, SPEC)
