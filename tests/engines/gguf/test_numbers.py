"""What is llama.cpp's own: longrope, batches of logits, vocabularies, files in parts, its signature, the example."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import window_requests
from pytest_lmgate.windows.tokens import Streams
from tests.engines.projects import Project, described, ppl, text_of, warm

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

import llama_cpp

from pytest_lmgate.engines.base import COLUMNS
from pytest_lmgate.engines.registry import library_warnings
from pytest_lmgate.errors import LmgateError, ModelError
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job, Log, score_requests
from tests.engines.example import require_same_bytes, require_shown
from tests.engines.numbers import CORPUS, JOB, nll_of, requests_of, texts_of

SLIDING = WindowProtocol("sliding", 96, 32)


def test_the_tokenizer_of_a_folder_gives_the_same_numbers_and_texts(opened: Callable[..., Any], files: Path) -> None:
    own, beside = opened("f32.gguf"), opened("f32.gguf", tokenizer=str(files / "float"))
    assert np.array_equal(nll_of(beside, SLIDING), nll_of(own, SLIDING))
    assert texts_of(beside, ["the cat"], max_new_tokens=9) == texts_of(own, ["the cat"], max_new_tokens=9)


@pytest.mark.parametrize(
    ("tokenizer", "says"),
    [("other-words", "tokenize a text differently: token"), ("no-bos", "token 0 at the beginning is 67")],
)
def test_the_tokenizer_of_a_folder_that_cuts_otherwise_is_refused(
    opened: Callable[..., Any], files: Path, tokenizer: str, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        nll_of(opened("f32.gguf", tokenizer=str(files / tokenizer)), SLIDING)


def test_an_encoder_is_no_causal_model(files: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a causal model \(architecture llama\)"):
        described("m", path=str(files / "encoder.gguf"))


def test_the_factors_of_longrope_go_by_the_length_of_a_row_and_of_no_other(opened: Callable[..., Any]) -> None:
    reference, runner = opened("longrope"), opened("longrope.gguf")
    rows, protocol = (text_of(185), *CORPUS.rows), WindowProtocol("document")
    assert len(runner.tokenizer.encode(rows[0], True)) > 512 > len(runner.tokenizer.encode(rows[1], True))
    said: list[str] = []
    requests = requests_of(runner, protocol, Corpus("d", rows))
    together = score_requests(runner, requests, Job(model="m", dataset="d", log=Log(remark=said.append))).nll
    alone = [score_requests(runner, requests_of(runner, protocol, Corpus("d", (row,))), JOB).nll for row in rows]
    assert np.array_equal(together, np.concatenate(alone))
    assert np.abs(together - score_requests(reference, requests, JOB).nll).max() < 1e-3
    (remark,) = said
    assert "its numbers depend on the size of llama.cpp's context (as with longrope)" in remark
    pair = ModelPair(("p", "q"), lambda: reference, lambda: runner)
    assert 0 <= compare(pair, requests, JOB)[:, COLUMNS.index("kl")].mean() < 1e-8

    prompts = [rows[0], text_of(9), text_of(30, 3)]
    how = {"max_new_tokens": 9, "truncate": "left"}
    expected = [texts_of(reference, [prompt], **how)[0] for prompt in prompts]
    assert texts_of(runner, prompts, **how) == expected


def test_a_text_that_outgrows_the_short_factors_of_longrope_is_read_again(opened: Callable[..., Any]) -> None:
    reference, runner = opened("longrope"), opened("longrope.gguf")
    ids = list(reference.tokenizer.encode(text_of(190, 2), True))[:508]
    prompt = reference.loaded.tokenizer.decode(ids[1:])
    assert list(runner.tokenizer.encode(prompt, True)) == ids
    for _ in range(10):
        logits = reference.loaded.model(torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    expected = reference.loaded.tokenizer.decode(ids[508:])
    assert texts_of(runner, [text_of(9), prompt], max_new_tokens=10)[1] == expected


def test_a_question_is_read_once_for_all_choices_of_one_token(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = opened("f32.gguf")
    questions = [exact.tokenizer.encode(text_of(length, seed), True) for seed, length in enumerate((40, 40, 25, 9, 40))]
    ids = [np.append(question, letter) for question in questions for letter in (5, 6, 7, 8)]
    ends, zero = np.array([len(each) for each in ids]), np.zeros(20, dtype=np.int64)
    plan = WindowPlan(document=np.arange(20), begin=zero, end=ends, first=ends - 1, prefix=zero.astype(np.bool_))
    read, plain = list[int](), exact._read
    monkeypatch.setattr(exact, "_read", lambda request: read.append(len(request.ids)) or plain(request))
    monkeypatch.setattr(exact, "is_tried", True)  # the trials read too
    requests = window_requests(Streams(tuple(ids), None), plan, "d")
    found = score_requests(exact, requests, JOB).nll
    assert sorted(read) == sorted(map(len, questions))
    assert found == pytest.approx(score_requests(opened("float"), requests, JOB).nll, abs=1e-3)


def test_a_file_in_several_parts_is_one_model_of_all_of_them(
    opened: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    parts = [Path(shutil.copy(each, tmp_path)) for each in sorted(files.glob("parts-*.gguf"))]
    whole = described("m", path=str(parts[0]))
    assert len(whole.content) > len(parts)
    assert np.array_equal(nll_of(whole.open(), SLIDING), nll_of(opened("f32.gguf"), SLIDING))
    parts[1].unlink()
    with pytest.raises(LmgateError, match=f"no such file: {parts[1]}"):
        described("m", path=str(parts[0]))


# A GGUF's tokens without its weights.


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


def test_options_that_do_not_go_together_are_not_taken_for_too_little_memory(project: Project) -> None:
    said = project.run([ppl("q8")], {"q8": "{path: {files}/f16.gguf, load: {type_v: q8_0, flash_attn: false}}"})
    assert project.verdicts == ["error"]
    assert "llama.cpp refuses its load: quantized V cache requires" in said


@pytest.fixture
def project(tmp_path: Path, files: Path) -> Project:
    entries = {name: f"{{path: {{files}}/{name}.gguf}}" for name in ("f32", "f16")}
    return Project(tmp_path, files, entries, python=warm()).fill()


def test_the_signature_names_flash_attention_and_a_comparison_may_differ_in_it(project: Project) -> None:
    gates = [ppl(model) for model in ("f32", "f16", "flash")]
    gates += ["kl_max: {model: f16, reference: f32, dataset: text, limit: 1, max_length: 128}"]
    gates += ["chrf_min: {model: f16, dataset: news, limit: 0.001, max_new_tokens: 4}"]
    gates += ["no_regression: {metric: ppl, model: flash, dataset: text, tolerance: 1%, against: f32}"]
    said = project.run(gates, {"flash": "{path: {files}/f16.gguf, load: {flash_attn: true}}"})
    assert project.status == 0, said
    found = {}
    for gate in project.judged:
        fields = dict(field.split(":", 1) for field in gate["signature"].split("|") if ":" in field)
        found[re.split(r"::|-text|-news", gate["id"])[1]] = fields.get("flash_attn")
    assert found == {
        "ppl_max[f32": "off",
        "ppl_max[f16": "auto",
        "ppl_max[flash": "on",
        "kl_max[f16-f32": "auto/off",
        "chrf_min[f16": "off",
        "no_regression:ppl[flash": "on",
    }


def test_models_whose_ids_differ_are_not_compared_whatever_their_tokens_are_called(project: Project) -> None:
    models = {name: f"{{path: {{files}}/{name}.gguf}}" for name in ("swapped", "renamed")}
    gate = "{metric}: {{model: {model}, reference: {reference}, dataset: text, limit: {limit}, max_length: 128}}"
    refused = [("swapped", "float"), ("float", "swapped"), ("swapped", "f32")]
    gates = [gate.format(metric="kl_max", model=a, reference=b, limit=99) for a, b in refused]
    gates += [gate.format(metric="top1_min", model=a, reference=b, limit=0.001) for a, b in refused]
    gates += [gate.format(metric="kl_max", model="renamed", reference="float", limit=0.0001)]
    said = project.run(gates, models)
    assert project.verdicts == ["error"] * 6 + ["pass"], said
    for model, reference in refused:
        assert said.count(f"model '{model}' and its reference '{reference}' have tokenizers that differ") >= 2, said
    assert project.values["kl_max[renamed-float-text-max_length:128]"] < 1e-8


def test_gates_of_the_example_pass_and_print_what_its_readme_shows(tmp_path: Path) -> None:
    require_shown("test_gguf.py", tmp_path)


def test_the_script_of_the_example_writes_the_same_bytes_again(tmp_path: Path) -> None:
    require_same_bytes("to_gguf.py", tmp_path, "float-f16.gguf", "float-q8_0.gguf")
