"""Integer tables of one plane: what they may hold, and the hash that names them."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcodec.bits import DTYPES, FORMATS, FloatFormat
from kvcodec.errors import InvalidInputError

Array = npt.NDArray[Any]

TOTAL = 4096  # of the frequencies of a table, see formats/rans.md
MAX_CLASSES = 64
DEAD = 255  # class of a channel that is zero in every token
WINDOW = 24  # exponents about a channel's centre that have a symbol; the escape comes after them
PREVIOUS = 15  # what the exponent before can be to a table: 13 steps, an escape, nothing
HISTORIES = 7  # the signs before: nothing, one, or two of them
BUCKETS = 5  # magnitudes that a table of signs tells apart
_DOMAIN = b"kvcodec tables 1\n"
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a table is: type, axes and values.

    axes: sizes; "heads" and "head_dim" are the plane's, "classes" and "sign_classes" are free but
        the same in all its tables.
    sound: whether values are possible, given the element type and all sizes; `wanted` says it in
        words.
    """

    dtype: str
    axes: tuple[int | str, ...]
    wanted: str
    sound: Callable[[Array, FloatFormat, Mapping[str, int]], bool]


def _below(limit: str) -> Callable[[Array, FloatFormat, Mapping[str, int]], bool]:
    return lambda x, _, sizes: bool((x < sizes[limit]).all())


def _frequencies(x: Array, symbols: int) -> bool:
    """Whether the first `symbols` of a table are 1 or more and are all there are."""
    total = x.sum(-1, dtype=np.int64)
    return (
        bool((x[..., :symbols] > 0).all() and (total == TOTAL).all()) and not x[..., symbols:].any()
    )


CHANNELS = ("heads", "head_dim")
FREQUENCIES = "frequencies of 1 or more for every possible symbol that sum to 4096"
RULES: dict[str, Rule] = {
    "mean": Rule(
        "<u2", CHANNELS, "finite bf16 patterns", lambda x, _, __: bool(((x >> 7) & 255 < 255).all())
    ),
    "centre": Rule(
        "<u1", CHANNELS, "exponents", lambda x, f, _: bool((x >> f.exponent_bits == 0).all())
    ),
    "class": Rule(
        "<u1",
        CHANNELS,
        f"numbers below the number of classes, or {DEAD}",
        lambda x, _, sizes: bool(((x < sizes["classes"]) | (x == DEAD)).all()),
    ),
    "exponents": Rule(
        "<u2",
        ("classes", PREVIOUS, WINDOW + 1),
        FREQUENCIES,
        lambda x, _, __: _frequencies(x, WINDOW + 1),
    ),
    "mantissas": Rule(
        "<u2",
        ("classes", WINDOW + 1, 8),
        FREQUENCIES,
        lambda x, f, _: _frequencies(x, 1 << min(f.mantissa_bits, 3)),
    ),
    "flip": Rule("<u1", CHANNELS, "0 or 1", lambda x, _, __: bool((x < 2).all())),
    "sign_class": Rule("<u1", CHANNELS, "numbers below sign_classes", _below("sign_classes")),
    "signs": Rule(
        "<u2",
        ("sign_classes", HISTORIES, BUCKETS),
        "frequencies from 1 to 4095",
        lambda x, _, __: bool(((x > 0) & (x < TOTAL)).all()),
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Tables of one plane, or some of them, by name; read-only.

    geometry: encoding of the elements, heads, head_dim.
    hash: SHA-256 over geometry and tables, in hex; formats/profile.md gives the bytes.
    profile: hash of the whole profile they came from, "" if from none.
    """

    geometry: tuple[str, int, int]
    arrays: Mapping[str, Array]
    profile: str = ""
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        encoding, heads, head_dim = self.geometry
        if encoding not in DTYPES or min(heads, head_dim) < 1 or heads * head_dim >= 1 << 24:
            raise InvalidInputError(
                f"geometry is {self.geometry}, wanted an encoding and heads and head_dim of 1 or "
                "more that multiply to less than 2^24"
            )
        sizes = {"heads": heads, "head_dim": head_dim}
        sizes |= {axis: self._free(axis) for axis in ("classes", "sign_classes")}
        kept: dict[str, Array] = {}
        for name, array in sorted(self.arrays.items()):
            rule = RULES.get(name)
            if rule is None:
                raise InvalidInputError(f"table {name!r} is unknown, wanted {', '.join(RULES)}")
            shape = tuple(sizes[a] if isinstance(a, str) else a for a in rule.axes)
            dtype = np.dtype(rule.dtype)
            if array.dtype != dtype or array.shape != shape:
                raise InvalidInputError(
                    f"table {name!r} is {array.dtype} {array.shape}, wanted {dtype} {shape}"
                )
            if not rule.sound(array, FORMATS[DTYPES[encoding]], sizes):
                raise InvalidInputError(f"table {name!r} holds other values than {rule.wanted}")
            kept[name] = np.array(array, dtype, order="C")
            kept[name].setflags(write=False)
        object.__setattr__(self, "arrays", kept)
        object.__setattr__(self, "hash", self._digest())

    def _free(self, axis: str) -> int:
        """Length of a free axis in the first table that has it; the largest where none does."""
        for name, array in sorted(self.arrays.items()):
            if name in RULES and RULES[name].axes[0] == axis and array.ndim:
                if not 1 <= len(array) <= MAX_CLASSES:
                    raise InvalidInputError(
                        f"table {name!r} has {len(array)} {axis}, wanted 1 to {MAX_CLASSES}"
                    )
                return len(array)
        return MAX_CLASSES

    def _digest(self) -> str:
        digest = hashlib.sha256(_DOMAIN)
        for text in map(str, self.geometry):
            digest.update(_framed(text.encode()))
        for name, array in self.arrays.items():
            shape = ",".join(map(str, array.shape))
            for part in (name.encode(), array.dtype.str[1:].encode(), shape.encode()):
                digest.update(_framed(part))
            digest.update(_framed(array.tobytes()))
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for array in self.arrays.values())

    def select(self, names: tuple[str, ...]) -> Tables:
        """Only these tables, with a hash of their own, so that others may come and go."""
        missing = [name for name in names if name not in self.arrays]
        if missing:
            raise InvalidInputError(
                f"tables {', '.join(missing)} are missing, the plane has {', '.join(self.arrays)}; "
                "calibrate again with this version"
            )
        return replace(self, arrays={name: self.arrays[name] for name in names})


def check_hash(text: str, what: str) -> None:
    """InvalidInputError unless `text` is a hash of tables."""
    if not _HASH.fullmatch(text):
        raise InvalidInputError(f"{what} is {text!r}, wanted 64 hexadecimal digits")


def _framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data
