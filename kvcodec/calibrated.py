"""Codecs that code with calibrated tables: how they name them, hold them and ask for them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.errors import InvalidInputError
from kvcodec.profile import Kind, Profile
from kvcodec.tables import Tables, check_hash

K = TypeVar("K", bound="Calibrated")


@dataclass(frozen=True, slots=True)
class Calibrated(Codec):
    """A codec that codes with tables of a profile, for some or all values of its parameters.

    tables: hash of the tables, "" while unbound; a parameter, so that frames and plans name them.
    bound: the tables; no parameter. Equal hashes make equal codecs, whether they hold them or not.
    """

    tables: str = field(default="", kw_only=True)
    bound: Tables | None = field(
        default=None, kw_only=True, compare=False, repr=False, metadata={"parameter": False}
    )

    def __post_init__(self) -> None:
        if not self.tables:
            return
        check_hash(self.tables, f"{self.name}: tables")
        if not self.needs_profile:
            raise InvalidInputError(
                f"{self.name}: tables={self.tables}, but these parameters use no profile; "
                "leave it out"
            )
        if self.bound is not None and self.bound.hash != self.tables:
            raise InvalidInputError(
                f"{self.name}: got the tables {self.bound.hash}, wanted {self.tables}; "
                "bind the profile that the rows were written with"
            )

    @abstractmethod
    def table_names(self) -> tuple[str, ...]:
        """Tables of a plane that these parameters use; none where no profile is needed."""

    @property
    def needs_profile(self) -> bool:
        """Whether these parameters use tables."""
        return bool(self.table_names())

    def bind(self: K, profile: Profile, layer: int, kind: Kind) -> K:
        """Copy that holds its tables of one plane of the profile.

        Raises:
            InvalidInputError: the profile has no such plane or table, or the codec names others.
        """
        return self.hold(profile.plane(layer, kind)) if self.needs_profile else self

    def hold(self: K, plane: Tables) -> K:
        """Copy that holds its tables out of a plane's; those it names already, if it names any."""
        chosen = plane.select(self.table_names())
        return replace(self, tables=self.tables or chosen.hash, bound=chosen)

    def require(self, spec: BlockSpec) -> None:
        """Raise unless `supports(spec)`, and unless the tables are there where they are needed."""
        Codec.require(self, spec)
        if self.needs_profile:
            self.held()

    def held(self) -> Tables:
        """The tables; InvalidInputError while the codec does not hold them."""
        if self.bound is None:
            wanted = f"the tables {self.tables}" if self.tables else "tables of a profile"
            raise InvalidInputError(
                f"{self.name}: {self} needs {wanted} and holds none; use codec.bind(profile, "
                "layer, kind), Plan.bind(profile), or loads(data, profiles=[profile])"
            )
        return self.bound

    def misfit(self, spec: BlockSpec) -> str | None:
        """None, or why the bound tables do not fit blocks of this spec; for `supports`."""
        if self.bound is None:
            return None
        of, got = self.bound.geometry, (spec.format.name, spec.num_kv_heads, spec.head_dim)
        if of == got:
            return None
        return "its tables are of {} planes with {} heads of {}, ".format(
            *of
        ) + "the blocks are {} with {} of {}".format(*got)
