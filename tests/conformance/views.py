"""Caches whose memory is laid out like an engine's: the same blocks, other strides."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvcodec.bits import int_view

Make = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _inside(cache: torch.Tensor, shape: tuple[int, ...], cut: Callable) -> tuple:
    """A buffer of random bytes, and the view of it that `cut` makes and that holds the cache."""
    nbytes = torch.Size(shape).numel() * cache.element_size()
    noise = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=cache.device)
    buffer = noise.view(cache.dtype).view(shape)
    view = cut(buffer)
    int_view(view).copy_(int_view(cache))
    return buffer, view


def heads_first(cache):
    b, n, h, d = cache.shape
    return _inside(cache, (b, h, n, d), lambda t: t.transpose(1, 2))


def values_of_stacked(cache):
    return _inside(cache, (2, *cache.shape), lambda t: t[1])


def values_of_packed(cache):
    b, n, h, d = cache.shape
    return _inside(cache, (b, h, n, 2 * d), lambda t: t[..., d:].transpose(1, 2))


def channels_apart(cache):
    b, n, h, d = cache.shape
    return _inside(cache, (b, h, d, n), lambda t: t.permute(0, 3, 1, 2))


def every_second_channel(cache):
    b, n, h, d = cache.shape
    return _inside(cache, (b, n, h, 2 * d), lambda t: t[..., 1::2])


def padded_everywhere(cache):
    shape = tuple(size + 1 for size in cache.shape)
    return _inside(cache, shape, lambda t: t[1:, :-1, 1:, 1:])


def misaligned(cache):
    return _inside(cache, (cache.numel() + 1,), lambda t: t[1:].view(cache.shape))


def one_layer_of_many(cache):
    b, n, h, d = cache.shape
    return _inside(cache, (b, 3, n, h, d), lambda t: t[:, 1])


def blocks_last(cache):
    b, n, h, d = cache.shape
    return _inside(cache, (n, h, d, b), lambda t: t.permute(3, 0, 1, 2))


VIEWS: list[Make] = [
    heads_first,
    values_of_stacked,
    values_of_packed,
    channels_apart,
    every_second_channel,
    padded_everywhere,
    misaligned,
    one_layer_of_many,
    blocks_last,
]
