"""A codec is one file: dropped into a package it is found, and the contract runs over it."""

import sys
import textwrap

import pytest
import torch

import kvcodec.codecs
import kvcodec.kernels
from conformance.cases import Case, all_cases, cache_of, same
from conformance.test_lossless import check_patterns
from conformance.test_num_valid import test_unused_slots_decode_to_zeros
from kvcodec import codec_names, get_codec, registry

CODEC = """
    from dataclasses import dataclass

    import numpy as np

    from kvcodec.codecs.raw import Raw
    from kvcodec.registry import register


    @register
    @dataclass(frozen=True, slots=True)
    class Inverted(Raw):
        \"\"\"Keep the complement of every byte.\"\"\"

        name = "NAME"
        examples = ("NAME",)
        fixed_size = True
        kernels = "KERNELS"

        def encode(self, blocks, num_valid, out, positions=None):
            Raw.encode(self, blocks, num_valid, out)
            out.payload[:, 16:] ^= 0xFF

        def decode(self, encoded, positions=None):
            encoded.payload[:, 16:] ^= 0xFF
            blocks = Raw.decode(self, encoded)
            encoded.payload[:, 16:] ^= 0xFF
            return blocks
"""
KERNEL = """
    from kvcodec.kernels._dense import DenseKernel

    calls = []


    def encode(blocks, num_valid, out, positions=None):
        calls.append(len(blocks))
        out.codec.encode(blocks, num_valid, out, positions)


    def decode(encoded, positions=None):
        return encoded.codec.decode(encoded, positions)


    KERNEL = DenseKernel(encode, decode)
"""


def write(path, source, **names):
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, value in names.items():
        source = source.replace(name, value)
    path.write_text(textwrap.dedent(source))


@pytest.fixture
def fresh_registry(monkeypatch):
    """The registry as at start, and as it was again afterwards."""
    monkeypatch.setattr(registry, "_CODECS", dict(registry._CODECS))
    modules = dict(sys.modules)
    registry._load_codecs.cache_clear()
    registry._load_module.cache_clear()
    yield
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]
    registry._load_codecs.cache_clear()
    registry._load_module.cache_clear()


def check_contract(case):
    """Some promises that the suite checks of every case."""
    for order in ("shuffled", "ascending"):
        check_patterns(case, torch.bfloat16, order)
    test_unused_slots_decode_to_zeros(case)


def test_a_codec_file_is_found_without_an_edit(tmp_path, monkeypatch, fresh_registry):
    write(tmp_path / "inverted.py", CODEC, NAME="inverted", KERNELS="kvcodec.kernels")
    monkeypatch.setattr(kvcodec.codecs, "__path__", [*kvcodec.codecs.__path__, str(tmp_path)])
    assert "inverted" in codec_names()
    assert str(get_codec("inverted")) == "inverted"
    found = [case for case in all_cases() if case.codec.name == "inverted"]
    assert [case.impl for case in found] == ["reference"]
    check_contract(found[0])


def test_a_kernel_file_is_found_without_an_edit(tmp_path, monkeypatch, fresh_registry):
    write(tmp_path / "codecs/inverted.py", CODEC, NAME="inverted", KERNELS="kvcodec.kernels")
    write(tmp_path / "kernels/inverted_vector.py", KERNEL)
    for package, folder in [(kvcodec.codecs, "codecs"), (kvcodec.kernels, "kernels")]:
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / folder)])
    found = [case for case in all_cases() if case.codec.name == "inverted"]
    assert [case.impl for case in found] == ["reference", "vector"]
    check_contract(found[1])


def test_another_packages_codec_brings_its_own_kernels(tmp_path, monkeypatch, fresh_registry):
    """Found through its entry point; its kernels through the class attribute `kernels`."""
    package = tmp_path / "acme_kv"
    write(package / "__init__.py", "")
    write(package / "codecs.py", CODEC, NAME="acme", KERNELS="acme_kv.kernels")
    write(package / "kernels/__init__.py", "")
    write(package / "kernels/acme_vector.py", KERNEL)
    info = tmp_path / "acme_kv-1.0.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: acme-kv\nVersion: 1.0\n")
    write(info / "entry_points.txt", "[kvcodec.codecs]\nacme = acme_kv.codecs\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "acme" in codec_names()
    codec = get_codec("acme")
    from acme_kv.kernels import acme_vector

    cpu = torch.device("cpu")
    assert registry.find_kernel(codec, "auto", cpu) is acme_vector.KERNEL
    assert registry.why_unavailable(codec, "triton", cpu) == (
        "codec 'acme' has no triton implementation"
    )
    cache = cache_of(Case(codec, "reference").spec()).cpu()
    rows = kvcodec.compress(cache, [2, 0], "acme")
    assert acme_vector.calls == [2]
    target = torch.zeros_like(cache)
    kvcodec.decompress(rows, target, [2, 0])
    assert same(target[[0, 2]], cache[[0, 2]])
    check_contract(Case(codec, "vector"))
