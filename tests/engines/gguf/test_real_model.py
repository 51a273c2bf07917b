"""A real Llama with a SentencePiece vocabulary, as transformers and as GGUF, on the texts that it was made for."""

import json
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from tests.engines.gguf.converting import write_real_model
from tests.engines.projects import Project, warm

pytestmark = pytest.mark.shared
# Mean KL from the float model, in nats.
DIVERGENCES = {"f32": 0.0000001, "f16": 0.0001, "q8_0": 0.002}


@pytest.fixture
def real(shared_data: Path, tmp_path: Path) -> Project:
    """A project with the model as a folder, and as GGUF files of three dtypes."""
    files = tmp_path / "files"
    files.mkdir()
    write_real_model(files, shared_data)
    stories = (shared_data / "text" / "tinystories_150.jsonl").read_text(encoding="utf-8").splitlines()[:6]
    (tmp_path / "text.jsonl").write_text("\n".join(stories) + "\n", encoding="utf-8")
    cloze = shared_data / "choice" / "tinystories_cloze_200.jsonl"
    rows = [json.loads(line) for line in cloze.read_text(encoding="utf-8").splitlines()[:8]]
    entries = {name: f"{{path: {{files}}/{name}.gguf}}" for name in DIVERGENCES}
    project = Project(tmp_path, files, entries, python=warm())
    questions = [{"q": row["context"], "options": row["choices"], "label": row["answer"]} for row in rows]
    project.write("quiz.jsonl", questions)
    prompts = [" ".join(json.loads(line)["text"].split()[:20]) for line in stories[:6]]
    project.write("news.jsonl", [{"article": prompt, "summary": prompt} for prompt in prompts])
    (tmp_path / "long.txt").write_text("".join(json.loads(line)["text"] for line in stories), encoding="utf-8")
    return project


def test_its_numbers_are_those_of_the_float_model(real: Project) -> None:
    gates = []
    for model in ("float", "f32", "beside"):
        gates += [
            f"ppl_max: {{model: {model}, dataset: text, limit: 99, protocol: llama.cpp}}",
            f"ppl_max: {{model: {model}, dataset: long, limit: 99}}",
            f"ppl_max: {{model: {model}, dataset: text, limit: 99, protocol: document}}",
            f"accuracy_min: {{model: {model}, dataset: quiz, limit: 0.001, truncate: left}}",
            f"chrf_min: {{model: {model}, dataset: news, limit: 0.001, max_new_tokens: 48}}",
        ]
    kl = "kl_max: {model: MODEL, reference: float, dataset: text, limit: LIMIT}"
    gates += [kl.replace("MODEL", model).replace("LIMIT", f"{limit:.7f}") for model, limit in DIVERGENCES.items()]
    gates += ["top1_min: {model: f16, reference: float, dataset: text, limit: 0.99}"]
    said = real.run(gates, {"beside": "{path: {files}/f32.gguf, tokenizer: {files}/float}"})
    assert real.status == 0, said
    values = real.values
    for gate, value in values.items():
        for model in ("f32", "beside"):
            if f"[{model}-" in gate and (twin := gate.replace(f"[{model}-", "[float-")) in values:
                assert value == pytest.approx(values[twin], rel=1e-5), gate
