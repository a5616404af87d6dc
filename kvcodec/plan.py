"""Which codec serves which block: `(layer, "key" | "value", block_index) -> Codec`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from kvcodec.codec import Codec, Kind
from kvcodec.errors import InvalidInputError
from kvcodec.profile import Profile
from kvcodec.registry import get_codec

KINDS: tuple[Kind, Kind] = ("key", "value")
EXACT = "split"  # what keeps a sequence's first blocks exact

PRESETS: dict[str, str] = {
    "lossless": "split:model=centred",
    "fast": "fp8:scale=head",
    "balanced": "key=split,value=fp8",
    "small": "fp8:scale=block,first_blocks=1",
    "kivi-4": "key=int4:axis=channel,value=int4",
    "kivi-2": "key=int4:bits=2,axis=channel,value=int4:bits=2",
    "turboangle-k128v64": "key=turboangle,value=turboangle:n=64",
    "turboangle-k8v4log": "key=turboangle,value=turboangle:n=64,norm_bits=4,norm=log",
    "turboangle-e4": (  # finer angles in the first four layers
        '{"key": "turboangle", "value": "turboangle:n=64",'
        ' "layers": {"0-3": {"key": "turboangle:n=256", "value": "turboangle:n=128"}}}'
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Codecs of keys and values, exceptions by layer, and exact first blocks.

    first_blocks: so many blocks at the start of a sequence are kept lossless, in every layer: the
        first tokens are attended by everyone and carry most of a lossy codec's harm.
    layers: (layer, kind, codec) exceptions, at most one for each (layer, kind).
    """

    key: Codec
    value: Codec
    first_blocks: int = 0
    layers: tuple[tuple[int, Kind, Codec], ...] = ()

    def __post_init__(self) -> None:
        if type(self.first_blocks) is not int or self.first_blocks < 0:
            raise InvalidInputError(
                f"plan: first_blocks is {self.first_blocks!r}, wanted 0 or more"
            )
        places = [(layer, kind) for layer, kind, _ in self.layers]
        if len(set(places)) != len(places):
            raise InvalidInputError("plan: a layer is named twice for the same kind")

    def codec(self, layer: int, kind: Kind, block_index: int) -> Codec:
        """Codec of block `block_index` of a sequence, in one layer's keys or values."""
        if kind not in KINDS:
            raise InvalidInputError(f"plan: kind is {kind!r}, wanted 'key' or 'value'")
        chosen = self.key if kind == "key" else self.value
        for at, of, codec in self.layers:
            if (at, of) == (layer, kind):
                chosen = codec
        if block_index < self.first_blocks and not chosen.lossless:
            return get_codec(EXACT)
        return chosen

    def codecs(self) -> list[Codec]:
        """Every codec that the plan may choose, each once."""
        named = [self.key, self.value, *(codec for _, _, codec in self.layers)]
        if self.first_blocks and not all(codec.lossless for codec in named):
            named.append(get_codec(EXACT))
        return list(dict.fromkeys(named))

    @property
    def lossless(self) -> bool:
        """Whether every block comes back bit for bit."""
        return all(codec.lossless for codec in self.codecs())

    def bind(self, profile: Profile) -> Plan:
        """Plan whose codecs hold the profile's tables; every layer then has a rule of its own.

        Layers that the profile lacks keep codecs that hold none, and refuse to work.

        Raises:
            InvalidInputError: a rule names a layer that the profile lacks, or other tables.
        """
        rules: dict[tuple[int, Kind], Codec] = {
            place: self.key if place[1] == "key" else self.value for place in profile.planes
        }
        rules |= {(layer, kind): codec for layer, kind, codec in self.layers}
        named = {(layer, kind) for layer, kind, _ in self.layers}
        bound = tuple(
            (layer, kind, codec.bind(profile, layer, kind))
            for (layer, kind), codec in rules.items()
            if codec.needs_profile or (layer, kind) in named
        )
        return replace(self, layers=bound)

    def single_codec(self) -> Codec:
        """The one codec of a plan that has just one."""
        if self.key != self.value or self.first_blocks or self.layers:
            raise InvalidInputError(
                f"'{self}' is a plan of several codecs; use kvcodec.Plan where a codec is wanted"
            )
        return self.key

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Plan from a preset, a codec spec, `key=SPEC,value=SPEC,first_blocks=N`, or JSON.

        Examples: `lossless`; `fp8:scale=head`; `key=split,value=fp8:dtype=e5m2,first_blocks=1`.
        """
        text = PRESETS.get(text, text)
        if text.lstrip().startswith("{"):
            try:
                return cls.from_json(json.loads(text))
            except json.JSONDecodeError as error:
                raise InvalidInputError(f"plan: not JSON: {error}") from error
        specs: dict[str, str] = {}
        first_blocks: int | None = None
        current = "both"
        for item in text.split(","):
            name, eq, rest = item.partition("=")
            if name == "first_blocks":
                if first_blocks is not None:
                    raise InvalidInputError(f"plan {text!r}: first_blocks is given twice")
                if not rest.isdigit():
                    raise InvalidInputError(f"plan {text!r}: first_blocks={rest!r} is not a number")
                first_blocks = int(rest)
            elif name in KINDS and eq:
                if name in specs or "both" in specs:
                    raise InvalidInputError(f"plan {text!r}: {name} is given twice")
                current, specs[name] = name, rest
            else:
                specs[current] = f"{specs[current]},{item}" if current in specs else item
        if ("both" in specs and len(specs) > 1) or not specs:
            raise InvalidInputError(f"plan {text!r}: wanted one codec, or key=SPEC,value=SPEC")
        exact = specs.get("both", "raw")
        return cls(
            get_codec(specs.get("key", exact)),
            get_codec(specs.get("value", exact)),
            first_blocks or 0,
        )

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Plan from `{"key": SPEC, "value": SPEC, "first_blocks": N, "layers": {"0-3": {...}}}`.

        A layers entry is a SPEC for both kinds, or `{"key": SPEC, "value": SPEC}`.
        """
        known = {"key", "value", "first_blocks", "layers"}
        if not isinstance(data, dict) or not {"key", "value"} <= set(data) <= known:
            raise InvalidInputError(f"plan: got {data!r}, wanted key, value and {sorted(known)}")
        rules: list[tuple[int, Kind, Codec]] = []
        layers = data.get("layers", {})
        if not isinstance(layers, dict):
            raise InvalidInputError(f"plan: layers are {layers!r}, wanted an object")
        for where, entry in layers.items():
            match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", where)
            if match is None or int(match[1]) > int(match[2] or match[1]):
                raise InvalidInputError(f"plan: layers {where!r}, wanted '7' or '0-3'")
            both = {"key": entry, "value": entry}
            named: dict[str, Any] = entry if isinstance(entry, dict) else both
            if not set(named) <= set(KINDS):
                raise InvalidInputError(f"plan: layers {where!r}: {entry!r}, wanted key and value")
            for layer in range(int(match[1]), int(match[2] or match[1]) + 1):
                rules += [(layer, k, get_codec(named[k])) for k in KINDS if k in named]
        return cls(
            get_codec(data["key"]),
            get_codec(data["value"]),
            data.get("first_blocks", 0),
            tuple(rules),
        )

    def to_json(self) -> dict[str, Any]:
        """Inverse of `from_json`."""
        layers: dict[str, dict[str, str]] = {}
        for layer, kind, codec in self.layers:
            layers.setdefault(str(layer), {})[kind] = str(codec)
        return {
            "key": str(self.key),
            "value": str(self.value),
            "first_blocks": self.first_blocks,
            "layers": layers,
        }

    def __str__(self) -> str:
        if self.layers:
            return json.dumps(self.to_json())
        codecs = str(self.key) if self.key == self.value else f"key={self.key},value={self.value}"
        return codecs + (f",first_blocks={self.first_blocks}" if self.first_blocks else "")
