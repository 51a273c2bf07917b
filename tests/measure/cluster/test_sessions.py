"""Whole pytest sessions whose models are on a Ray cluster: the report is that of a session without one."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.projects import Outcome, Project, finished, make_models, wait_for
from tests.measure.cluster.conftest import CLIENT_PORT
from tests.models.tiny import made_once

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
EXAMPLE = Path(__file__).parents[3] / "example_project"
WHERE = ("value", "stderr", "n", "signature", "verdict")


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Gates of every kind on two models: one is sure of itself, one knows nothing."""
    models = made_once(tmp_path_factory.getbasetemp(), "models", make_models)
    for name in ("die", "sure"):
        shutil.copytree(models / name, tmp_path / name)
    shutil.copy(models / "words.txt", tmp_path)
    words = (models / "words.txt").read_text().split()
    rows = [
        {"source": " ".join(words[at : at + 5]), "references": [" ".join(words[at + 5 : at + 9])]} for at in range(12)
    ]
    asked = [
        {"question": row["source"], "choices": [words[at], words[at + 40]], "answer": 0} for at, row in enumerate(rows)
    ]
    for name, each in (("rows", rows), ("quiz", asked)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    return Project(tmp_path).write(
        lmgate_yaml="""
            defaults: {device: cpu, batch_size: 2}
            models:
              die: {path: die}
              sure: {path: sure}
              spread: {path: sure, load: {device_map: auto}}
            datasets:
              words: {path: words.txt}
              rows: {path: rows.jsonl, source: source, references: references}
              quiz: {path: quiz.jsonl, question: question, choices: choices, answer: answer}
            gates:
              - ppl_max: {model: die, dataset: words, limit: 60.5}
              - ppl_max: {model: sure, dataset: words, limit: 1000000, stride: 16}
              - ppl_max: {model: spread, dataset: words, limit: 1000000, stride: 16}
              - no_regression: {metric: ppl, model: die, dataset: words, against: sure, tolerance: 1%}
              - kl_max: {model: sure, reference: die, dataset: words, limit: 100}
              - accuracy_min: {model: sure, dataset: quiz, limit: 0.01}
              - bleu_min: {model: sure, dataset: rows, limit: 0.01, max_new_tokens: 4}
        """
    )


def _ended(project: Project, *arguments: str, **environment: str) -> Outcome:
    return finished(project.start(*arguments, env=environment), timeout=300)


def _verdicts(project: Project, *arguments: str, **environment: str) -> list[Any]:
    report = f"--lmgate-report=json:{project.folder / 'report.json'}"
    _ended(project, report, *arguments, **environment).expect(1)  # nobody writes a right word
    return [{key: each[key] for key in WHERE if key in each} for each in project.report()["gates"]]


def test_every_kind_of_gate_has_the_numbers_of_a_session_without_a_cluster(ray_cluster: Any, project: Project) -> None:
    there = _verdicts(project, "--lmgate-executor=ray?workers=2", RAY_ADDRESS=ray_cluster.address)
    shutil.rmtree(project.cache)

    assert there == _verdicts(project)
    assert len(there) == 7


def test_another_engine_reads_on_workers_too(ray_cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is NOT installed: no other engine is tried on a cluster")
    project = Project(tmp_path).write(
        lmgate_yaml=f"""
            models: {{onnx: {{path: {EXAMPLE / "models" / "float-onnx"}, backend: onnx, device: cpu}}}}
            datasets: {{news: {{path: {EXAMPLE / "data" / "bulletins.jsonl"}, text: text, limit: 8}}}}
            gates: [{{ppl_max: {{model: onnx, dataset: news, limit: 1, max_length: 64}}}}]
        """
    )
    there = _verdicts(project, "--lmgate-executor=ray?workers=2", RAY_ADDRESS=ray_cluster.address)
    shutil.rmtree(project.cache)

    assert there == _verdicts(project)
    assert there[0]["verdict"] == "fail"


def test_a_session_reaches_a_cluster_by_its_address(ray_cluster: Any, project: Project) -> None:
    address = f"--lmgate-executor=ray://127.0.0.1:{CLIENT_PORT}?workers=1"
    for _ in range(3):
        outcome = _ended(project, "-k", "ppl_max and die", address)
        # Ray starts a server for each client, and gives up after 30 s where the machine is busy.
        if "no Ray cluster answers" not in outcome.text:
            break
    outcome.expect(0, passed=1)


def test_a_session_that_patches_a_library_measures_nothing_on_workers_without_the_patch(
    ray_cluster: Any, project: Project
) -> None:
    project.write(
        conftest="""
            import transformers

            plain = transformers.LlamaForCausalLM.forward
            transformers.LlamaForCausalLM.forward = lambda self, *args, **kwargs: plain(self, *args, **kwargs)
        """
    )
    done = _ended(project, "-k", "ppl_max and die", "--lmgate-executor=ray", RAY_ADDRESS=ray_cluster.address)
    done.expect(1, error=1).says("model 'die': this session patched ", "remove --lmgate-executor")


def test_a_cluster_that_does_not_answer_is_one_sentence(project: Project) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: no measurement on a cluster is checked")
    done = _ended(project, "-k", "ppl_max and die", "--lmgate-executor=ray://127.0.0.1:1")
    done.expect(1, error=1).says("--lmgate-executor: no Ray cluster answers at ray://127.0.0.1:1: ")
    done.is_silent_on("Traceback")


def test_an_interrupted_measurement_goes_on_where_it_was(ray_cluster: Any, project: Project) -> None:
    project.write(
        conftest="""
            from tests.measure.cluster.slow_die import pytest_lmgate_backends
        """,
        lmgate_yaml="""
            models: {slow: {path: it.slow, batch_size: 1}}
            datasets: {words: {path: words.txt}}
            gates: [{ppl_max: {model: slow, dataset: words, limit: 6.1, max_length: 8}}]
        """,
    )
    (project.folder / "it.slow").write_text('{"sides": 6, "seconds": 0.2}')
    repository = str(Path(__file__).parents[3])
    how = {
        "RAY_ADDRESS": ray_cluster.address,
        "PYTHONPATH": repository,
        "PYTEST_ADDOPTS": "--lmgate-executor=ray?workers=2",
    }
    process = project.start("-s", env=how)
    wait_for(
        lambda: len([file for file in project.folder.iterdir() if file.name.isdecimal()]) == 2, "both workers read"
    )
    process.send_signal(signal.SIGINT)
    finished(process, timeout=300).expect(2).says("interrupted at ", "this part is kept")

    _ended(project, "-s", **how).expect(0, passed=1).says("slow on words: resumed at ")
