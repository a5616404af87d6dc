"""What a cache is, so that bytes of one cache are never read as another."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvcodec import strict_json
from kvcodec.bits import DTYPES
from kvcodec.block import BlockSpec
from kvcodec.calibrated import Calibrated
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, IdentityError, InvalidInputError

_NUMBERS = (
    "layer", "head_start", "head_stop", "num_heads", "tp_rank", "tp_size", "pp_rank", "pp_size",
    "rotation_version",
)  # fmt: skip
_LOWER_CASE = ("weight_format", "layout", "rotation")  # names we or the engine choose
_DOMAIN = b"kvcodec identity 1\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """Fields that tell one cache from another; None leaves a field unspecified.

    An empty string is a statement and is compared: lora="" is the base model, lora=None says
    nothing about adapters.

    Args:
        tenant, salt: whose cache; never shared across either.
        model, revision, weight_format: which weights made the values.
        rope_scaling: the model's setting; a mapping or JSON text is put in canonical form.
        layer, kind: place in the model; kind is "key" or "value".
        block_key: the engine's key of the block, as text; echoed in the frame, compared on load.
        head_start, head_stop, num_heads: heads [start, stop) of all the layer's KV heads.
        tp_rank, tp_size, pp_rank, pp_size: place in the parallel group.
        layout: name of the cache's layout, or its axis string.
        dtype: resolved encoding ("bf16", "e4m3fn", ...); "auto" is refused.
        rotation, rotation_version: rotation applied before storing.
        profile_hash, lora: calibration and adapter in force; `dumps` fills in the hash of the
            profile that the codecs are bound to.
        exact: whether every block comes back bit for bit; `dumps` sets it.
    """

    tenant: str | None = None
    salt: str | None = None
    model: str | None = None
    revision: str | None = None
    weight_format: str | None = None
    rope_scaling: str | Mapping[str, Any] | None = None
    layer: int | None = None
    kind: str | None = None
    block_key: str | None = None
    head_start: int | None = None
    head_stop: int | None = None
    num_heads: int | None = None
    tp_rank: int | None = None
    tp_size: int | None = None
    pp_rank: int | None = None
    pp_size: int | None = None
    layout: str | None = None
    dtype: str | None = None
    rotation: str | None = None
    rotation_version: int | None = None
    profile_hash: str | None = None
    lora: str | None = None
    exact: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rope_scaling", _canonical(self.rope_scaling))
        for name, value in self.to_json().items():
            _check_field(name, value)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InvalidInputError(
                f"identity: dtype is {self.dtype!r}, wanted a resolved encoding: "
                f"{', '.join(DTYPES)}; see BlockSpec.format.name"
            )
        if self.kind not in (None, "key", "value"):
            raise InvalidInputError(f"identity: kind is {self.kind!r}, wanted 'key' or 'value'")
        for rank, size in (("tp_rank", "tp_size"), ("pp_rank", "pp_size")):
            at, of = getattr(self, rank), getattr(self, size)
            if at is not None and of is not None and at >= of:
                raise InvalidInputError(f"identity: {rank} {at} is not below {size} {of}")
        if self.head_start is not None or self.head_stop is not None:
            start, stop, total = self.head_start, self.head_stop, self.num_heads
            inside = start is not None and stop is not None and start < stop
            if not inside or (total is not None and stop is not None and stop > total):
                raise InvalidInputError(
                    f"identity: heads [{start}, {stop}) of {total}, wanted start < stop <= total"
                )

    def to_json(self) -> dict[str, Any]:
        """The fields that are given, by name."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Identity:
        """Inverse of `to_json`; raises InvalidInputError on anything else, unknown names too."""
        known = sorted(f.name for f in fields(cls))
        if not isinstance(data, dict) or not set(data) <= set(known):
            raise InvalidInputError(f"identity: got {data!r}, wanted fields of {', '.join(known)}")
        if None in data.values() or not isinstance(data.get("rope_scaling", ""), str):
            raise InvalidInputError(f"identity: a null, or rope_scaling is not text, in {data!r}")
        return cls(**data)

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the given fields; the key under which a store keeps the bytes.

        Every field enters as name, type and value, each with its length before it, so no two
        identities share the hashed bytes; formats/frame.md gives them.
        """
        digest = hashlib.sha256(_DOMAIN)
        for name, value in sorted(self.to_json().items()):
            for part in (name, type(value).__name__, str(value)):  # str, int or bool
                data = part.encode("utf-8")
                digest.update(struct.pack("<I", len(data)) + data)
        return digest.hexdigest()

    def require(self, expected: Identity, *, allow_lossy: bool = False) -> None:
        """Raise IdentityError unless every field that `expected` gives is the same here."""
        wrong = []
        for name, wanted in expected.to_json().items():
            got = getattr(self, name)
            lossy = name == "exact" and wanted is True and got is False
            if got != wanted and not (lossy and allow_lossy):
                shown = "unspecified" if got is None else repr(got)
                hint = " (the blocks are lossy; allow_lossy=True accepts them)" if lossy else ""
                wrong.append(f"{name} is {shown}, wanted {wanted!r}{hint}")
        if wrong:
            raise IdentityError("frame of another cache: " + "; ".join(wrong))

    def stamped(self, codecs: Sequence[Codec], specs: Sequence[BlockSpec]) -> Identity:
        """Copy with `exact`, and the one dtype and profile if there is one, as the content has.

        Raises:
            InvalidInputError: a field that is given contradicts the content.
        """
        exact = all(codec.lossless for codec in codecs)
        if self.exact not in (None, exact):
            kinds = ", ".join(map(str, codecs)) or "no codec"
            raise InvalidInputError(f"identity: exact is {self.exact}, the codecs are {kinds}")
        dtypes = {spec.format.name for spec in specs}
        if self.dtype is not None and not dtypes <= {self.dtype}:
            raise InvalidInputError(f"identity: dtype is {self.dtype}, blocks are {sorted(dtypes)}")
        if self.head_start is not None and self.head_stop is not None:
            heads = self.head_stop - self.head_start
            if any(spec.num_kv_heads != heads for spec in specs):
                counts = sorted({spec.num_kv_heads for spec in specs})
                raise InvalidInputError(f"identity: {heads} heads, the blocks have {counts}")
        dtype = next(iter(dtypes)) if len(dtypes) == 1 else self.dtype
        profiles = {c.bound.profile for c in codecs if isinstance(c, Calibrated) and c.bound}
        profile_hash = self.profile_hash
        if profile_hash is None and len(profiles) == 1:
            profile_hash = profiles.pop() or None
        return replace(self, exact=exact, dtype=dtype, profile_hash=profile_hash)


def _canonical(rope_scaling: Any) -> str | None:
    """One text for equal settings: sorted keys, and 4.0 written as 4."""
    try:
        if isinstance(rope_scaling, str) and rope_scaling.startswith("{"):
            rope_scaling = strict_json.loads(rope_scaling.encode("utf-8"))
        if isinstance(rope_scaling, Mapping):
            return strict_json.dumps(_integral(rope_scaling)).decode("utf-8")
    except (TypeError, ValueError, RecursionError, CorruptDataError) as error:
        raise InvalidInputError(f"identity: rope_scaling: {error}") from error
    return rope_scaling


def _integral(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_field(name: str, value: Any) -> None:
    # exact types: a subclass (an enum, a numpy scalar) may print as something else
    if name == "exact":
        if type(value) is not bool:
            raise InvalidInputError(f"identity: exact is {value!r}, wanted a bool")
    elif name in _NUMBERS:
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise InvalidInputError(f"identity: {name} is {value!r}, wanted an int in [0, 2^31)")
    elif type(value) is not str:
        raise InvalidInputError(f"identity: {name} is {value!r}, wanted a str")
    elif name in _LOWER_CASE and value != (plain := " ".join(value.lower().split())):
        raise InvalidInputError(f"identity: {name} is {value!r}, its canonical form is {plain!r}")
    elif any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidInputError(f"identity: {name} is {value!r}, which is not Unicode text")
