"""JSON as frames hold it: one way to write a value, and no way to read one twice.

Python's parser keeps the last of two equal keys, reads NaN, turns 1e999 into infinity and accepts
integers and nesting without end; here each of these is an error.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from kvcodec.errors import CorruptDataError

MAX_INT_DIGITS = 20  # 64 bits and a sign


def dumps(value: Any) -> bytes:
    """UTF-8, sorted keys, no spaces; ValueError for NaN, infinity and lone surrogates."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def loads(data: bytes) -> Any:
    """Value of a JSON text.

    Raises:
        CorruptDataError: not JSON, not UTF-8, a key twice in one object, a number that is not
            finite or has over 20 digits, a lone surrogate, or nesting past the parser's depth.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_short,
        )
        dumps(value)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"JSON: {error}") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i]))
        raise ValueError(f"key {twice!r} stands twice in one object")
    return fields


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:MAX_INT_DIGITS]} is not finite")
    return value


def _short(text: str) -> int:
    if len(text) > MAX_INT_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, at most {MAX_INT_DIGITS} fit")
    return int(text)
