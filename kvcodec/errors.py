"""Every error the library raises on purpose. Messages say what, got, wanted, and what to do."""


class KVCodecError(Exception):
    """Base of all kvcodec errors; catching it never hides a programming error."""


class UnknownCodecError(KVCodecError):
    """A name or parameter that the registry does not hold."""


class UnsupportedSpecError(KVCodecError):
    """A codec cannot take blocks of this spec; the message is what `Codec.supports` answered."""


class ImplementationUnavailableError(KVCodecError):
    """An implementation was asked for by name and cannot run here."""


class InvalidInputError(KVCodecError, ValueError):
    """A tensor, id or option does not fit the call: shape, dtype, range or device."""


class LayoutError(InvalidInputError):
    """An engine tensor cannot be seen as `[num_blocks, block_size, num_kv_heads, head_dim]`."""


class CorruptDataError(KVCodecError):
    """A row or a frame is damaged: sizes do not tile, a checksum or an invariant fails."""


class IdentityError(KVCodecError):
    """A frame is whole but holds another cache than the one asked for."""


class MissingExtraError(KVCodecError, ImportError):
    """An optional package is missing; the message names what to install."""
