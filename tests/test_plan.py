"""Plans: which codec serves which block, and every way to write one down."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcodec import Plan, get_codec
from kvcodec.errors import InvalidInputError, UnknownCodecError
from kvcodec.plan import PRESETS

RAW, SPLIT, FP8 = get_codec("raw"), get_codec("split"), get_codec("fp8")
E5M2 = get_codec("fp8:dtype=e5m2,scale=head")


def test_keys_and_values_have_their_own_codecs():
    plan = Plan(SPLIT, FP8)
    assert plan.codec(0, "key", 0) == SPLIT
    assert plan.codec(31, "value", 7) == FP8
    with pytest.raises(InvalidInputError, match="kind is 'keys', wanted 'key' or 'value'"):
        plan.codec(0, "keys", 0)


def test_first_blocks_are_exact_in_every_layer():
    plan = Plan(FP8, E5M2, first_blocks=2, layers=((3, "key", E5M2), (4, "key", RAW)))
    for layer in range(6):
        for kind in ("key", "value"):
            assert plan.codec(layer, kind, 0).lossless
            assert plan.codec(layer, kind, 1).lossless
    assert plan.codec(0, "key", 2) == FP8
    assert plan.codec(3, "key", 2) == E5M2
    assert plan.codec(0, "key", 0) == SPLIT
    assert plan.codec(4, "key", 0) == RAW  # lossless already: kept as it is


def test_a_layer_rule_serves_one_layer_and_one_kind():
    plan = Plan(FP8, FP8, layers=((0, "key", RAW), (5, "value", SPLIT)))
    assert plan.codec(0, "key", 9) == RAW
    assert plan.codec(0, "value", 9) == FP8
    assert plan.codec(5, "value", 9) == SPLIT
    assert plan.codec(5, "key", 9) == FP8
    assert plan.codec(1, "key", 9) == FP8


def test_a_plan_is_lossless_when_all_its_codecs_are():
    assert Plan(RAW, SPLIT).lossless
    assert not Plan(RAW, FP8).lossless
    assert not Plan(FP8, RAW, first_blocks=4).lossless
    assert not Plan(RAW, RAW, layers=((2, "value", FP8),)).lossless


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("split", Plan(SPLIT, SPLIT)),
        ("fp8:dtype=e5m2,scale=head", Plan(E5M2, E5M2)),
        ("key=split,value=fp8", Plan(SPLIT, FP8)),
        ("value=fp8,key=split", Plan(SPLIT, FP8)),
        ("key=split,value=fp8:dtype=e5m2,scale=head", Plan(SPLIT, E5M2)),
        ("key=fp8:dtype=e5m2,scale=head,value=split", Plan(E5M2, SPLIT)),
        ("key=fp8:dtype=e5m2,scale=head,value=split,first_blocks=3", Plan(E5M2, SPLIT, 3)),
        ("fp8:dtype=e5m2,scale=head,first_blocks=3", Plan(E5M2, E5M2, 3)),
        ("first_blocks=3,key=split,value=fp8", Plan(SPLIT, FP8, 3)),
        ("fp8:dtype=e5m2,first_blocks=3,scale=head", Plan(E5M2, E5M2, 3)),
        ("split@1", Plan(SPLIT, SPLIT)),
    ],
)
def test_specs_of_plans_need_no_quoting(text, plan):
    assert Plan.parse(text) == plan
    assert Plan.parse(str(plan)) == plan
    assert not set(text) & set(" \"'$&|;<>()*?[]{}!#~\\`")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_plans(name):
    plan = Plan.parse(name)
    assert plan == Plan.parse(PRESETS[name])
    assert Plan.parse(str(plan)) == plan
    assert plan.lossless == (name == "lossless")


def test_the_lossless_preset_is_a_codec_and_a_plan_of_several_is_not():
    assert get_codec("lossless") == get_codec("split:model=centred")
    assert get_codec("fast") == Plan.parse("fast").key
    for name in ("balanced", "small"):
        with pytest.raises(InvalidInputError, match=r"use kvcodec\.Plan"):
            get_codec(name)


@pytest.mark.parametrize("plan", [Plan(SPLIT, SPLIT, 1), Plan(SPLIT, FP8), Plan.parse("small")])
def test_a_plan_of_several_codecs_is_not_one_codec(plan):
    with pytest.raises(InvalidInputError, match="is a plan of several codecs"):
        plan.single_codec()
    assert Plan(FP8, FP8).single_codec() == FP8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown codec ''; known: "),
        ("key=split,key=raw,value=fp8", "key is given twice"),
        ("split,key=raw", "key is given twice"),
        ("key=split,raw", "unknown codec 'split,raw'"),
        ("first_blocks=2", "wanted one codec"),
        ("split,first_blocks=two", "first_blocks='two' is not a number"),
        ("split,first_blocks=-1", "first_blocks='-1' is not a number"),
        ("split,first_blocks", "first_blocks='' is not a number"),
        ("split,first_blocks=1,first_blocks=2", "first_blocks is given twice"),
        ("{", "not JSON"),
        ("{}", "wanted key, value and"),
        ("lossles", "unknown codec 'lossles'; known: "),
        ("key=split,value=fp9", "unknown codec 'fp9'"),
        ("fp8:scale=head,scale=block", "'scale=block' is not a new key=value"),
        ("fp8:scales=head", "with key one of: dtype, scale, given"),
    ],
)
def test_malformed_plans_say_what_is_wrong(text, message):
    with pytest.raises((InvalidInputError, UnknownCodecError), match=message):
        Plan.parse(text)


def test_a_plan_that_names_one_kind_keeps_the_other_raw():
    assert Plan.parse("key=fp8") == Plan(FP8, RAW)
    assert Plan.parse("value=fp8") == Plan(RAW, FP8)


def test_json_plans_have_rules_for_layers():
    text = json.dumps(
        {
            "key": "fp8",
            "value": "split",
            "first_blocks": 1,
            "layers": {"0-1": "raw", "5": {"value": "fp8:dtype=e5m2,scale=head"}},
        }
    )
    plan = Plan.parse(text)
    assert [plan.codec(i, "key", 1) for i in (0, 1, 2, 5)] == [RAW, RAW, FP8, FP8]
    assert [plan.codec(i, "value", 1) for i in (0, 1, 2, 5)] == [RAW, RAW, SPLIT, E5M2]
    assert plan.codec(2, "key", 0) == SPLIT
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.parse(str(plan)) == plan


RULES = st.dictionaries(
    st.tuples(st.integers(0, 40), st.sampled_from(["key", "value"])),
    st.sampled_from([RAW, SPLIT, FP8, E5M2]),
)


@given(
    st.sampled_from([RAW, SPLIT, FP8, E5M2]),
    st.sampled_from([RAW, SPLIT, FP8, E5M2]),
    st.integers(0, 9),
    RULES,
)
def test_every_plan_survives_text_and_json(key, value, first_blocks, rules):
    layers = tuple((layer, kind, codec) for (layer, kind), codec in sorted(rules.items()))
    plan = Plan(key, value, first_blocks, layers)
    for copy in (Plan.parse(str(plan)), Plan.from_json(json.loads(json.dumps(plan.to_json())))):
        assert copy == plan
        assert hash(copy) == hash(plan)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "got None"),
        (["split"], "wanted key, value and"),
        ({"key": "split"}, "wanted key, value and"),
        ({"key": "split", "value": "raw", "layer": {}}, "wanted key, value and"),
        ({"key": "split", "value": "raw", "layers": {"a": "raw"}}, "layers 'a', wanted '7'"),
        ({"key": "split", "value": "raw", "layers": {"1-": "raw"}}, "wanted '7' or '0-3'"),
        ({"key": "split", "value": "raw", "layers": {"1": {"k": "raw"}}}, "wanted key and value"),
        ({"key": "split", "value": "raw", "layers": {"0-2": "raw", "1": "raw"}}, "named twice"),
        ({"key": "split", "value": "raw", "first_blocks": -1}, "first_blocks is -1"),
        ({"key": "split", "value": "raw", "first_blocks": True}, "first_blocks is True"),
        ({"key": "split", "value": "raw", "first_blocks": "1"}, "first_blocks is '1'"),
        ({"key": "split", "value": "raw", "first_blocks": 1.5}, r"first_blocks is 1\.5"),
        ({"key": "split", "value": "raw", "layers": ["raw"]}, "wanted an object"),
        ({"key": "split", "value": "raw", "layers": {"5-2": "raw"}}, "layers '5-2', wanted"),
        ({"key": "split", "value": "raw", "layers": {"0-99999999999": "raw"}}, "wanted '7' or"),
    ],
)
def test_malformed_json_plans_say_what_is_wrong(data, message):
    with pytest.raises(InvalidInputError, match=message):
        Plan.from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        {"key": 5, "value": "raw"},
        {"key": "raw", "value": None},
        {"key": "raw", "value": "raw", "layers": {"1": 5}},
        {"key": "raw", "value": "raw", "layers": {"1": {"key": ["raw"]}}},
    ],
)
def test_json_plans_name_codecs_by_spec_strings(data):
    with pytest.raises(UnknownCodecError, match="wanted a spec string"):
        Plan.from_json(data)


def test_a_layer_is_not_named_twice():
    with pytest.raises(InvalidInputError, match="named twice for the same kind"):
        Plan(RAW, RAW, layers=((1, "key", RAW), (1, "key", SPLIT)))
