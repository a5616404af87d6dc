"""Bits and SQNR against values worked out by hand."""

import math

import pytest
import torch

import kvcodec
from kvcodec import metrics
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.errors import InvalidInputError


def rows(nbytes: list[int], spec: BlockSpec) -> EncodedBlocks:
    sizes = torch.tensor(nbytes, dtype=torch.int32)
    payload = torch.zeros(1, 64, dtype=torch.uint8).expand(len(nbytes), 64)
    return EncodedBlocks(kvcodec.get_codec("raw"), spec, payload, sizes)


def test_bits_per_element_counts_whole_rows():
    spec = BlockSpec(4, 1, 8, torch.bfloat16)
    assert metrics.bits_per_element(rows([32, 64], spec)) == 8 * 96 / 64


def test_bits_per_element_is_that_of_the_rows_of_a_codec():
    cache = torch.randn(3, 16, 2, 64).bfloat16()
    encoded = kvcodec.compress(cache, [0, 1, 2], "fp8")
    # 16 bytes of prefix, 1 byte per element, 4 bytes per token and head
    expected = 8 * (16 + 16 * 2 * 64 + 4 * 16 * 2) / (16 * 2 * 64)
    assert metrics.bits_per_element(encoded) == expected


def test_bits_per_element_survives_totals_past_31_bits():
    spec = BlockSpec(16, 8, 128, torch.bfloat16)
    encoded = rows([1 << 30] * 5, spec)
    assert metrics.bits_per_element(encoded) == 8 * (1 << 30) / spec.numel


def test_bits_per_element_of_no_rows_is_nan():
    assert math.isnan(metrics.bits_per_element(rows([], BlockSpec(4, 1, 8, torch.bfloat16))))


@pytest.mark.parametrize("chunk", [1, 3, 1 << 24])
def test_sqnr_is_signal_over_noise_in_decibels(monkeypatch, chunk):
    monkeypatch.setattr(metrics, "CHUNK", chunk)
    reference = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    decoded = torch.tensor([[3.0, 0.0], [0.5, 4.0]])
    assert metrics.sqnr_db(reference, decoded) == 20.0  # 10 log10(25 / 0.25)
    assert metrics.sqnr_db(reference.T, decoded.T) == 20.0


def test_sqnr_leaves_out_what_has_no_finite_reference():
    reference = torch.tensor([3.0, 4.0, torch.nan, torch.inf])
    assert metrics.sqnr_db(reference, torch.tensor([3.0, 4.5, 0.0, 448.0])) == 20.0


def test_sqnr_at_its_limits():
    zeros, ones = torch.zeros(4), torch.ones(4)
    assert metrics.sqnr_db(ones, ones) == math.inf
    assert metrics.sqnr_db(zeros, zeros) == math.inf
    assert metrics.sqnr_db(zeros, ones) == -math.inf
    assert math.isnan(metrics.sqnr_db(ones, ones * torch.nan))


def test_sqnr_refuses_another_shape():
    with pytest.raises(InvalidInputError, match=r"\(4,\), wanted \(2, 2\)"):
        metrics.sqnr_db(torch.zeros(2, 2), torch.zeros(4))
