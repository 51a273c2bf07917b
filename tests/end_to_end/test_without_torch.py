"""What works where torch, transformers and datasets are not installed; `make test-light` runs it."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LMGATE = (sys.executable, "-m", "pytest_lmgate.cli")
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")

pytestmark = pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed: make test-light")


def run(folder: Path, *command: str, code: int = 0) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with given texts, whose model is a function, and a checkpoint."""
    rows = [json.dumps({"q": f"number {row}", "a": f"the answer is {row}"}) for row in range(40)]
    (tmp_path / "answers.jsonl").write_text("\n".join(rows))
    (tmp_path / "lmgate.yaml").write_text(
        f"""
        models: {{int8: {{path: {ROOT}/example_project/models/int8}}}}
        datasets:
          answers: {{path: answers.jsonl, prompt: "{{q}}", references: a}}
          news: {{path: {ROOT}/example_project/data/bulletins.jsonl}}
          hub: {{hub: some/where, split: test}}
        gates:
          - ppl_max: {{model: int8, dataset: news, limit: 3}}
          - ppl_max: {{model: int8, dataset: hub, limit: 3}}
        """.replace("\n        ", "\n")
    )
    (tmp_path / "test_texts.py").write_text(
        "import pytest\n\n"
        "def writes(prompts):\n    return [f'the answer is {prompt.split()[1]}' for prompt in prompts]\n\n"
        "@pytest.mark.exact_min(writes, 'answers', 0.9)\n@pytest.mark.bleu_min(writes, 'answers', 90)\n"
        "def test_texts(rouge_of):\n    assert rouge_of(predictions=['a b'], references=[['a b']]) > 0.9\n"
    )
    return tmp_path


def test_given_texts_are_judged_and_reported(project: Path) -> None:
    run(project, *PYTEST, "test_texts.py", "--lmgate-report=json:report.json")
    verdicts = [gate["verdict"] for gate in json.loads((project / "report.json").read_text())["gates"]]
    assert verdicts == ["pass", "pass"]
    printed = run(project, *LMGATE, "report", "report.json", "--markdown", "-", "--html", "report.html")
    assert "**2 gates: 2 pass**" in printed


def test_gates_are_checked_and_results_judged(project: Path) -> None:
    printed = run(project, *LMGATE, "check", code=1)
    assert printed.count("lmgate.yaml:") == 1
    assert "No module named 'datasets': pip install datasets" in printed
    for name, wrong in {"old.csv": 5, "same.csv": 5, "new.csv": 2}.items():
        rows = [f"{row},{int(row % wrong > 0)}" for row in range(60)]
        (project / name).write_text("\n".join(["id,score", *rows]))
    judge = (*LMGATE, "judge", "--tolerance=0.1", "--id=id", "--score=score", "--better=higher")
    assert "PASS" in run(project, *judge, "old.csv", "same.csv")
    assert "FAIL" in run(project, *judge, "old.csv", "new.csv", code=1)


def test_what_needs_torch_names_the_command_that_installs_it(project: Path) -> None:
    printed = run(project, *PYTEST, "lmgate.yaml", code=1)
    assert "No module named 'torch': pip install torch transformers" in printed
    assert "No module named 'datasets': pip install datasets" in printed
    (project / "start").mkdir()
    init = ("init", "--yes", f"--model={ROOT}/example_project/models/int8")
    text = f"--dataset={ROOT}/example_project/data/bulletins.jsonl"
    assert "pip install torch transformers" in run(project / "start", *LMGATE, *init, text, code=3)
    doctor = run(project, *LMGATE, "doctor", code=1)
    assert "Install torch, transformers, tokenizers, datasets with pip." in doctor
    assert "transformers no" in doctor


def test_a_gate_of_a_gguf_file_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    for name in ("models/float", "data"):
        shutil.copytree(ROOT / "example_project" / name, tmp_path / name)
    shutil.copy(ROOT / "example_project" / "to_gguf.py", tmp_path)
    run(tmp_path, sys.executable, "to_gguf.py")
    (tmp_path / "lmgate.yaml").write_text(
        "models: {q8: {path: models/float-q8_0.gguf}}\n"
        "datasets: {news: {path: data/bulletins.jsonl, limit: 40}}\n"
        "gates:\n  - ppl_max: {model: q8, dataset: news, limit: 2.2}\n"
    )
    assert "PASS     ppl_max[q8-news]" in run(tmp_path, *PYTEST)
