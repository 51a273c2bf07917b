"""GGUF files gated in real pytest processes: numbers, the cache, resuming, files of several parts, errors."""

import json
import re
import shutil

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from tests.engines.projects import (
    Project,
    interrupted,
    ppl,
    require_kept,
    require_refusals,
    require_sampled_kl,
    require_twins,
    text_of,
    twin_gates,
    warm,
    watched,
)

RUNNER = "pytest_lmgate.engines.llamacpp.gguf:LlamaCppRunner"
WATCHED = watched(
    RUNNER,
    and_then="""
    def pytest_sessionfinish():
        import sys
        assert not {"torch", "transformers", "datasets"} & sys.modules.keys()
    """,
)


def watch(project: Project) -> None:
    """Note each batch; sessions begin without torch, which they have to leave alone."""
    project.python = warm("pytest")
    (project.folder / "conftest.py").write_text(WATCHED)


def test_every_metric_of_a_gguf_is_that_of_the_float_model_and_is_kept(project: Project) -> None:
    both = twin_gates("float", "f32")
    kl = "kl_max: {model: MODEL, reference: float, dataset: text, limit: 0.0001, max_length: 128}"
    both += [kl.replace("MODEL", "f32"), kl.replace("MODEL", "f16")]
    both += ["no_regression: {metric: ppl, model: f32, dataset: text, tolerance: 0.1%, against: float}"]
    said = project.run(both)
    assert project.status == 0, said
    require_twins(project, "f32")
    # llama.cpp says a page on stderr when a model is loaded.
    assert project.stderr == ""

    require_kept(project, both, RUNNER)


def test_a_sampled_divergence_from_transformers_finds_a_damaged_file(project: Project) -> None:
    require_sampled_kl(project, "f32", "damaged", {"damaged": "{path: {files}/damaged.gguf}"})


def test_short_rows_of_a_longrope_model_have_the_numbers_of_transformers_beside_a_long_row(project: Project) -> None:
    long = text_of(190, 8)  # 553 tokens
    project.write("text.jsonl", [{"text": text} for text in (long, *(text_of(40, seed) for seed in range(6)))])
    questions = [{"q": text_of(9, row), "options": [text_of(4, 9 * row + k) for k in range(4)]} for row in range(40)]
    project.write("quiz.jsonl", [{**each, "label": 0} for each in (*questions, {**questions[0], "q": long})])
    prompts = [long, *(text_of(9, row) for row in range(8))]
    project.write("news.jsonl", [{"article": prompt, "summary": "the cat"} for prompt in prompts])
    gates = []
    for model in ("lr", "lr-gguf"):
        gates += [
            ppl(model, "protocol: document"),
            f"accuracy_min: {{model: {model}, dataset: quiz, limit: 0.001}}",
            f"chrf_min: {{model: {model}, dataset: news, limit: 0.001, max_new_tokens: 24}}",
        ]
    said = project.run(gates, {"lr": "{path: {files}/longrope}", "lr-gguf": "{path: {files}/longrope.gguf}"})
    assert project.status == 0, said
    values = [*project.values.values()]
    assert values[3:] == pytest.approx(values[:3], rel=1e-5)
    assert "its numbers depend on the size of llama.cpp's context (as with longrope)" in said


def test_an_interrupted_measurement_goes_on_where_it_was(project: Project) -> None:
    watch(project)
    parts, whole = interrupted(project, "{path: {files}/q8_0.gguf, batch_size: 2}", after=3)
    assert sum(map(int, parts)) == sum(map(int, whole)), "no request was scored twice"


def test_what_changes_a_number_is_in_the_address_and_threads_are_not(project: Project) -> None:
    watch(project)
    scored = project.folder / "scored.txt"

    def measured(entry: str) -> bool:
        scored.write_text("")
        said = project.run([ppl("x")], {"x": entry})
        assert project.status == 0, said
        return bool(scored.read_text())

    assert measured("{path: {files}/f16.gguf}")
    assert not measured("{path: {files}/f16.gguf, load: {n_threads: 3}}")
    assert measured("{path: {files}/f16.gguf, load: {flash_attn: false}}")
    assert measured("{path: {files}/q8_0.gguf}")


def test_the_signature_names_flash_attention_and_a_comparison_may_differ_in_it(project: Project) -> None:
    kl = "kl_max: {model: f16, reference: REFERENCE, dataset: text, limit: 1, max_length: 128}"
    gates = [ppl(model) for model in ("float", "f32", "f16", "flash")]
    gates += [kl.replace("REFERENCE", model) for model in ("f32", "float")]
    gates += ["chrf_min: {model: f16, dataset: news, limit: 0.001, max_new_tokens: 4}"]
    gates += ["no_regression: {metric: ppl, model: flash, dataset: text, tolerance: 1%, against: f32}"]
    said = project.run(gates, {"flash": "{path: {files}/f16.gguf, load: {flash_attn: true}}"})
    assert project.status == 0, said
    found = {}
    for gate in json.loads((project.folder / "report.json").read_text())["gates"]:
        fields = dict(field.split(":", 1) for field in gate["signature"].split("|") if ":" in field)
        found[re.split(r"::|-text|-news", gate["id"])[1]] = fields.get("flash_attn")
    assert found == {
        "ppl_max[float": None,
        "ppl_max[f32": "off",
        "ppl_max[f16": "auto",
        "ppl_max[flash": "on",
        "kl_max[f16-f32": "auto/off",
        "kl_max[f16-float": "auto",
        "chrf_min[f16": "off",
        "no_regression:ppl[flash": "on",
    }


def test_a_file_in_several_parts_is_one_model(project: Project) -> None:
    (part,) = [path for path in project.files.glob("parts-*.gguf") if "-00001-of-" in path.name]
    models = {"parts": f"{{path: {part}}}"}
    said = project.run([ppl("parts"), ppl("f32")], models)
    assert project.status == 0, said
    assert len({*project.values.values()}) == 1

    for each in project.files.glob("parts-*.gguf"):
        shutil.copy(each, project.folder)
    missing = sorted(project.folder.glob("parts-*.gguf"))[1]
    missing.unlink()
    said = project.run([ppl("parts")], {"parts": f"{{path: {part.name}}}"})
    assert f"model 'parts': no such file: {missing}" in said
    assert project.status == 1


def test_models_whose_ids_differ_are_not_compared_whatever_their_tokens_are_called(project: Project) -> None:
    models = {name: f"{{path: {{files}}/{name}.gguf}}" for name in ("swapped", "renamed")}
    gate = "{metric}: {{model: {model}, reference: {reference}, dataset: text, limit: {limit}, max_length: 128}}"
    refused = [("swapped", "float"), ("float", "swapped"), ("swapped", "f32")]
    gates = [gate.format(metric="kl_max", model=a, reference=b, limit=99) for a, b in refused]
    gates += [gate.format(metric="top1_min", model=a, reference=b, limit=0.001) for a, b in refused]
    gates += [gate.format(metric="kl_max", model="renamed", reference="float", limit=0.0001)]
    said = project.run(gates, models)
    assert project.status == 1, said
    for model, reference in refused:
        sentence = f"model '{model}' and its reference '{reference}' have tokenizers that differ (they tokenize"
        assert said.count(sentence) >= 2, said
    assert "7 gates: 1 pass, 6 error" in said, said
    assert project.values["kl_max[renamed-float-text-max_length:128]"] < 1e-8


# Bytes of the file x, taken from that of a model unless they are a text; an entry; and what is said of it.
WRONG: list[tuple[slice | bytes | None, str, str]] = [
    (slice(-500), "{path: x.gguf}", "not within the file bounds, model is corrupted or incomplete; the file is trunc"),
    (slice(1000), "{path: x.gguf}", "failed to read key-value pairs; the file is truncated or damaged: copy it again"),
    (b"hello", "{path: x.gguf}", "x.gguf is not a GGUF file: expected it to begin with GGUF, got b'hell'"),
    (None, "{path: x.gguf}", "no such file:"),
    (slice(None), "{path: x.bin, backend: llama.cpp}", "llama.cpp reads a file that ends in .gguf, got"),
    (None, "{backend: llama.cpp}", "model 'x': expected path: of a .gguf file"),
    (None, "{path: {files}/encoder.gguf}", "is not a causal model (architecture llama)"),
    (None, "{path: {files}/f32.gguf, dtype: float16}", "models.x.dtype: the engine llama.cpp does not support it"),
    (None, "{path: {files}/f32.gguf, adapter: a}", "models.x.adapter: the engine llama.cpp does not support it: merge"),
    (None, "{path: {files}/f32.gguf, load: {n_thread: 2}}", "no option 'n_thread' (did you mean 'n_threads'?)"),
    (None, "{path: {files}/f32.gguf, load: {flash_attn: 1}}", "load.flash_attn: expected true or false, got 1"),
    (None, "{path: {files}/f32.gguf, load: {n_batch: 0}}", "load.n_batch: expected a whole number from 1, got 0"),
    (None, "{path: {files}/f32.gguf, load: {type_k: f12}}", "load.type_k: expected one of f32, f16"),
    (None, "{path: {files}/f32.gguf, device: cuda}", "the device 'cuda' cannot be used: this llama-cpp-python was"),
    (None, "{path: {files}/f32.gguf, tokenizer: {files}/other-words}", "tokenize a text differently: token"),
    (
        None,
        "{path: {files}/f32.gguf, tokenizer: {files}/no-bos}",
        "token 0 at the beginning is 67 ('a') in the folder and 1 ('<s>') in the GGUF",
    ),
]


@pytest.mark.parametrize(("content", "entry", "message"), WRONG)
def test_a_wrong_file_or_entry_is_one_clear_sentence(
    project: Project, content: slice | bytes | None, entry: str, message: str
) -> None:
    if content is not None:
        found = (project.files / "f16.gguf").read_bytes()[content] if isinstance(content, slice) else content
        (project.folder / ("x.bin" if "x.bin" in entry else "x.gguf")).write_bytes(found)
    said = project.run([ppl("x")], {"x": entry})
    assert project.status == 1, said
    assert message in said
    assert "Traceback" not in said


def test_what_a_gguf_cannot_do_is_one_clear_sentence(project: Project) -> None:
    require_refusals(project, "f32")


def test_a_missing_package_says_what_to_install(project: Project) -> None:
    (project.folder / "conftest.py").write_text("import sys\nsys.modules['llama_cpp'] = None\n")
    said = project.run([ppl("f32")])
    assert project.status == 1
    assert "pip install 'pytest-lmgate[gguf]'" in said
