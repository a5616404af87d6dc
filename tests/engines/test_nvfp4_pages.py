"""nvfp4 rows and engines' pages, by explicit indices; scales of other conventions."""

import itertools

import pytest
import torch

from kvcodec import BlockSpec, get_codec
from kvcodec.codecs.nvfp4 import Nvfp4
from kvcodec.engines import nvfp4_pages as pages
from kvcodec.errors import InvalidInputError

SPEC = BlockSpec(4, 3, 32, torch.bfloat16)
T, H, D = SPEC.shape


def make_rows(codec, n=3):
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(n, *SPEC.shape, generator=generator).to(SPEC.dtype)
    return cache, codec.compress(cache, range(n), impl="reference")


def test_a_page_holds_for_each_head_all_codes_then_all_scales():
    _, rows = make_rows(Nvfp4(given=0.004))
    made, scales = pages.rows_to_pages(rows)
    assert made.shape == (3, T * H * (D // 2 + D // 16)) == (3, pages.page_nbytes(SPEC))
    assert scales.tolist() == [torch.tensor(0.004).item()] * 3
    slot, scales_begin = T * (D // 2 + D // 16), 16 + T * H * D // 2
    for n, t, h in itertools.product(range(3), range(T), range(H)):
        for i in range(D // 2):
            code = rows.payload[n, 16 + (t * H + h) * (D // 2) + i]
            assert made[n, h * slot + t * (D // 2) + i] == code
        for g in range(D // 16):
            scale = rows.payload[n, scales_begin + (t * H + h) * (D // 16) + g]
            assert made[n, h * slot + T * D // 2 + t * (D // 16) + g] == scale


def test_pages_become_the_rows_they_came_from():
    codec = Nvfp4(given=0.004)
    cache, rows = make_rows(codec)
    back = pages.pages_to_rows(pages.rows_to_pages(rows)[0], SPEC, 0.004)
    assert back.codec == codec
    assert torch.equal(back.payload, rows.payload)
    assert torch.equal(back.nbytes, rows.nbytes)
    target = torch.zeros_like(cache)
    codec.decompress(back, target, range(3))


def test_measured_scales_come_with_their_pages():
    cache, rows = make_rows(Nvfp4())
    made, scales = pages.rows_to_pages(rows)
    assert torch.equal(scales, cache.abs().float().amax((1, 2, 3)) / 2688)
    decoded = torch.zeros_like(cache)
    Nvfp4().decompress(rows, decoded, range(3), impl="reference")
    for i in range(3):
        one = pages.pages_to_rows(made[i : i + 1], SPEC, scales[i].item())
        target = torch.zeros_like(cache[:1])
        one.codec.decompress(one, target, [0], impl="reference")
        assert torch.equal(target[0], decoded[i])


def test_pages_may_lie_in_a_larger_cache():
    _, rows = make_rows(Nvfp4(given=0.004))
    made = pages.rows_to_pages(rows)[0]
    whole = torch.full((3, made.shape[1] + 64), 7, dtype=torch.uint8)
    whole[:, 32:-32] = made
    back = pages.pages_to_rows(whole[:, 32:-32], SPEC, 0.004)
    assert torch.equal(back.payload, rows.payload)


def test_conventions_of_global_scales_decode_alike():
    """A code of 6 under the largest scale of each convention is amax."""
    amax = torch.tensor([3.5, 1e-3, 700.0])
    tops = {pages.encode_scale_2688: 448.0, pages.encode_scale_448: 448.0 / 6}
    for convention, top in tops.items():
        back = 6 * top * pages.decode_scale(convention(amax))
        torch.testing.assert_close(back, amax, rtol=3e-7, atol=0)
    measured = amax / 2688
    supplied = pages.decode_scale(pages.encode_scale_2688(amax))
    torch.testing.assert_close(supplied, measured, rtol=2.0**-22, atol=0)


@pytest.mark.parametrize("shape", [(128, 4), (1, 1), (130, 6), (300, 8), (64, 12)])
def test_swizzled_scales_stand_where_the_tiles_want_them(shape):
    rows, columns = shape
    scales = (torch.arange(rows * columns) % 251 + 1).to(torch.uint8).view(shape)
    made = pages.swizzle_scales(scales)
    wide = -(-columns // 4)
    assert made.numel() == -(-rows // 128) * wide * 512
    for m, k in itertools.product(range(rows), range(columns)):
        tile = m // 128 * wide + k // 4
        at = tile * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
        assert made[at] == scales[m, k]
    assert int((made != 0).sum()) == scales.numel()
    assert torch.equal(pages.unswizzle_scales(made, rows, columns), scales)


def test_what_is_no_page_is_refused():
    with pytest.raises(InvalidInputError, match=r"wanted uint8 \[n, 216\]"):
        pages.pages_to_rows(torch.zeros(2, 217, dtype=torch.uint8), SPEC, 1.0)
    _, other = make_rows(get_codec("fp8"))
    with pytest.raises(InvalidInputError, match="wanted rows of nvfp4"):
        pages.rows_to_pages(other)
    with pytest.raises(InvalidInputError, match=r"wanted \[1024\] for 130 rows of 4"):
        pages.unswizzle_scales(torch.zeros(512, dtype=torch.uint8), 130, 4)
