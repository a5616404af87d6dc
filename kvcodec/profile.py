"""A profile: calibrated tables of a model, for the keys and values of each of its layers.

File and hashes: formats/profile.md.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from kvcodec import strict_json
from kvcodec.errors import CorruptDataError, InvalidInputError, KVCodecError, UnknownCodecError
from kvcodec.eval.output import write_file
from kvcodec.tables import RULES, Array, Tables

Kind = Literal["key", "value"]
Resolver = Callable[[str], Tables | None]

FORMAT = 1
MAX_NBYTES = 1 << 30
MAX_PLANES = 4096
_KEY = "kvcodec"  # the metadata entry that holds the JSON
_FIELDS = {"format", "hash", "planes", "about"}
_DOMAIN = "kvcodec profile 1\n"


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Tables of a model's planes.

    planes: tables by (layer, "key" or "value").
    about: where they come from: model, revision, texts, tokens, versions; JSON, not hashed.
    hash: SHA-256 over the planes' places and hashes, in hex.
    """

    planes: Mapping[tuple[int, Kind], Tables]
    about: Mapping[str, Any] = field(default_factory=dict)
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        for place in self.planes:
            if not 0 <= place[0] < 1 << 31 or place[1] not in ("key", "value"):
                raise InvalidInputError(f"profile: plane {place} is no (layer, 'key' or 'value')")
        ordered = dict(sorted(self.planes.items()))
        lines = [f"{layer} {kind} {tables.hash}\n" for (layer, kind), tables in ordered.items()]
        digest = hashlib.sha256((_DOMAIN + "".join(lines)).encode()).hexdigest()
        object.__setattr__(self, "hash", digest)
        owned = {place: replace(tables, profile=digest) for place, tables in ordered.items()}
        object.__setattr__(self, "planes", owned)

    def plane(self, layer: int, kind: Kind) -> Tables:
        """Tables of one layer's keys or values; InvalidInputError where the profile has none."""
        tables = self.planes.get((layer, kind))
        if tables is None:
            layers = sorted({at for at, of in self.planes if of == kind})
            raise InvalidInputError(
                f"profile {self.hash[:12]}: no {kind} tables of layer {layer!r}, wanted one of "
                f"{layers}"
            )
        return tables

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file in one step: whole, or not at all.

        Raises:
            InvalidInputError: it cannot be written, or `about` is not JSON.
        """
        write_file(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Content of the file; InvalidInputError if `about` is not JSON."""
        header = {
            "format": FORMAT,
            "hash": self.hash,
            "planes": [[*place, *tables.geometry] for place, tables in self.planes.items()],
            "about": dict(self.about),
        }
        try:
            text = strict_json.dumps(header).decode()
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"profile: about is not JSON: {error}") from error
        arrays = {
            f"{layer}.{kind}.{name}": array
            for (layer, kind), tables in self.planes.items()
            for name, array in tables.arrays.items()
        }
        return _safetensors(arrays, {_KEY: text})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read and check a file; nothing in it is trusted before it was looked at.

        Raises:
            InvalidInputError: there is no such file.
            CorruptDataError: it is no profile, or damaged; names the file, field, got and wanted.
        """
        where = f"profile {os.fspath(path)!r}"
        try:
            if (nbytes := os.stat(path).st_size) > MAX_NBYTES:
                raise CorruptDataError(f"{where}: {nbytes} bytes, at most {MAX_NBYTES}")
            with safe_open(os.fspath(path), "numpy") as file:
                return _read(file)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInputError(f"{where} cannot be read: {reason}") from error
        except SafetensorError as error:
            raise CorruptDataError(f"{where}: not safetensors: {error}") from error
        except KVCodecError as error:
            raise CorruptDataError(f"{where}: {error}") from error


def _safetensors(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file, the same bytes under every version of the library; wide types first."""
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, array in ordered:
        ends = [at, at := at + array.nbytes]
        dtype = _TENSOR_TYPES[array.dtype.newbyteorder("<").str.replace("|", "<")]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": ends}
    text = strict_json.dumps(header)
    text += b" " * (-len(text) % 8)
    data = [array.astype(array.dtype.newbyteorder("<")).tobytes() for _, array in ordered]
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _read(file: Any) -> Profile:
    metadata = file.metadata() or {}
    if set(metadata) != {_KEY}:
        raise CorruptDataError(f"metadata has the entries {sorted(metadata)}, wanted {_KEY}")
    header = strict_json.loads(metadata[_KEY].encode())
    if not isinstance(header, dict) or set(header) != _FIELDS:
        got = sorted(header) if isinstance(header, dict) else header
        raise CorruptDataError(f"header has {got}, wanted {sorted(_FIELDS)}")
    if header["format"] != FORMAT:
        raise CorruptDataError(f"format is {header['format']!r}, this library reads {FORMAT}")
    if not isinstance(header["about"], dict):
        raise CorruptDataError(f"about is {header['about']!r}, wanted an object")
    geometry = _geometries(header["planes"])
    arrays: dict[tuple[int, Kind], dict[str, Array]] = {place: {} for place in geometry}
    for key in file.keys():  # noqa: SIM118  # the reader is no mapping
        layer, _, rest = key.partition(".")
        kind, _, name = rest.partition(".")
        place = (int(layer), kind) if layer.isdecimal() and len(layer) < 11 else None
        if place not in arrays or name not in RULES:
            raise CorruptDataError(f"tensor {key!r} belongs to no plane of the header")
        got, wanted = file.get_slice(key).get_dtype(), _TENSOR_TYPES[RULES[name].dtype]
        if got != wanted:
            raise CorruptDataError(f"tensor {key!r} is {got}, wanted {wanted}")
        arrays[place][name] = file.get_tensor(key)
    planes = {}
    for place, of in geometry.items():
        try:
            planes[place] = Tables(of, arrays[place])
        except InvalidInputError as error:
            raise CorruptDataError(f"layer {place[0]} {place[1]}: {error}") from error
    profile = Profile(planes, header["about"])
    if profile.hash != header["hash"]:
        raise CorruptDataError(f"hash is {profile.hash}, wanted {header['hash']}")
    return profile


_TENSOR_TYPES = {"<u1": "U8", "<u2": "U16"}


def _geometries(entries: Any) -> dict[tuple[int, Kind], tuple[str, int, int]]:
    """Geometry by place, from the header's list of [layer, kind, encoding, heads, head_dim]."""
    if not isinstance(entries, list) or len(entries) > MAX_PLANES:
        raise CorruptDataError(
            f"planes are {str(entries)[:80]}, wanted a list of {MAX_PLANES} at most"
        )
    found: dict[tuple[int, Kind], tuple[str, int, int]] = {}
    for entry in entries:
        types = [type(value) for value in entry] if isinstance(entry, list) else []
        if types != [int, str, str, int, int] or (entry[0], entry[1]) in found:
            raise CorruptDataError(
                f"plane is {entry!r}, wanted a new [layer, kind, encoding, heads, head_dim]"
            )
        found[entry[0], entry[1]] = (entry[2], entry[3], entry[4])
    return found


def find_tables(
    wanted: str, names: tuple[str, ...], profiles: Sequence[Profile] | Resolver
) -> Tables:
    """The tables of that hash, out of profiles or from a function of the hash.

    Raises:
        UnknownCodecError: none of the profiles has them; names the hash.
        InvalidInputError: the function answered with other tables.
    """
    if callable(profiles):
        plane = profiles(wanted)
        found = None if plane is None else plane.select(names)
        if found is not None and found.hash != wanted:
            raise InvalidInputError(f"resolver: got the tables {found.hash}, wanted {wanted}")
    else:
        planes = (t for profile in profiles for t in profile.planes.values())
        chosen = (t.select(names) for t in planes if set(names) <= set(t.arrays))
        found = next((t for t in chosen if t.hash == wanted), None)
    if found is None:
        have = [] if callable(profiles) else [profile.hash[:12] for profile in profiles]
        given = f"; the profiles {', '.join(have)} have others" if have else ""
        raise UnknownCodecError(
            f"the tables {wanted} are needed and not here{given}; "
            "pass the profile the rows were written with: loads(data, profiles=[profile])"
        )
    return found
