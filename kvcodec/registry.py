"""Which codecs exist, their spec strings, and which implementation runs where.

A codec is one file in `kvcodec/codecs` whose class carries `@register`; nothing else is edited.
Another package's codec is registered by importing its module, or through the entry-point group
`kvcodec.codecs`; its class attribute `kernels` names the package of its kernels.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch

from kvcodec.errors import ImplementationUnavailableError, InvalidInputError, UnknownCodecError

if TYPE_CHECKING:
    from kvcodec.block import BlockSpec, EncodedBlocks
    from kvcodec.codec import Codec
    from kvcodec.quantizer import Quantizer

IMPLEMENTATIONS = ("reference", "vector", "native", "triton")
_HOST_ORDER = ("native", "vector", "reference")
_CODECS: dict[tuple[str, int], type[Codec]] = {}
C = TypeVar("C", bound="Codec")


class Kernel(Protocol):
    """One implementation of one codec: the object `KERNEL` of a module `<name>_<impl>`."""

    def compress(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_valid: torch.Tensor | None,
        out: EncodedBlocks,
        *,
        positions: torch.Tensor | None,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> None:
        """See `Codec.compress`."""  # fmt: skip

    def decompress(
        self,
        encoded: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        *,
        positions: torch.Tensor | None,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> None:
        """See `Codec.decompress`."""  # fmt: skip

    def workspace_nbytes(self, codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
        """Exact scratch bytes of either call."""

    def unavailable(self, device: torch.device) -> str | None:
        """None, or why this implementation cannot run on tensors of `device`."""


class Coder(Protocol):
    """One implementation of the stack (kvcodec.stack): `CODER` of `kvcodec.kernels._stack_<impl>`.

    It turns plain rows of any quantizer into coded ones and back, on one device.
    """

    def encode_rows(
        self,
        plain: EncodedBlocks,
        out: EncodedBlocks,
        *,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> None:
        """See `kvcodec.stack.encode_rows`."""  # fmt: skip

    def decode_rows(
        self,
        encoded: EncodedBlocks,
        plain: EncodedBlocks,
        *,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> None:
        """See `kvcodec.stack.decode_rows`."""  # fmt: skip

    def workspace_nbytes(self, codec: Quantizer, spec: BlockSpec, num_blocks: int) -> int:
        """Exact scratch bytes of either call; codec is plain."""

    def unavailable(self, device: torch.device) -> str | None:
        """None, or why this implementation cannot run on tensors of `device`."""


def register(cls: type[C]) -> type[C]:
    """Class decorator: make a codec known under its `name` and `version`."""
    key = (cls.name, cls.version)
    known = _CODECS.setdefault(key, cls)
    if known is not cls and known.__qualname__ != cls.__qualname__:
        raise InvalidInputError(f"codec {key[0]!r} version {key[1]} is registered twice")
    _CODECS[key] = cls
    return cls


@functools.cache
def _load_codecs() -> None:
    import kvcodec.codecs as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in importlib.metadata.entry_points(group="kvcodec.codecs"):
        entry.load()


def codec_names() -> list[str]:
    """Names of all registered codecs, sorted."""
    _load_codecs()
    return sorted({name for name, _ in _CODECS})


def codec_class(name: str, version: int | None = None) -> type[Codec]:
    """Class of a codec; its newest version unless one is named."""
    _load_codecs()
    versions = {v: cls for (n, v), cls in _CODECS.items() if n == name}
    if not versions:
        raise UnknownCodecError(f"unknown codec {name!r}; known: {', '.join(codec_names())}")
    if version is not None and version not in versions:
        have = ", ".join(map(str, sorted(versions)))
        raise UnknownCodecError(f"codec {name!r} has no version {version!r}; known: {have}")
    return versions[max(versions) if version is None else version]


def _parse_value(text: str, hint: Any, what: str) -> Any:
    """`text` as the type of a dataclass field: str, int, float, bool, a tuple a/b/c, a union."""
    union = get_origin(hint) in (Union, UnionType)
    for option in get_args(hint) if union else (hint,):
        try:
            if get_origin(option) is tuple:
                return tuple(get_args(option)[0](item) for item in text.split("/") if item)
            if option is bool:
                return {"true": True, "false": False}[text.lower()]
            if option is not type(None):
                return option(text)
        except (ValueError, KeyError):
            continue
    raise UnknownCodecError(f"{what}: {text!r} is not a {hint}")


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a JSON value fits a dataclass field; lists stand for tuples, integers for floats."""
    if get_origin(hint) in (Union, UnionType):
        return any(_has_type(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return isinstance(value, list | tuple) and all(_has_type(v, item) for v in value)
    return type(value) in ((float, int) if hint is float else (hint,))  # a bool is no int


@functools.cache
def _hints(cls: type[Codec]) -> dict[str, Any]:
    """Types of a codec's fields; resolving them takes longer than the rest of a frame's header."""
    return get_type_hints(cls)


def get_codec(spec: str | Codec) -> Codec:
    """Codec from a spec string: `split`, `fp8:dtype=e5m2,scale=head`, `split@1`, or a preset.

    Raises:
        UnknownCodecError: the name, version or a parameter does not exist.
    """
    from kvcodec.codec import Codec, parameters

    if isinstance(spec, Codec):
        return spec
    if not isinstance(spec, str):
        raise UnknownCodecError(f"codec {spec!r}: wanted a spec string, a preset or a Codec")
    from kvcodec.plan import PRESETS, Plan

    if spec in PRESETS:
        return Plan.parse(spec).single_codec()
    head, _, tail = spec.partition(":")
    name, _, version = head.partition("@")
    if version and not version.isdigit():
        raise UnknownCodecError(f"codec {spec!r}: version {version!r} is not a number")
    cls = codec_class(name, int(version) if version else None)
    hints = _hints(cls)
    known = [f.name for f in parameters(cls)]
    params: dict[str, Any] = {}
    for item in filter(None, tail.split(",")):
        key, eq, text = item.partition("=")
        if key not in known or not eq or key in params:
            raise UnknownCodecError(
                f"codec {spec!r}: {item!r} is not a new key=value with key one of: "
                f"{', '.join(known) or 'no parameters'}"
            )
        params[key] = _parse_value(text, hints[key], f"codec {spec!r}: {key}")
    return cls(**params)


def format_spec(codec: Codec) -> str:
    """Shortest spec string of a codec; `get_codec` is the inverse."""
    from kvcodec.codec import parameters

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return "/".join(v if isinstance(v, str) else repr(v) for v in value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    changed = [
        f"{f.name}={text(getattr(codec, f.name))}"
        for f in parameters(codec)
        if getattr(codec, f.name) != f.default
    ]
    return codec.name + (":" + ",".join(changed) if changed else "")


def codec_from_config(config: dict[str, Any]) -> Codec:
    """Codec from `Codec.config()`. Only names in the registry resolve; nothing is imported.

    Raises:
        UnknownCodecError: the config is malformed or names something that does not exist here.
    """
    from kvcodec.codec import parameters

    if not isinstance(config, dict) or set(config) != {"name", "version", "params"}:
        raise UnknownCodecError(f"codec config is {config!r}, wanted name, version and params")
    version, params = config["version"], config["params"]
    if isinstance(version, bool) or not isinstance(version, int) or not isinstance(params, dict):
        raise UnknownCodecError(f"codec config {config!r}: version or params has the wrong type")
    cls = codec_class(config["name"], version)
    known = {f.name for f in parameters(cls)}
    if not known - set(cls.later) <= set(params) <= known:
        raise UnknownCodecError(
            f"codec {cls.name!r}: parameters {sorted(params)}, wanted {sorted(known)}"
        )
    for key, hint in _hints(cls).items():
        if key in params and not _has_type(params[key], hint):
            raise UnknownCodecError(f"codec {cls.name!r}: {key}={params[key]!r} is not a {hint}")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in params.items()})
    except (TypeError, OverflowError, InvalidInputError) as error:
        raise UnknownCodecError(f"codec {cls.name!r}: {error}") from error


@functools.cache
def _load_module(package: str, name: str, impl: str) -> Kernel | str:
    module = f"{package}.{name}_{impl}"
    if importlib.util.find_spec(module) is None:
        return f"codec {name!r} has no {impl} implementation"
    try:
        kernel: Kernel = importlib.import_module(module).KERNEL
        return kernel
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(package):
            raise
        return f"codec {name!r}: its {impl} implementation needs the package {error.name!r}"


def load_kernel(codec: Codec, impl: str) -> Kernel:
    """The implementation of a codec, whatever device it runs on; raises if it does not exist."""
    if impl not in IMPLEMENTATIONS:
        raise InvalidInputError(
            f"impl is {impl!r}, wanted auto or one of {', '.join(IMPLEMENTATIONS)}"
        )
    if impl == "reference":
        from kvcodec.kernels._dense import reference_kernel

        return reference_kernel(codec)
    kernel = _load_module(codec.kernels, codec.name, impl)
    if isinstance(kernel, str):
        on_gpu = codec.host_tier_only and impl == "triton"
        where = "; it is for the host tier only" if on_gpu else ""
        raise ImplementationUnavailableError(kernel + where)
    reason = codec.lacks(impl)
    if reason is not None:
        raise ImplementationUnavailableError(reason)
    from kvcodec.quantizer import Quantizer

    if isinstance(codec, Quantizer) and codec.stacked:
        from kvcodec.kernels._stack import stacked

        kernel = stacked(kernel, impl)
    from kvcodec.centred import Centred

    if isinstance(codec, Centred) and codec.centred:
        from kvcodec.kernels._centred import CentredKernel, load_shifter

        kernel = CentredKernel(kernel, load_shifter(impl))
    return kernel


def find_coder(impl: str, device: torch.device) -> Coder:
    """The stack's implementation that serves `device`; chosen as `find_kernel` chooses."""
    from kvcodec.kernels._stack import load_coder

    order = _HOST_ORDER if device.type == "cpu" else ("triton",)
    reasons = []
    for name in order if impl == "auto" else (impl,):
        try:
            coder = load_coder(name)
            reason = coder.unavailable(device)
        except ImplementationUnavailableError as error:
            reason = str(error)
        if reason is None:
            return coder
        reasons.append(f"{name}: {reason}")
    raise ImplementationUnavailableError(f"entropy=rans: {'; '.join(reasons)}")


def why_unavailable(codec: Codec, impl: str, device: torch.device) -> str | None:
    """None, or why `impl` of this codec cannot run on tensors of `device`."""
    try:
        return load_kernel(codec, impl).unavailable(device)
    except ImplementationUnavailableError as error:
        return str(error)


def find_kernel(codec: Codec, impl: str, device: torch.device) -> Kernel:
    """Implementation that serves `device`.

    "auto" is triton on a GPU; native, vector, reference in that order on a CPU. A name means that
    implementation or an error: nothing is substituted.
    """
    if impl != "auto":
        kernel = load_kernel(codec, impl)
        reason = kernel.unavailable(device)
        if reason is not None:
            raise ImplementationUnavailableError(f"{codec.name}: impl={impl}: {reason}")
        return kernel
    order = _HOST_ORDER if device.type == "cpu" else ("triton",)
    for name in order:
        if why_unavailable(codec, name, device) is None:
            return load_kernel(codec, name)
    raise ImplementationUnavailableError(
        f"{codec.name}: no implementation for {device.type} tensors "
        f"({why_unavailable(codec, order[0], device)}); impl='vector' goes through the host"
    )
