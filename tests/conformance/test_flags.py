"""What a codec claims about itself is true."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from strategies import FINITE, KINDS

from conformance.cases import DEVICE, FEW, Case, all_cases, bits, cache_of, same, used
from kvcodec import BlockSpec, codec_from_config, codec_names, get_codec
from kvcodec.bits import int_view
from kvcodec.centred import mean_of
from kvcodec.codec import parameters
from kvcodec.codecs.raw import Raw
from kvcodec.heads import merge_heads, take_heads
from kvcodec.quantizer import Quantizer
from kvcodec.registry import codec_class


def check_cycles(case, kinds, cycles):
    spec = case.spec()
    cache = cache_of(spec, kinds)
    valid = [spec.block_size - 1] + [spec.block_size] * (len(cache) - 1)
    first = used(case.compress(cache, num_valid=valid))
    for _ in range(cycles):
        rows = case.compress(cache, num_valid=valid)
        assert used(rows) == first
        case.decompress(rows, cache)


def test_ten_cycles_of_evict_and_fetch_change_nothing(idempotent_case):
    slow = idempotent_case.slow
    check_cycles(idempotent_case, FEW[:2] if slow else KINDS, 2 if slow else 10)


@dataclass(frozen=True, slots=True)
class Drifts(Raw):
    """Claims to be idempotent, and makes every block a little smaller."""

    name = "drifts"

    def decode(self, encoded, positions=None):
        return Raw.decode(self, encoded) * 0.99


def test_a_codec_that_drifts_is_caught():
    with pytest.raises(AssertionError):
        check_cycles(Case(Drifts(), "reference"), ("normal",), 2)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 3), (2, 3), (0, 3)])
def test_heads_can_be_cut_out_of_rows_and_merged(splittable_case, start, stop):
    """A reader with fewer heads gets the values that a reader of all heads gets."""
    spec = replace(splittable_case.spec(), num_kv_heads=3)
    cache = cache_of(spec, FEW)
    rows = splittable_case.compress(cache, num_valid=[spec.block_size, 1, 0])
    cut = take_heads(rows, start, stop)
    taken = replace(splittable_case, codec=cut.codec)
    assert same(taken.decode(cut), splittable_case.decode(rows)[:, :, start:stop])
    parts = [take_heads(rows, i, i + 1) for i in range(3)]
    assert used(merge_heads(parts)) == used(rows)


def values_and_decoded(case, kinds):
    """fp64 values of a finite block of each kind, and what comes back."""
    for spec in case.specs()[:: 2 if case.slow else 1]:
        cache = cache_of(spec, kinds)
        decoded = case.decode(case.compress(cache))
        yield from zip(cache.to(torch.float64), decoded.to(torch.float64), kinds, strict=True)


def test_finite_blocks_come_back_finite(lossy_case):
    """Tiny, huge and all-zero groups make no NaN and no infinity."""
    for _, decoded, kind in values_and_decoded(lossy_case, FINITE):
        assert decoded.isfinite().all(), kind


def test_a_decoded_block_is_nearer_than_zeros(lossy_case):
    """Every parameter is used: channels 1000 times larger than others do not drown a block.

    A centred codec's zeros are the means.
    """
    for block, decoded, kind in values_and_decoded(lossy_case, FINITE):
        nothing = block
        if lossy_case.centred:
            codec = lossy_case.codec_for(BlockSpec(*block.shape, torch.bfloat16))
            nothing = block - torch.from_numpy(mean_of(codec.held())).to(block.device)
        assert (decoded - block).norm() <= nothing.norm() * 0.99, kind


def test_an_all_zero_block_comes_back_as_zeros(relative_case):
    spec = relative_case.spec()
    decoded = relative_case.decode(relative_case.compress(cache_of(spec, ("zeros",))))
    assert not (decoded.to(torch.float32) != 0).any()


def test_an_all_zero_block_takes_less_than_a_raw_one(case):
    """A coder notices; a codec of fixed size says so, and one whose codes it keeps raw has none."""
    spec = case.spec()
    sizes = case.compress(cache_of(spec, ("zeros", "random_bits"))).nbytes.tolist()
    parts = case.codec.parts(spec) if isinstance(case.codec, Quantizer) else ()
    keeps_codes = any(part.coding == "raw" and part.tokens for part in parts)
    assert sizes[0] < sizes[1] + keeps_codes or case.codec.fixed_size


@pytest.mark.parametrize("tiny", [1e-30, 1e-38, 1e-44])
def test_tiny_values_are_not_turned_into_nan(lossy_case, tiny):
    for spec in lossy_case.specs():
        if spec.dtype in (torch.bfloat16, torch.float32):
            cache = (cache_of(spec, ("normal",)).to(torch.float32) * tiny).to(spec.dtype)
            decoded = lossy_case.decode(lossy_case.compress(cache))
            assert decoded.isfinite().all()
            assert lossy_case.centred or decoded.abs().max() <= 2 * cache.abs().max()


def test_config_and_spec_string_name_the_same_codec(codec_case):
    codec = codec_case.codec
    config = json.loads(json.dumps(codec.config()))
    assert codec_from_config(config) == codec
    assert get_codec(str(codec)) == codec
    assert config == codec_from_config(config).config()
    left_out = {name for name in codec.later if name not in config["params"]}
    assert set(config["params"]) == {f.name for f in parameters(codec)} - left_out
    assert all(f.default == getattr(codec, f.name) for f in parameters(codec) if f.name in left_out)


def test_codecs_are_values(codec_case):
    """Equal parameters make equal, hashable codecs: frames and plans compare them."""
    codec = codec_case.codec
    assert codec == replace(codec)
    assert hash(codec) == hash(replace(codec))
    with pytest.raises((AttributeError, TypeError)):
        codec.name = "other"


@pytest.mark.parametrize("name", codec_names())
def test_every_codec_has_examples_that_the_contract_runs(name):
    examples = codec_class(name).examples
    assert examples
    assert len({get_codec(text) for text in examples}) == len(examples)
    assert codec_class(name).__module__.rpartition(".")[2] == name
    assert codec_class(name).__doc__


@pytest.mark.parametrize("name", codec_names())
def test_every_value_of_a_parameter_is_tried(name):
    """A parameter whose default is the only value in the examples would go untested."""
    codecs = [get_codec(text) for text in codec_class(name).examples]
    named = [f for f in parameters(codec_class(name)) if f.name != "tables"]  # bound in every case
    for field in named:
        assert len({getattr(codec, field.name) for codec in codecs}) > 1, field.name


def test_decoding_does_not_depend_on_the_machines_byte_order_of_rows(codec_case):
    """Every part of a row has a little-endian or single-byte type."""
    spec = codec_case.spec()
    for row in used(codec_case.compress(cache_of(spec, KINDS))):
        for section in codec_case.codec.sections(spec, row[0]):
            assert section.dtype[0] == "<" or section.dtype in ("u1", "<u1", "|u1"), section


def test_cases_cover_the_reference_and_some_kernel():
    impls = {case.impl for case in all_cases()}
    assert "reference" in impls
    assert len(impls) > 1


def test_rows_move_between_devices(case):
    cache = cache_of(case.spec())
    rows = case.compress(cache)
    back = rows.to("cpu").to(DEVICE)
    assert same(case.decode(back), case.decode(rows))
    assert torch.equal(bits(int_view(back.payload)), bits(rows.payload))
