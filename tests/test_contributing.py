"""CONTRIBUTING.md's codec is real: it registers from its one file and keeps the contract."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import kvcodec
from kvcodec import registry

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


@pytest.fixture
def example(tmp_path, monkeypatch):
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "upper.py").write_text(source)
    spec = importlib.util.spec_from_file_location("upper", tmp_path / "upper.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "upper", module)
    monkeypatch.setattr(registry, "_CODECS", dict(registry._CODECS))
    spec.loader.exec_module(module)
    return kvcodec.get_codec("upper")


def test_the_example_codec_is_found_by_name_and_halves_a_block(example):
    cache = torch.randn(3, 16, 2, 64).to(torch.float16)
    rows = kvcodec.compress(cache, [2, 0], "upper", num_valid=[16, 5])
    assert rows.nbytes.tolist() == [16 + cache[0].numel()] * 2
    back = torch.full_like(cache, 7.0)
    kvcodec.decompress(rows, back, [2, 0])
    assert torch.equal(back[1], torch.full_like(back[1], 7.0))
    assert not back[0, 5:].any()
    normal = cache[2].abs() >= torch.finfo(torch.float16).smallest_normal
    error = (back[2] - cache[2]).abs()
    assert (error[normal] <= cache[2].abs()[normal] / 4).all()
    assert torch.equal(kvcodec.compress(back, [2], "upper").payload, rows.payload[:1])
