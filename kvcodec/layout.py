"""Engine tensors as planes `[num_blocks, block_size, num_kv_heads, head_dim]`: views, never copies.

The caller names the tensor's axes, by a name out of `LAYOUTS` or by an axis string; nothing is
guessed from sizes. An axis string has one item for each axis of the tensor, in order:

    kv blocks tokens heads dim       plain axes; kv holds keys at 0 and values at 1
    blocks heads tokens (kv dim)     an axis that holds several, the first one slowest
    blocks layers heads tokens dim -> blocks tokens (layers heads) dim

What follows the arrow are the four axes of the plane: a name, several merged in parentheses, or 1.
Without an arrow they are `blocks tokens heads dim`, with size 1 for a name that is not there.
docs/layouts.md lists what engines hand out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch

from kvcodec.bits import DTYPES, FORMATS
from kvcodec.block import BlockSpec
from kvcodec.errors import LayoutError

PLANE = ("blocks", "tokens", "heads", "dim")

LAYOUTS: dict[str, str] = {
    "nhd": "blocks tokens heads dim",
    "hnd": "blocks heads tokens dim",
    "stacked_nhd": "kv blocks tokens heads dim",
    "stacked_hnd": "kv blocks heads tokens dim",
    "packed_nhd": "blocks tokens heads (kv dim)",
    "packed_hnd": "blocks heads tokens (kv dim)",
    "flashinfer_nhd": "blocks kv tokens heads dim",
    "flashinfer_hnd": "blocks kv heads tokens dim",
    "trtllm": "blocks kv heads tokens dim",
    "vllm_nhd": "blocks tokens heads (kv dim)",
    "vllm_hnd": "blocks heads tokens (kv dim)",
    "tgi_key": "blocks heads parts tokens dim -> blocks tokens (heads parts) dim",
    "tgi_value": "blocks heads dim tokens",
    "contiguous": "batch heads (blocks tokens) dim -> (batch blocks) tokens heads dim",
    "mla": "blocks tokens dim",
    "bytes": "blocks dim",
    "bundle_hnd": "blocks layers heads tokens dim -> blocks tokens (layers heads) dim",
    "bundle_packed_hnd": (
        "blocks layers heads tokens (kv dim) -> blocks tokens (layers heads) dim"
    ),
}

_ITEM = re.compile(r"1|[a-z_]+|\( *[a-z_]+(?: +[a-z_]+)* *\)")

Axes = tuple[tuple[str, ...], ...]


def plane(
    tensor: torch.Tensor, layout: str, *, spec: BlockSpec | None = None, **sizes: int
) -> torch.Tensor:
    """The plane that a tensor of keys, of values, or of both under one name (MLA, bytes) holds.

    Args:
        layout: name or axis string without a kv axis.
        spec: what a block must look like; a mismatch raises. It is the only guard against a wrong
            but possible reading, so an adapter should always give it.
        sizes: sizes of axes by name, as in `tokens=16`: for an axis of several, all but one; for
            any other axis, a check.

    Raises:
        LayoutError: the tensor does not have these axes, or its strides allow no such view.
    """
    axes, order = _parse(layout)
    if any("kv" in names for names in axes):
        raise LayoutError(f"layout {layout!r} holds keys and values: use planes()")
    return _plane(*_split(tensor, layout, axes, sizes), order, layout, spec)


def planes(
    tensor: torch.Tensor,
    layout: str,
    *,
    spec: BlockSpec | Mapping[str, BlockSpec] | None = None,
    head_dim_key: int | None = None,
    **sizes: int,
) -> dict[str, torch.Tensor]:
    """Planes "key" and "value" of a tensor that holds both.

    Args: as `plane`, and
        layout: name or axis string with a kv axis, which must have size 2.
        spec: one for both planes, or one under "key" and one under "value".
        head_dim_key: elements of a `(kv dim)` axis that are keys; half of it when None.
    """
    axes, order = _parse(layout)
    if not any("kv" in names for names in axes):
        raise LayoutError(f"layout {layout!r} has no kv axis: use plane()")
    specs = spec if isinstance(spec, Mapping) else {"key": spec, "value": spec}
    if set(specs) != {"key", "value"}:
        raise LayoutError(f"planes: specs under {sorted(specs)}, wanted key and value")
    found = {}
    for index, kind in enumerate(("key", "value")):
        if head_dim_key is None:
            part, names = _split(tensor, layout, axes, {**sizes, "kv": 2})
            at = names.index("kv")
            part, names = part.select(at, index), names[:at] + names[at + 1 :]
        else:
            half, left = _cut(tensor, layout, axes, head_dim_key, index)
            part, names = _split(half, layout, left, sizes)
        found[kind] = _plane(part, names, order, layout, specs[kind])
    return found


def reinterpret(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bytes seen as another element type, as for FP8 caches that arrive as uint8.

    No number is converted. To another width the last axis must be contiguous, and its size changes.
    """
    if dtype not in FORMATS:
        raise LayoutError(f"reinterpret: {dtype} is not one of {', '.join(DTYPES)}")
    try:
        return tensor.view(dtype)
    except RuntimeError as error:
        raise LayoutError(
            f"reinterpret: {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} "
            f"cannot be seen as {dtype} ({error}); go to another width before slicing or permuting"
        ) from error


def _parse(layout: str) -> tuple[Axes, Axes]:
    """Names held by each axis of the tensor, and by each of the four axes of the plane."""
    text = LAYOUTS.get(layout, layout)
    if " " not in text:
        raise LayoutError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}, or axis names")
    left, arrow, right = text.partition("->")
    axes = _items(left, layout)
    names = [name for axis in axes for name in axis]
    order = _items(right, layout) if arrow else tuple((n if n in names else "1",) for n in PLANE)
    kept = [name for axis in order for name in axis if axis != ("1",)]
    if len(set(names)) != len(names) or len(order) != 4 or not set(names).isdisjoint("1"):
        raise LayoutError(
            f"layout {layout!r}: wanted distinct axis names, and four axes after an arrow"
        )
    if sorted(kept) != sorted(set(names) - {"kv"}):
        raise LayoutError(
            f"layout {layout!r}: the plane takes {', '.join(kept)} of {', '.join(names)}; after "
            "'->' name each but kv once, or index the others away before"
        )
    return axes, order


def _items(text: str, layout: str) -> Axes:
    items = _ITEM.findall(text)
    if " ".join(items).split() != text.split() or not items:
        raise LayoutError(f"layout {layout!r}: {text.strip()!r} is not a list of names and (names)")
    return tuple(tuple(item.strip("()").split()) for item in items)


def _cut(
    tensor: torch.Tensor, layout: str, axes: Axes, head_dim_key: int, index: int
) -> tuple[torch.Tensor, Axes]:
    """Keys (0) or values (1) of a `(kv dim)` axis that is not cut in halves."""
    _check_dims(tensor, layout, axes)
    at = next(i for i, names in enumerate(axes) if "kv" in names)
    width = tensor.shape[at]
    if axes[at] != ("kv", "dim") or not 0 < head_dim_key < width:
        raise LayoutError(
            f"layout {layout!r}: head_dim_key {head_dim_key} needs a (kv dim) axis that is longer; "
            f"the tensor is {tuple(tensor.shape)}"
        )
    begin, length = ((0, head_dim_key), (head_dim_key, width - head_dim_key))[index]
    return tensor.narrow(at, begin, length), (*axes[:at], ("dim",), *axes[at + 1 :])


def _check_dims(tensor: torch.Tensor, layout: str, axes: Axes) -> None:
    if tensor.dim() != len(axes):
        raise LayoutError(
            f"layout {layout!r} has {len(axes)} axes, the tensor {tensor.dim()}: "
            f"{tuple(tensor.shape)}"
        )


def _split(
    tensor: torch.Tensor, layout: str, axes: Axes, sizes: Mapping[str, int]
) -> tuple[torch.Tensor, list[str]]:
    """The tensor with one axis for each name, and the names. Splitting an axis is always a view."""
    _check_dims(tensor, layout, axes)
    names = [name for axis in axes for name in axis]
    unknown = set(sizes) - set(names)
    if unknown:
        raise LayoutError(f"layout {layout!r} has no axis {', '.join(sorted(unknown))}")
    shape: list[int] = []
    for held, total in zip(axes, tensor.shape, strict=True):
        shape += _axis_sizes(layout, held, total, sizes)
    return tensor.view(shape), names


def _axis_sizes(
    layout: str, held: tuple[str, ...], total: int, sizes: Mapping[str, int]
) -> list[int]:
    """Sizes of the names that an axis of `total` elements holds; one may follow from the others."""
    missing = [name for name in held if name not in sizes]
    if len(missing) > 1:
        raise LayoutError(
            f"layout {layout!r}: axis ({' '.join(held)}) of {total} needs the size of "
            f"{' or '.join(missing)}: pass {missing[-1]}=..."
        )
    known = [sizes[name] for name in held if name in sizes]
    product = math.prod(known)
    if min(known, default=1) < 1 or total % product or (not missing and total != product):
        given = ", ".join(f"{name}={sizes[name]}" for name in held if name in sizes)
        raise LayoutError(
            f"layout {layout!r}: axis ({' '.join(held)}) has {total} elements, which does not fit "
            f"{given}; cut the tensor to whole blocks, or name the layout it has"
        )
    return [sizes.get(name, total // product) for name in held]


def _plane(
    tensor: torch.Tensor, names: list[str], order: Axes, layout: str, spec: BlockSpec | None
) -> torch.Tensor:
    """Merge and permute one-name axes into the four of a plane."""
    shape, strides = [], []
    for held in order:
        size, stride = 1, 1
        for name in () if held == ("1",) else reversed(held):
            length, step = tensor.shape[names.index(name)], tensor.stride(names.index(name))
            if length > 1 and size > 1 and step != stride * size:
                raise LayoutError(
                    f"layout {layout!r}: ({' '.join(held)}) is no view of this tensor: {name} "
                    f"steps by {step} elements, what follows it spans {stride * size}; merge in "
                    f"the order of memory, or index {name} first and take a plane for each"
                )
            size, stride = size * length, step if size == 1 else stride
        shape.append(size)
        strides.append(stride)
    view = tensor.as_strided(shape, strides)
    if spec is not None and (view.dtype != spec.dtype or tuple(view.shape[1:]) != spec.shape):
        tokens, heads, dim = view.shape[1:]
        raise LayoutError(
            f"layout {layout!r} reads {tokens} tokens, {heads} heads, head_dim {dim} of "
            f"{view.dtype}; the engine says {spec.block_size}, {spec.num_kv_heads}, "
            f"{spec.head_dim} of {spec.dtype}: name the layout it has, or reinterpret the bytes"
        )
    return view
