"""Names, spec strings and implementations: what is asked for is what runs, or an error says why."""

import subprocess
import sys
import types
from dataclasses import dataclass

import pytest
import torch

import kvcodec
from kvcodec import codec_from_config, codec_names, get_codec, register, registry
from kvcodec.codecs.raw import Raw
from kvcodec.errors import (
    ImplementationUnavailableError,
    InvalidInputError,
    KVCodecError,
    UnknownCodecError,
)
from kvcodec.kernels._dense import DenseKernel
from kvcodec.registry import codec_class, find_kernel, format_spec, why_unavailable

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def known(monkeypatch):
    """A registry to add to; kernels of the codecs defined here live in the module `spare`."""
    codec_names()
    monkeypatch.setattr(registry, "_CODECS", dict(registry._CODECS))
    spare = types.ModuleType("spare")
    spare.__path__ = []
    monkeypatch.setitem(sys.modules, "spare", spare)
    registry._load_module.cache_clear()
    yield lambda name, module: monkeypatch.setitem(sys.modules, f"spare.{name}", module)
    registry._load_module.cache_clear()


def kernel_module(name, unavailable=None):
    """A module with a KERNEL that works, or says why it does not."""
    module = types.ModuleType(f"spare.{name}")
    module.__spec__ = types.SimpleNamespace(name=module.__name__)

    class Spare(DenseKernel):
        def unavailable(self, device):
            return unavailable

    module.KERNEL = Spare(Raw().encode, Raw().decode)
    return module


@dataclass(frozen=True, slots=True)
class Knobs(Raw):
    """A codec with a parameter of every type a spec string can hold."""

    name = "knobs"
    kernels = "spare"

    bits: int = 4
    step: float = 0.5
    exact: bool = False
    mode: str = "fast"
    steps: tuple[int, ...] = ()
    scales: tuple[float, ...] = (1.0,)
    limit: int | None = None

    def __post_init__(self):
        if self.bits > 8:
            raise InvalidInputError(f"knobs: bits is {self.bits}, wanted at most 8")


def test_the_first_codecs_are_registered():
    assert {"raw", "split", "fp8"} <= set(codec_names())
    assert codec_names() == sorted(codec_names())


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("knobs", {}),
        ("knobs:", {}),
        ("knobs:bits=3", {"bits": 3}),
        ("knobs:step=1e-3,exact=true", {"step": 1e-3, "exact": True}),
        ("knobs:exact=False,mode=slow", {"mode": "slow"}),
        ("knobs:steps=1/2/3,scales=0.5/2.0", {"steps": (1, 2, 3), "scales": (0.5, 2.0)}),
        ("knobs:scales=", {"scales": ()}),
        ("knobs:limit=7", {"limit": 7}),
        ("knobs@1:bits=-2", {"bits": -2}),
    ],
)
def test_spec_strings_hold_parameters_of_every_type(known, text, params):
    register(Knobs)
    codec = get_codec(text)
    assert codec == Knobs(**params)
    assert get_codec(format_spec(codec)) == codec
    assert codec_from_config(codec.config()) == codec


def test_a_codec_passes_through():
    codec = Knobs(bits=2)
    assert get_codec(codec) is codec


def test_the_shortest_spec_string_leaves_out_defaults():
    assert str(Knobs()) == "knobs"
    assert str(Knobs(exact=True, scales=(0.25, 1e-30))) == "knobs:exact=true,scales=0.25/1e-30"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("knob", "unknown codec 'knob'; known: .*knobs"),
        ("knobs@2", "has no version 2; known: 1"),
        ("knobs@x", "version 'x' is not a number"),
        ("knobs:bits", "'bits' is not a new key=value with key one of: bits, step"),
        ("knobs:bit=3", "'bit=3' is not a new key=value"),
        ("knobs:bits=3,bits=4", "'bits=4' is not a new key=value"),
        ("knobs:bits=three", "bits: 'three' is not a"),
        ("knobs:bits=3.5", "bits: '3.5' is not a"),
        ("knobs:exact=yes", "exact: 'yes' is not a"),
        ("knobs:steps=1/x", "steps: '1/x' is not a"),
        ("knobs:limit=none", "limit: 'none' is not a"),
        ("raw:bits=3", "key one of: no parameters"),
        ("knobs:bits=9", "wanted at most 8"),
        ("", "unknown codec ''"),
    ],
)
def test_bad_spec_strings_say_what_is_wrong(known, text, message):
    register(Knobs)
    with pytest.raises(KVCodecError, match=message):
        get_codec(text)


def changed(**changes):
    return {**Knobs().config(), **changes}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "config is None"),
        ({"name": "knobs"}, "wanted name, version and params"),
        (changed(extra=1), "wanted name, version and params"),
        (changed(name="os.system"), "unknown codec 'os.system'"),
        (changed(name=["knobs"]), "unknown codec|wrong type"),
        (changed(version=2), "has no version 2"),
        (changed(version=True), "wrong type"),
        (changed(version="1"), "wrong type"),
        (changed(params=[]), "wrong type"),
        (changed(params={"bits": 4}), "wanted"),
        (changed(params={**Knobs().config()["params"], "bits": 9}), "wanted at most 8"),
        (changed(params={**Knobs().config()["params"], "bits": "4"}), "bits='4' is not a"),
        (changed(params={**Knobs().config()["params"], "bits": True}), "bits=True is not a"),
        (changed(params={**Knobs().config()["params"], "exact": 1}), "exact=1 is not a"),
        (changed(params={**Knobs().config()["params"], "steps": [1.5]}), r"steps=\[1.5\] is not a"),
        (changed(params={**Knobs().config()["params"], "mode": None}), "mode=None is not a"),
    ],
)
def test_configs_from_outside_resolve_only_in_the_registry(known, config, message):
    register(Knobs)
    with pytest.raises(UnknownCodecError, match=message):
        codec_from_config(config)


def test_a_new_version_stands_next_to_the_old(known):
    register(Knobs)

    @register
    @dataclass(frozen=True, slots=True)
    class Knobs2(Raw):
        """The second version."""

        name = "knobs"
        version = 2

    assert codec_class("knobs") is Knobs2
    assert get_codec("knobs@1") == Knobs()
    assert codec_from_config(Knobs().config()) == Knobs()
    assert codec_from_config(Knobs2().config()) == Knobs2()
    with pytest.raises(UnknownCodecError, match="has no version 3; known: 1, 2"):
        codec_class("knobs", 3)


def test_two_codecs_do_not_share_a_name(known):
    @dataclass(frozen=True, slots=True)
    class Other(Raw):
        """Another codec under a taken name."""

        name = "raw"

    with pytest.raises(InvalidInputError, match="'raw' version 1 is registered twice"):
        register(Other)
    assert codec_class("raw") is Raw


def test_auto_takes_native_then_vector_then_the_reference_on_a_cpu(known):
    codec = Knobs()
    assert find_kernel(codec, "auto", CPU).encode == codec.encode
    known("knobs_vector", vector := kernel_module("knobs_vector"))
    registry._load_module.cache_clear()
    assert find_kernel(codec, "auto", CPU) is vector.KERNEL
    known("knobs_native", native := kernel_module("knobs_native"))
    registry._load_module.cache_clear()
    assert find_kernel(codec, "auto", CPU) is native.KERNEL
    known("knobs_native", kernel_module("knobs_native", unavailable="no compiler was here"))
    registry._load_module.cache_clear()
    assert find_kernel(codec, "auto", CPU) is vector.KERNEL
    assert why_unavailable(codec, "native", CPU) == "no compiler was here"


def test_auto_takes_only_triton_on_a_gpu(known):
    known("knobs_vector", kernel_module("knobs_vector"))
    with pytest.raises(ImplementationUnavailableError, match="impl='vector' goes through the host"):
        find_kernel(Knobs(), "auto", GPU)
    known("knobs_triton", triton := kernel_module("knobs_triton"))
    registry._load_module.cache_clear()
    assert find_kernel(Knobs(), "auto", GPU) is triton.KERNEL


def test_a_named_implementation_is_that_one_or_an_error(known):
    known("knobs_vector", vector := kernel_module("knobs_vector"))
    known("knobs_triton", kernel_module("knobs_triton", unavailable="no GPU here"))
    codec = Knobs()
    assert find_kernel(codec, "vector", CPU) is vector.KERNEL
    assert find_kernel(codec, "reference", CPU).encode == codec.encode
    with pytest.raises(ImplementationUnavailableError, match="has no native implementation"):
        find_kernel(codec, "native", CPU)
    with pytest.raises(ImplementationUnavailableError, match="impl=triton: no GPU here"):
        find_kernel(codec, "triton", CPU)
    with pytest.raises(InvalidInputError, match="impl is 'cuda', wanted auto or one of reference"):
        find_kernel(codec, "cuda", CPU)


def test_nothing_is_substituted_after_an_exception(known):
    """A kernel that fails fails the call: its error reaches the caller."""

    def fail(*args):
        raise RuntimeError("the kernel is broken")

    module = kernel_module("knobs_vector")
    module.KERNEL = DenseKernel(fail, fail)
    known("knobs_vector", module)
    cache = torch.zeros(2, 4, 2, 64)
    with pytest.raises(RuntimeError, match="the kernel is broken"):
        Knobs().compress(cache, [0])


def write_kernel(folder, monkeypatch, source):
    """A package on disk whose vector kernel is `source`; no earlier one stays imported."""
    for name in [name for name in sys.modules if name.startswith("spare_kernels")]:
        del sys.modules[name]
    package = folder / "spare_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "knobs_vector.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(Knobs, "kernels", "spare_kernels")


def test_a_missing_package_is_named(known, tmp_path, monkeypatch):
    write_kernel(tmp_path, monkeypatch, "import a_compressor_nobody_has\n")
    reason = "codec 'knobs': its vector implementation needs the package 'a_compressor_nobody_has'"
    codec = Knobs()
    assert why_unavailable(codec, "vector", CPU) == reason
    assert find_kernel(codec, "auto", CPU).encode == codec.encode


@pytest.mark.parametrize("source", ["import spare_kernels.gone\n", "raise ValueError('broken')\n"])
def test_a_broken_kernel_module_is_not_a_missing_one(known, tmp_path, monkeypatch, source):
    write_kernel(tmp_path, monkeypatch, source)
    with pytest.raises((ModuleNotFoundError, ValueError)):
        find_kernel(Knobs(), "auto", CPU)


def test_the_one_line_form_takes_a_preset_a_spec_string_or_a_codec():
    cache = torch.randn(3, 4, 2, 64).to(torch.bfloat16)
    for codec, name in [("lossless", "split"), ("fp8:scale=head", "fp8"), (Raw(), "raw")]:
        rows = kvcodec.compress(cache, [2, 0], codec, num_valid=[4, 2])
        assert rows.codec.name == name
        target = torch.full_like(cache, 9)
        kvcodec.decompress(rows, target, [0, 1])
        assert (target[2] == 9).all()
        assert torch.equal(target[0], cache[2]) == rows.codec.lossless
    assert kvcodec.compress(cache, [0]).codec == get_codec("lossless")


def test_public_names_exist():
    for name in kvcodec.__all__:
        assert getattr(kvcodec, name) is not None
    assert kvcodec.__all__ == sorted(kvcodec.__all__)


def test_importing_the_package_imports_neither_triton_nor_a_kernel():
    code = (
        "import sys, kvcodec; kvcodec.codec_names(); names = set(sys.modules); "
        "bad = [n for n in names if n == 'kernels' or n.split('.')[0] == 'triton' or "
        "n.startswith('kvcodec.kernels.')]; sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_later_parameter_at_its_default_leaves_no_trace(known):
    @register
    @dataclass(frozen=True, slots=True)
    class Grown(Knobs):
        """A codec that got a parameter after its bytes were frozen."""

        name = "grown"
        later = ("extra",)

        extra: str = "none"

    old = {"name": "grown", "version": 1, "params": Knobs().config()["params"]}
    assert Grown().config() == old
    assert codec_from_config(old) == Grown()
    assert codec_from_config(Grown(extra="x").config()) == Grown(extra="x")
    assert Grown(extra="x").config()["params"]["extra"] == "x"
    with pytest.raises(UnknownCodecError, match="wanted"):
        codec_from_config({**old, "params": {"bits": 4}})
