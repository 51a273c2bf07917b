"""A GGUF's tokens without its weights: `Model.tokenizer` opens the vocabulary alone, and its ids are the model's."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

import llama_cpp

from pytest_lmgate.engines.registry import library_warnings
from tests.engines.projects import described


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each time that llama.cpp opened a file it read the vocabulary alone."""
    load, found = llama_cpp.llama_model_load_from_file, []

    def watched(path: bytes, params: Any) -> Any:
        found.append(bool(params.vocab_only))
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", watched)
    return found


@pytest.mark.parametrize("folder", [None, "float"])
def test_the_vocabulary_alone_gives_the_tokens_of_the_model(files: Path, loads: list[bool], folder: str | None) -> None:
    model = described("q8_0", path=str(files / "q8_0.gguf"), tokenizer=folder and str(files / folder))
    assert model.tokenizer is not None
    own = model.tokenizer()
    own.encode("the cat", True)
    assert model.tokenizer() is own
    assert loads == [True, True], "once to describe it, once for its tokens"

    runner = model.open()
    assert loads == [True, True, False]
    its = runner.tokenizer
    for text in ("", " ", "a", "<s>the cat</s>", "\n\n tab\t", "🙂 é 猫", "the cat " * 50):
        for special in (True, False):
            assert list(own.encode(text, special)) == list(its.encode(text, special))
    ids = list(own.encode("the cat <pad>", True))
    assert [own.decode(token) for token in ids] == [its.decode(token) for token in ids]
    facts = ("bos", "eos", "adds_bos", "mask", "special")
    assert [getattr(own, each) for each in facts] == [getattr(its, each) for each in facts]
    messages = [{"role": "user", "content": "the cat"}]
    assert own.chat is not None
    assert its.chat is not None
    assert own.chat(messages) == its.chat(messages)
    runner.close()
    assert list(own.encode("the cat <pad>", True)) == ids, "it outlives the model"


def test_what_llama_cpp_warns_of_is_heard(files: Path, tmp_path: Path) -> None:
    unknown = (files / "f32.gguf").read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.xyz")
    (tmp_path / "unknown.gguf").write_bytes(unknown)
    for file, expected in ((files / "f32.gguf", False), (tmp_path / "unknown.gguf", True)):
        with library_warnings() as warned:
            described("m", path=str(file)).open().close()
        assert any("missing pre-tokenizer type" in text for text in warned) is expected
