"""Damaged rows: an error or wrong values, never a write elsewhere, a crash or a hang."""

import ctypes
import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies import KINDS, make_cache

from conformance.cases import DEVICE, FEW, cache_of, same, used
from conformance.views import one_layer_of_many
from kvcodec import EncodedBlocks
from kvcodec.bits import int_view
from kvcodec.errors import CorruptDataError

EXTREMES = (0, 1, 3, 0x7FFF, 0xFFFF, 0x10000, 1 << 30, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damages(row, nbytes, rng):
    """Damaged copies of a row, each with the size it claims."""
    for size in (0, -16, 1, 15, 16, 32, nbytes - 16, nbytes - 1, nbytes + 16, 1 << 30, -(1 << 31)):
        yield row.copy(), size
    for field in range(4, 32, 4):
        for value in EXTREMES:
            bad = row.copy()
            bad[field : field + 4] = np.array([value], "<u4").view(np.uint8)
            yield bad, nbytes
    for at, value in [(0, 1), (0, 2), (0, 255), (1, 1), (2, 255), (3, 1), (3, 255)]:
        bad = row.copy()
        bad[at] ^= value
        yield bad, nbytes
    for _ in range(20):
        bad = row.copy()
        bad[rng.integers(min(nbytes, 400))] ^= 1 << rng.integers(8)
        yield bad, nbytes
    for begin in range(16, min(nbytes, 700), 64):
        for fill in (0x00, 0xFF):
            bad = row.copy()
            bad[begin : begin + 64] = fill
            yield bad, nbytes
    for size in (16, nbytes, row.size):
        noise = rng.integers(0, 256, row.size, np.uint8)
        yield noise, size
        noise = noise.copy()
        noise[:16] = row[:16]
        yield noise, size


def as_batch(rows, damaged):
    payload = torch.from_numpy(np.stack([bad for bad, _ in damaged])).to(DEVICE)
    sizes = torch.tensor([size for _, size in damaged], dtype=torch.int32, device=DEVICE)
    return EncodedBlocks(rows.codec, rows.spec, payload, sizes)


@pytest.mark.parametrize("kind", ["normal", "random_bits"])
def test_damaged_rows_write_nothing_outside_their_blocks(case, kind):
    """Rows of one batch do not harm each other, and a host error leaves the cache as it was."""
    spec = case.spec()
    rows = case.compress(cache_of(spec, (kind,)))
    sound = rows.payload[0].cpu().numpy(), int(rows.nbytes[0])
    expected = case.decode(rows)[0]
    found = list(damages(*sound, np.random.default_rng(0)))
    if case.slow:
        found = found[KINDS.index(kind) % 8 :: 8]
    step = len(found) if case.impl == "triton" else 1
    for damaged in (found[i : i + step] for i in range(0, len(found), step)):
        batch = as_batch(rows, [*damaged, sound])
        noise = make_cache(spec, ("random_bits",) * (len(batch) + 2), 3, str(DEVICE))
        buffer, cache = one_layer_of_many(noise)
        before = buffer.clone()
        ids = list(range(1, len(batch) + 1))
        try:
            case.decompress(batch, cache, ids)
        except CorruptDataError:
            assert case.impl != "triton"
            assert same(buffer, before)
            continue
        assert same(cache[len(batch)], expected)
        int_view(cache)[ids] = 0
        int_view(before[:, 1])[ids] = 0
        assert same(buffer, before)


def test_a_damaged_prefix_is_an_error_on_the_host(host_case):
    spec = host_case.spec()
    rows = host_case.compress(cache_of(spec, FEW[:1]))
    row, nbytes = rows.payload[0].numpy(), int(rows.nbytes[0])
    target = cache_of(spec, FEW[:1])
    mode, reserved, valid = row.copy(), row.copy(), row.copy()
    mode[0] = 255
    reserved[1] = 1
    valid[2:4] = np.array([spec.block_size + 1], "<u2").view(np.uint8)
    for bad, size in [
        (row, nbytes - 16),
        (row, 0),
        (mode, nbytes),
        (reserved, nbytes),
        (valid, nbytes),
    ]:
        with pytest.raises(CorruptDataError):
            host_case.decompress(as_batch(rows, [(bad.copy(), size)]), target)


def against_a_guard(tensor):
    """A copy whose last byte is the last before a page that may not be touched."""
    if tensor.device.type != "cpu" or tensor.numel() == 0:
        return tensor.clone()
    page, nbytes = mmap.PAGESIZE, tensor.numel() * tensor.element_size()
    total = -(-nbytes // page) * page
    region = mmap.mmap(-1, total + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert libc.mprotect(address + total, page, 0) == 0
    copy = torch.frombuffer(region, dtype=torch.uint8, count=nbytes, offset=total - nbytes)
    copy = copy.view(tensor.dtype).view(tensor.shape)  # keeps the region alive
    copy.view(torch.uint8).copy_(tensor.view(torch.uint8))
    return copy


def test_no_kernel_touches_memory_behind_its_tensors(kernel_case):
    """Cache, rows, sizes and workspace each end where memory ends; damaged rows too."""
    spec = kernel_case.spec()
    kinds = FEW if kernel_case.slow else KINDS
    cache = against_a_guard(cache_of(spec, kinds))
    rows = EncodedBlocks.empty(kernel_case.codec_for(spec), spec, len(kinds), DEVICE)
    nbytes = rows.codec.workspace_nbytes(spec, len(kinds), kernel_case.impl)
    scratch = against_a_guard(torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE))
    out = EncodedBlocks(
        rows.codec, spec, against_a_guard(rows.payload), against_a_guard(rows.nbytes)
    )
    kernel_case.compress(cache, out=out, workspace=scratch)
    assert used(out) == used(kernel_case.reference.compress(cache))
    target = against_a_guard(torch.zeros_like(cache))
    kernel_case.decompress(out, target, workspace=scratch)
    assert same(target, kernel_case.reference.decode(out))
    row, size = out.payload[0].cpu().numpy(), int(out.nbytes[0])
    nbytes = rows.codec.workspace_nbytes(spec, 1, kernel_case.impl)
    scratch = against_a_guard(torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE))
    found = list(damages(row, size, np.random.default_rng(1)))
    for damaged in found[:: 11 if kernel_case.slow else 1]:
        batch = as_batch(out, [damaged])
        batch = replace(batch, payload=against_a_guard(batch.payload))
        try:
            kernel_case.decompress(batch, against_a_guard(cache[:1]), workspace=scratch)
        except CorruptDataError:
            assert kernel_case.impl != "triton"
