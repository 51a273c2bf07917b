"""From gates to verdicts without pytest, with functions for models."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.judge.baseline import Baselines, write_baseline
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.texts import TextMetric
from pytest_lmgate.settings.decoding import parse_marker
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.session import Options


@pytest.fixture
def project(tmp_path: Path) -> Path:
    rows = [{"question": f"say {row}", "answer": str(row)} for row in range(20)]
    (tmp_path / "quiz.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "lmgate.yaml").write_text(
        'datasets:\n  quiz: {path: quiz.jsonl, prompt: "{question}", references: [answer]}\n'
    )
    return tmp_path


def copier(prompts: list[str]) -> list[str]:
    return [prompt.removeprefix("say ") for prompt in prompts]


def forgetful(prompts: list[str]) -> list[str]:
    return [text if row % 2 else "" for row, text in enumerate(copier(prompts))]


def judge_in(project: Path, update: str = "", *, strict: bool = False, **users_metrics: TextMetric) -> Judge:
    made = Options(cache=project / ".lmgate_cache", strict=strict)
    evaluator = Evaluator(load_project(project), made, users_metrics=users_metrics)
    return Judge(evaluator, made, Baselines(project / "lmgate-baseline.json", update))


def judged(judge: Judge, marker: str, *args: Any, **kwargs: Any) -> Verdict:
    gate = parse_marker(marker, args, kwargs)
    verdict, unexpected = judge.judge(judge.evaluator.bind_gate(gate), gate.label, gate.label)
    assert unexpected is None
    return verdict


def test_an_open_limit_gate_fails_the_build_by_its_value_or_in_strict_mode(project: Path) -> None:
    near = judged(judge_in(project), "exact_min", forgetful, "quiz", 0.45, confidence=0.95)
    assert (near.verdict, near.blocking, near.failed) == ("inconclusive", False, False)
    assert judged(judge_in(project, strict=True), "exact_min", forgetful, "quiz", 0.45, confidence=0.95).failed
    assert judged(judge_in(project), "exact_min", forgetful, "quiz", 0.55, confidence=0.95).failed


def test_a_baseline_of_other_data_is_refused_before_a_model_writes(project: Path) -> None:
    arguments = ("no_regression", "exact", copier, "quiz", 0.05)
    assert "does not exist; make one" in judged(judge_in(project), *arguments).message
    writing = judge_in(project, update="all")
    judged(writing, *arguments)
    write_baseline(project / "lmgate-baseline.json", "all", writing.entries, used=None)
    with (project / "quiz.jsonl").open("a") as file:
        file.write('{"question": "say 20", "answer": "20"}\n')

    def never(prompts: list[str]) -> list[str]:
        raise AssertionError("a model wrote")

    verdict = judged(judge_in(project), "no_regression", "exact", never, "quiz", 0.05)
    assert verdict.verdict == "error"
    assert "the two sides used different data" in verdict.message
    assert verdict.message.endswith("update the baseline with --lmgate-update")


def test_an_exception_of_the_user_is_an_error_that_comes_back(project: Path) -> None:
    def broken(prompts: list[str]) -> list[str]:
        raise RuntimeError("out of order")

    gate = parse_marker("exact_min", (broken, "quiz", 0.5), {})
    judge = judge_in(project)
    verdict, unexpected = judge.judge(judge.evaluator.bind_gate(gate), "gate", "test")
    assert (verdict.verdict, verdict.message) == ("error", "RuntimeError: out of order")
    assert isinstance(unexpected, RuntimeError)


def test_a_users_metric_of_a_single_row_has_no_bounds_to_judge_by(project: Path) -> None:
    (project / "quiz.jsonl").write_text('{"question": "say 1", "answer": "1"}\n')
    hits = TextMetric("hits", "higher", "hits|v:1", lambda *_: [[1.0]], value=lambda sums: float(sums[0]))
    judge = judge_in(project, hits=hits)
    verdict = judged(judge, "metric_min", "hits", copier, "quiz", 0.5, confidence=0.95)
    assert (verdict.verdict, verdict.value, verdict.interval) == ("inconclusive", 1.0, None)
    assert judged(judge, "metric_min", "hits", copier, "quiz", 0.5).verdict == "pass"
