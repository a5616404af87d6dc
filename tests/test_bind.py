"""Codecs that need tables: bound they work, unbound or bound to others they say so first."""

from dataclasses import replace

import pytest
import torch
from profiles import make_profile, make_tables
from strategies import make_cache

import kvcodec
from kvcodec import BlockSpec, Identity, Plan, Profile, codec_from_config, get_codec
from kvcodec.bits import int_view
from kvcodec.calibrated import Calibrated
from kvcodec.codec import parameters
from kvcodec.errors import (
    CorruptDataError,
    InvalidInputError,
    UnknownCodecError,
    UnsupportedSpecError,
)
from kvcodec.frame import dumps, loads
from kvcodec.inspect import describe

SPEC = BlockSpec(4, 2, 64, torch.bfloat16)
MODELS = ("split:model=profile", "split:model=context")


@pytest.fixture
def cache():
    return make_cache(SPEC, ("normal", "outlier", "zeros"))


@pytest.fixture(params=MODELS)
def codec(request):
    return get_codec(request.param).bind(make_profile(SPEC), 0, "key")


def test_a_bound_codec_names_its_tables_and_holds_them(codec):
    chosen = make_profile(SPEC).plane(0, "key").select(codec.table_names())
    assert codec.tables == chosen.hash == codec.config()["params"]["tables"]
    assert codec.held().arrays.keys() == chosen.arrays.keys()
    assert str(codec) == f"split:model={codec.model},tables={chosen.hash}"
    assert "bound" not in codec.config()["params"]
    assert "bound" not in {f.name for f in parameters(codec)}
    assert "bound" not in repr(codec)


def test_a_codec_is_its_parameters_whether_it_holds_tables_or_not(codec):
    for again in (codec_from_config(codec.config()), get_codec(str(codec))):
        assert again.bound is None
        assert again == codec
        assert hash(again) == hash(codec)
    assert codec != get_codec(f"split:model={codec.model}")
    assert codec != get_codec(f"split:model={codec.model}").bind(make_profile(SPEC), 0, "value")


def test_only_tables_that_are_used_are_in_the_hash(codec):
    """A profile that is calibrated again for another codec's sake leaves the rows readable."""
    profile = make_profile(SPEC)
    plane = profile.plane(0, "key")
    fewer = Profile({(3, "value"): plane.select(codec.table_names())})
    assert get_codec(f"split:model={codec.model}").bind(fewer, 3, "value") == codec


def test_a_codec_without_tables_is_bound_to_nothing():
    for text in ("raw", "split", "fp8:scale=head"):
        codec = get_codec(text)
        assert not codec.needs_profile
        assert codec.bind(make_profile(SPEC), 9, "key") is codec


def test_bound_and_unbound_rows_go_together(codec, cache):
    """Rows whose codec lost its tables decode under a codec that holds them."""
    rows = codec.compress(cache, [0, 1, 2])
    bare = get_codec(str(codec))
    target = torch.empty_like(cache)
    codec.decompress(replace(rows, codec=bare), target, [0, 1, 2])
    assert torch.equal(int_view(target), int_view(cache))
    out = replace(rows, codec=bare)
    out.payload.zero_()
    assert codec.compress(cache, [0, 1, 2], out=out) is out
    codec.decompress(out, target, [2, 1, 0])
    assert torch.equal(int_view(target.flip(0)), int_view(cache))


@pytest.mark.parametrize("model", MODELS)
def test_an_unbound_codec_says_what_to_do_before_any_work(model, cache, monkeypatch):
    codec, rows = get_codec(model), None
    bound = codec.bind(make_profile(SPEC), 0, "key")
    rows = bound.compress(cache, [0])
    before = int_view(cache).clone()
    monkeypatch.setattr(torch, "empty", lambda *a, **k: pytest.fail("rows were allocated"))
    message = r"split: split:model=\w+ needs tables of a profile and holds none; use codec.bind"
    with pytest.raises(InvalidInputError, match=message):
        codec.compress(cache, [0])
    with pytest.raises(InvalidInputError, match=message):
        codec.workspace_nbytes(SPEC, 1, "reference")
    named = get_codec(str(bound))
    with pytest.raises(InvalidInputError, match=f"needs the tables {bound.tables} and holds none"):
        named.decompress(rows, cache, [0])
    with pytest.raises(InvalidInputError, match=bound.tables):
        named.decode(replace(rows, codec=named))
    assert torch.equal(int_view(cache), before)


def test_rows_of_other_tables_are_refused(codec, cache):
    rows = codec.compress(cache, [0])
    other = get_codec(f"split:model={codec.model}").bind(make_profile(SPEC, 1), 0, "key")
    with pytest.raises(InvalidInputError, match=rf"rows are .*{codec.tables}.*{other.tables}"):
        other.decompress(rows, cache, [0])


def test_a_codec_that_names_tables_is_bound_to_no_others(codec):
    named = get_codec(str(codec))
    assert named.bind(make_profile(SPEC), 0, "key").held().hash == codec.tables
    with pytest.raises(
        InvalidInputError, match=rf"got the tables \w+, wanted {codec.tables}; bind"
    ):
        named.bind(make_profile(SPEC, 1), 0, "key")


def test_blocks_that_the_tables_do_not_fit_are_unsupported(codec):
    for spec in (
        replace(SPEC, num_kv_heads=3),
        replace(SPEC, head_dim=80),
        replace(SPEC, dtype=torch.float16),
    ):
        with pytest.raises(
            UnsupportedSpecError, match="its tables are of bf16 planes with 2 heads"
        ):
            codec.compress(make_cache(spec, ("normal",)), [0])
    assert codec.supports(replace(SPEC, block_size=99)) is None


@pytest.mark.parametrize("text", ["ab", "AB" * 32, "g" * 64, "0" * 63])
def test_what_is_no_hash_is_refused(text):
    with pytest.raises(InvalidInputError, match="64 hexadecimal digits"):
        get_codec(f"split:model=context,tables={text}")


def test_tables_of_a_model_that_uses_none_are_refused():
    with pytest.raises(InvalidInputError, match="use no profile"):
        get_codec(f"split:tables={'0' * 64}")
    assert issubclass(type(get_codec("split")), Calibrated)


def test_missing_planes_and_tables_are_named(codec):
    unbound = get_codec(f"split:model={codec.model}")
    with pytest.raises(InvalidInputError, match=r"no value tables of layer 7, wanted one of \[0\]"):
        unbound.bind(make_profile(SPEC), 7, "value")
    few = Profile({(0, "key"): make_tables(SPEC).select(("mean", "centre"))})
    with pytest.raises(InvalidInputError, match=r"tables class, exponents, .* are missing"):
        unbound.bind(few, 0, "key")


def test_a_plan_binds_every_rule():
    profile = make_profile(SPEC)
    plan = Plan.parse("key=split:model=context,value=split:model=profile,first_blocks=1")
    bound = plan.bind(profile)
    for kind in ("key", "value"):
        codec = bound.codec(0, kind, 0)
        assert codec == plan.codec(0, kind, 5).bind(profile, 0, kind)
        assert codec.held().hash == codec.tables
    assert bound.codec(1, "key", 0).bound is None  # the profile has no layer 1
    assert bound.bind(profile) == bound
    assert Plan.parse(str(bound)) == bound


def test_a_plan_keeps_rules_that_need_no_profile():
    plan = Plan.parse('{"key": "split:model=context", "value": "fp8", "layers": {"0": "raw"}}')
    bound = plan.bind(make_profile(SPEC))
    assert (str(bound.codec(0, "key", 0)), str(bound.codec(0, "value", 0))) == ("raw", "raw")
    assert Plan.parse("fp8").bind(make_profile(SPEC)) == Plan.parse("fp8")
    ruled = Plan.parse('{"key": "raw", "value": "raw", "layers": {"4": "split:model=context"}}')
    with pytest.raises(InvalidInputError, match="no key tables of layer 4"):
        ruled.bind(make_profile(SPEC))


def test_a_frame_names_the_tables_and_is_read_with_them(codec, cache):
    profile = make_profile(SPEC)
    rows = codec.compress(cache, [0, 1, 2])
    data = dumps([rows, kvcodec.compress(cache, [0], "raw")], Identity(layer=0))
    for profiles in ([make_profile(SPEC, 1), profile], lambda h: profile.plane(0, "key")):
        frame = loads(data, profiles=profiles)
        (_, back), _ = frame.batches()
        assert back.codec == codec
        target = torch.empty_like(cache)
        kvcodec.decompress(back, target, [0, 1, 2])
        assert torch.equal(int_view(target), int_view(cache))
    assert frame.identity.profile_hash == profile.hash
    assert dumps([b for _, b in frame.batches()], frame.identity) == data


def test_an_identity_that_names_a_profile_keeps_it(codec, cache):
    rows = codec.compress(cache, [0])
    data = dumps(rows, Identity(profile_hash="mine"))
    assert loads(data, profiles=[make_profile(SPEC)]).identity.profile_hash == "mine"
    mixed = [rows, get_codec("split:model=context").bind(make_profile(SPEC, 1), 0, "key")]
    mixed[1] = mixed[1].compress(cache, [0])
    both = [make_profile(SPEC), make_profile(SPEC, 1)]
    assert loads(dumps(mixed), profiles=both).identity.profile_hash is None


def test_a_frame_without_its_profile_is_an_error_that_names_the_hash(codec, cache):
    data = dumps(codec.compress(cache, [0]))
    with pytest.raises(UnknownCodecError, match=f"tables {codec.tables} are needed and not here"):
        loads(data)
    other = make_profile(SPEC, 1)
    with pytest.raises(
        UnknownCodecError, match=f"{codec.tables} .* the profiles {other.hash[:12]} have others"
    ):
        loads(data, profiles=[other])
    with pytest.raises(UnknownCodecError, match=codec.tables):
        loads(data, profiles=lambda wanted: None)
    with pytest.raises(InvalidInputError, match=rf"got the tables \w+, wanted {codec.tables}"):
        loads(data, profiles=lambda wanted: other.plane(0, "key"))


def test_a_frame_can_be_inspected_without_its_profile(codec, cache):
    found = describe(dumps(codec.compress(cache, [0, 1])))
    assert found["passed"]
    assert found["header"]["codecs"][0]["params"]["tables"] == codec.tables
    assert found["rows"][0]["parts"]


def test_a_frame_whose_profiles_are_not_its_codecs_is_corrupt(codec, cache):
    data = dumps(codec.compress(cache, [0]))
    named = f'"profiles":["{codec.tables}"]'.encode()
    assert named in data
    from kvcodec.envelope import read_header

    header = data[48 : data.index(b"}]}\0") + 3] if b"}]}\0" in data else data[48:]
    header = header[: int.from_bytes(data[12:16], "little")]
    read_header(memoryview(header))
    with pytest.raises(CorruptDataError, match=r"profiles are \[\], its codecs name"):
        read_header(memoryview(header.replace(named, b'"profiles":[]')))
    twice = named.replace(b"]", b',"' + b"0" * 64 + b'"]')
    with pytest.raises(UnknownCodecError, match="no codec here uses"):
        read_header(memoryview(header.replace(named, twice)))


def test_rows_of_an_unbound_codec_make_no_frame(codec, cache):
    rows = replace(codec.compress(cache, [0]), codec=get_codec(f"split:model={codec.model}"))
    with pytest.raises(InvalidInputError, match="is bound to no profile"):
        dumps(rows)


def test_the_models_of_a_profile_never_cost_more_than_what_needs_none(codec):
    """Tables that fit nothing: the row is the self-contained one."""
    kinds = ("normal", "random_bits", "wild_channels", "specials", "two_symbols", "zeros")
    cache = make_cache(SPEC, kinds) * 1024
    rows = codec.compress(cache, range(len(kinds)))
    plain = get_codec("split").compress(cache, range(len(kinds)))
    assert (rows.nbytes <= plain.nbytes).all()
