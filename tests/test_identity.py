"""Identity: bytes of one cache are never taken for another."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import subprocess
import sys
from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_cache

from kvcodec import BlockSpec, compress
from kvcodec.errors import IdentityError, InvalidInputError
from kvcodec.frame import dumps, loads
from kvcodec.heads import take_heads
from kvcodec.identity import Identity

FULL = Identity(
    tenant="t",
    salt="s",
    model="m",
    revision="r",
    weight_format="bf16",
    rope_scaling={"rope_type": "yarn", "factor": 4.0},
    layer=3,
    kind="key",
    block_key="0a",
    head_start=0,
    head_stop=2,
    num_heads=8,
    tp_rank=0,
    tp_size=4,
    pp_rank=1,
    pp_size=2,
    layout="nhd",
    dtype="bf16",
    rotation="hadamard",
    rotation_version=1,
    profile_hash="ff",
    lora="l",
    exact=True,
)
# another valid value of every field
OTHER = {
    "tenant": "u", "salt": "", "model": "n", "revision": "q", "weight_format": "fp8",
    "rope_scaling": '{"factor":8,"rope_type":"yarn"}', "layer": 4, "kind": "value",
    "block_key": "0b", "head_start": 1, "head_stop": 3, "num_heads": 9, "tp_rank": 1,
    "tp_size": 2, "pp_rank": 0, "pp_size": 3, "layout": "hnd", "dtype": "fp16",
    "rotation": "none", "rotation_version": 2, "profile_hash": "fe", "lora": "", "exact": False,
}  # fmt: skip
SPEC = BlockSpec(4, 2, 8, torch.bfloat16)


def frame(identity: Identity | None = None, codec: str = "split", spec: BlockSpec = SPEC) -> bytes:
    return dumps(compress(make_cache(spec, ("random_bits",)), [0], codec), identity)


def test_every_field_has_another_value_here():
    assert set(OTHER) == {f.name for f in fields(Identity)} == set(FULL.to_json())


@pytest.mark.parametrize("name", OTHER)
def test_a_differing_field_is_refused_and_named(name):
    wanted = replace(FULL, **{name: OTHER[name]})
    assert wanted.fingerprint() != FULL.fingerprint()
    with pytest.raises(IdentityError) as caught:
        FULL.require(wanted)
    got, other = repr(getattr(FULL, name)), repr(OTHER[name])
    assert str(caught.value) == f"frame of another cache: {name} is {got}, wanted {other}"


@pytest.mark.parametrize("name", OTHER)
def test_a_field_that_the_frame_lacks_is_refused(name):
    wanted = Identity(**{name: OTHER[name]}) if "head" not in name else FULL
    with pytest.raises(IdentityError, match=f"{name} is unspecified"):
        Identity().require(wanted)


def test_only_the_fields_given_are_compared():
    FULL.require(Identity())
    FULL.require(Identity(model="m", layer=3))
    FULL.require(FULL)


def test_all_differing_fields_are_named():
    with pytest.raises(IdentityError, match="layer is 3, wanted 4; kind is 'key', wanted 'value'"):
        FULL.require(Identity(model="m", layer=4, kind="value"))


def test_two_layouts_of_equal_size_are_two_caches():
    # 2 heads of blocks of 2 tokens: [NB, 2, 2, 8] read as NHD or HND
    square = BlockSpec(2, 2, 8, torch.bfloat16)
    data = frame(Identity(layout="nhd"), spec=square)
    assert loads(data, expected=Identity(layout="nhd")).num_rows == 1
    with pytest.raises(IdentityError, match="layout is 'nhd', wanted 'hnd'"):
        loads(data, expected=Identity(layout="hnd"))


def test_e4m3fnuz_is_not_e4m3fn():
    spec = BlockSpec(4, 2, 8, torch.float8_e4m3fnuz)
    data = frame(spec=spec)
    assert loads(data).identity.dtype == "e4m3fnuz"
    with pytest.raises(IdentityError, match="dtype is 'e4m3fnuz', wanted 'e4m3fn'"):
        loads(data, expected=Identity(dtype="e4m3fn"))
    with pytest.raises(InvalidInputError, match="dtype is e4m3fn, blocks are"):
        frame(Identity(dtype="e4m3fn"), spec=spec)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "fp8", "torch.bfloat16", ""])
def test_only_resolved_encodings_are_a_dtype(dtype):
    with pytest.raises(InvalidInputError, match="wanted a resolved encoding: bf16"):
        Identity(dtype=dtype)


def test_a_frame_holds_the_dtype_of_its_blocks():
    assert loads(frame()).identity == Identity(dtype="bf16", exact=True)
    half = compress(make_cache(replace(SPEC, dtype=torch.float16), ("zeros",)), [0], "raw")
    mixed = dumps([half, compress(make_cache(SPEC, ("zeros",)), [0], "raw")])
    assert loads(mixed).identity == Identity(exact=True)


def test_a_block_key_is_echoed_and_compared():
    data = frame(Identity(block_key="5f2e"))
    assert loads(data).identity.block_key == "5f2e"
    with pytest.raises(IdentityError, match="block_key is '5f2e', wanted '5f2f'"):
        loads(data, expected=Identity(block_key="5f2f"))


def test_adapters_and_salts_never_run_together():
    texts = ("", "a", "b", "ab", "lora", "a\0b", "lora=a")
    made = [
        Identity(**{k: v for k, v in (("lora", x), ("salt", y), ("model", z)) if v is not None})
        for x, y, z in itertools.product((None, *texts), repeat=3)
    ]
    assert len({i.fingerprint() for i in made}) == len(made) == 512


def test_no_adapter_is_not_the_same_as_nothing_said():
    data = frame(Identity(lora="a"))
    loads(data, expected=Identity())
    with pytest.raises(IdentityError, match="lora is 'a', wanted ''"):
        loads(data, expected=Identity(lora=""))


def test_equal_settings_have_one_form_in_any_order():
    forms = [
        {"rope_type": "yarn", "factor": 4.0, "inner": {"b": (1, 2.5), "a": None}},
        {"inner": {"a": None, "b": [1.0, 2.5]}, "factor": 4, "rope_type": "yarn"},
        MappingProxyType({"factor": 4, "rope_type": "yarn", "inner": {"b": [1, 2.5], "a": None}}),
        '{"rope_type": "yarn", "inner": {"b": [1, 2.5], "a": null}, "factor": 4.0}',
    ]
    made = {Identity(rope_scaling=form) for form in forms}
    assert len(made) == 1
    canonical = '{"factor":4,"inner":{"a":null,"b":[1,2.5]},"rope_type":"yarn"}'
    assert made.pop().rope_scaling == canonical
    assert Identity(rope_scaling="linear").rope_scaling == "linear"


@pytest.mark.parametrize(
    "setting", [{"factor": float("nan")}, {"a": object()}, "{", '{"a":1,"a":2}', {1: 2, "a": 1}, []]
)
def test_settings_without_one_form_are_refused(setting):
    with pytest.raises(InvalidInputError, match="rope_scaling"):
        Identity(rope_scaling=setting)


def test_a_fingerprint_is_what_the_format_page_says():
    hashed = b"kvcodec identity 1\n"
    given = [("exact", "bool", "True"), ("layer", "int", "3"), ("salt", "str", "")]
    for name, kind, value in (*given, ("tenant", "str", "é")):
        for text in (name, kind, value):
            hashed += struct.pack("<I", len(text.encode())) + text.encode()
    made = Identity(tenant="é", salt="", layer=3, exact=True)
    assert made.fingerprint() == hashlib.sha256(hashed).hexdigest()


def test_a_fingerprint_is_the_same_in_another_process():
    program = (
        "import json, sys; from kvcodec.identity import Identity;"
        "print(Identity(**json.loads(sys.argv[1])).fingerprint())"
    )
    turned = {name: getattr(FULL, name) for name in reversed(FULL.to_json())}
    turned["rope_scaling"] = {"factor": 4, "rope_type": "yarn"}
    answer = subprocess.run(
        [sys.executable, "-c", program, json.dumps(turned)],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == FULL.fingerprint()


def test_exact_is_what_the_codecs_are():
    assert loads(frame(codec="split")).identity.exact is True
    assert loads(frame(codec="fp8")).identity.exact is False
    with pytest.raises(InvalidInputError, match="exact is True, the codecs are fp8"):
        frame(Identity(exact=True), codec="fp8")
    exact, lossy = (compress(make_cache(SPEC, ("zeros",)), [0], c) for c in ("split", "fp8"))
    assert loads(dumps([exact, lossy])).identity.exact is False


def test_lossy_blocks_restore_an_exact_cache_only_when_allowed():
    data = frame(Identity(model="m"), codec="fp8")
    wanted = Identity(model="m", exact=True)
    with pytest.raises(IdentityError, match=r"exact is False, wanted True .*allow_lossy=True"):
        loads(data, expected=wanted)
    assert loads(data, expected=wanted, allow_lossy=True).num_rows == 1
    with pytest.raises(IdentityError, match="model is 'm'"):
        loads(data, expected=replace(wanted, model="n"), allow_lossy=True)


def test_lossy_and_exact_blocks_never_share_a_key():
    exact, lossy = loads(frame(codec="split")), loads(frame(codec="fp8"))
    assert exact.identity.fingerprint() != lossy.identity.fingerprint()


def test_a_reader_of_half_the_heads_gets_its_heads_or_an_error():
    spec = BlockSpec(4, 8, 8, torch.bfloat16)
    cache = make_cache(spec, ("normal",))
    whole = Identity(model="m", head_start=0, head_stop=8, num_heads=8, tp_rank=0, tp_size=1)
    mine = replace(whole, head_start=4, head_stop=8, tp_rank=1, tp_size=2)
    data = dumps(compress(cache, [0], "raw"), whole)
    with pytest.raises(IdentityError, match="head_start is 0, wanted 4; tp_rank is 0"):
        loads(data, expected=mine)
    ((_, rows),) = loads(data, expected=whole).batches()
    cut = dumps(take_heads(rows, 4, 8), mine)
    assert cut == dumps(compress(cache[:, :, 4:], [0], "raw"), mine)
    assert loads(cut, expected=mine).rows[0].spec.num_kv_heads == 4


def test_heads_of_the_identity_are_the_heads_of_the_blocks():
    with pytest.raises(InvalidInputError, match=r"4 heads, the blocks have \[2\]"):
        frame(Identity(head_start=4, head_stop=8, num_heads=8))


@pytest.mark.parametrize(
    "wrong",
    [
        {"layer": -1}, {"layer": 1 << 31}, {"layer": True}, {"layer": "1"}, {"layer": 1.0},
        {"kind": "K"}, {"exact": 1}, {"model": 7}, {"model": b"m"}, {"model": "\ud800"},
        {"tp_rank": 2, "tp_size": 2}, {"pp_rank": 0, "pp_size": 0},
        {"head_start": 0}, {"head_stop": 4}, {"head_start": 4, "head_stop": 4},
        {"head_start": 4, "head_stop": 9, "num_heads": 8},
        {"layout": "NHD"}, {"layout": " nhd"}, {"layout": "kv  blocks"}, {"weight_format": "Q8_0"},
        {"model": np.str_("m")}, {"layer": np.int64(1)},
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InvalidInputError, match=f"identity: .*{next(iter(wrong))[:4]}"):
        Identity(**wrong)


@given(
    st.dictionaries(st.sampled_from(["tenant", "salt", "model", "lora", "block_key"]), st.text()),
    st.integers(0, 2**31 - 1),
)
def test_identities_come_back_from_a_frame(texts, layer):
    try:
        identity = Identity(**texts, layer=layer)
    except InvalidInputError:
        assert any("\ud800" <= c <= "\udfff" for c in "".join(texts.values()))
        return
    assert loads(dumps([], identity)).identity == replace(identity, exact=True)
    assert Identity.from_json(identity.to_json()) == identity
