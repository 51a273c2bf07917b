"""``no_regression`` of every metric there is, in real processes, against another model and against the baseline."""

import json
from pathlib import Path

import pytest

from pytest_lmgate.settings.metrics import METRICS
from tests.end_to_end.projects import Project, marked
from tests.end_to_end.writers import write_rows

QUIZ = [{"q": q, "options": list(o), "answer": 0, "then": o[0]} for q, o in [
    ("one", ["two", "six"]), ("two", ["three", "one"]), ("three", ["four", "two"]), ("four", ["five", "three"]),
]]  # fmt: skip
GATES = {
    "ppl": '"ppl", MODEL, "text", "1%"',
    "bpb": '"bpb", MODEL, "text", 0.1',
    "kl": '"kl", MODEL, "text", 0.1, reference="truth"',
    "top1": '"top1", MODEL, "text", 0.1, reference="truth"',
    "target_ppl": '"target_ppl", MODEL, "targets", "1%"',
    "invalid": '"invalid", MODEL, "answers", 0.1',
    "bleu": '"bleu", MODEL, "chains", "1%", max_ngram_order=2',
    "chrf": '"chrf", MODEL, "chains", "1%"',
    "ter": '"ter", MODEL, "chains", 1.0',
    "rouge": '"rouge", MODEL, "chains", "1%", variant="rouge1"',
    "exact": '"exact", MODEL, "chains", 0.01',
    "accuracy": '"accuracy", MODEL, "quiz", "1%", variant="acc_norm"',
    "length": '"length", MODEL, "chains", 0.1',
    "median": '"median", MODEL, "chains", 0.1',
}
"""The arguments of each metric's marker; "length" and "median" are a user's, a mean and not a mean."""
OF_USERS = {"length", "median"}
ELSEWHERE = {"pppl", "cut"}  # by the baseline below, since there is one masked model; and in test_answers.py
USERS_METRICS = """
    import numpy as np
    from pytest_lmgate import TextMetric

    def words(predictions, references, rows):
        return [[len(text.split()), 1] for text in predictions]

    def share(sums):
        return float(sums[0] / max(1.0, sums[1] + sums[0]))

    def pytest_lmgate_metrics(config):
        return [
            TextMetric("length", "higher", "length", words),
            TextMetric("median", "higher", "median", words, value=share),
        ]
"""
TEST = marked(**{name: f"no_regression({arguments})" for name, arguments in GATES.items()})


@pytest.fixture
def project(writing: Project, writers: Path) -> Project:
    write_rows(writing, "quiz", QUIZ)
    writing.add(
        "datasets",
        quiz="path: quiz.jsonl, question: q, choices: options, answer: answer",
        targets="path: quiz.jsonl, question: q, target: then",
        answers=r"path: chains.jsonl, prompt: '{start}', references: rest, extract: [{regex: {pattern: '(\S+)'}}]",
        text="path: text.txt, lines: true",
    )
    writing.add("models", truth=f"path: {writers}/counter, batch_size: 2")
    return writing.write(conftest=USERS_METRICS, text_txt="one two three\nfour five\nsix seven\n")


def test_every_metric_is_tried() -> None:
    assert {row.name for row in METRICS.values() if row.is_comparable} == (GATES.keys() | ELSEWHERE) - OF_USERS


def test_the_same_model_passes_and_a_worse_one_fails_by_every_metric(project: Project) -> None:
    worse = TEST.replace("MODEL", '"backward"').replace(")\ndef", ', against="counter")\ndef')
    same = TEST.replace("MODEL", '"counter"').replace(")\ndef", ', against="counter", same=True)\ndef')
    project.write(test_same=same, test_worse=worse)
    done = project.run("--lmgate-report", "json:report.json").expect(1, passed=len(GATES), failed=len(GATES))
    done.says("bootstrap  p = ", "worse rows", "of the model 'counter'")
    for gate in project.report()["gates"]:
        found = gate["comparison"]
        if gate["model"] == "counter":
            assert (gate["verdict"], found["degradation"]) == ("pass", 0)
        else:
            assert found["degradation"] > found["tolerance"]["size"]
            assert gate["verdict"] in ("fail", "inconclusive")  # four rows are few
        closed_form = gate["metric"] not in ("bleu", "chrf", "ter", "median")
        assert (found["p_value"] is None) == (closed_form or found["lower"] == found["upper"])


def test_every_metric_goes_by_the_baseline(project: Project) -> None:
    project.write(test_gate=TEST.replace("MODEL", '"counter"'))
    project.run("--lmgate-update").expect(0, passed=len(GATES)).says(f"{len(GATES)} new")
    project.run("--lmgate-strict", torch_free=True).expect(0, passed=len(GATES))
    entries = json.loads((project.folder / "lmgate-baseline.json").read_text(encoding="utf-8"))["gates"]
    assert {entry["n"] for entry in entries.values()} == {9, 4, 6, 32}  # rows, tokens and bytes behind the first token
    project.change("/counter}", "/backward}").run().expect(1, failed=len(GATES)).says("of the baseline of")


def test_a_function_and_a_masked_model_go_by_the_baseline(project: Project) -> None:
    function = "import os\n\ndef system(prompts): return [os.environ['SAYS'] for _ in prompts]\n"
    masked = 'no_regression("pppl", "masked", "text", "1%")'
    gate = 'no_regression("chrf", system, "chains", "1%")'
    project.write(test_gate=function + marked(function=gate, masked=masked))
    project.run("--lmgate-update", env={"SAYS": "two three"}).expect(0, passed=2)
    project.run(env={"SAYS": "two three"}, torch_free=True).expect(0, passed=2)
    project.run(env={"SAYS": "nothing"}, torch_free=True).expect(1, passed=1, failed=1).says("chrF")


def test_a_reference_that_no_model_could_be_worse_than_is_refused(project: Project) -> None:
    gates = {
        "nothing_right_in_percent": '"exact", "backward", "chains", "10%"',
        "nothing_right": '"exact", "backward", "chains", 0.1',
        "all_may_be_lost": '"chrf", "backward", "chains", 99',
        "no_errors_yet": '"ter", "counter", "chains", 10',
        "a_share_of_nothing": '"length", "silent", "chains", "10%"',
    }
    project.write(test_gate=marked(**{name: f"no_regression({gate})" for name, gate in gates.items()}))
    project.run("--lmgate-update").expect(0, passed=5).says("this gate cannot judge by it", "could never fail")
    done = project.run().expect(1, passed=1, error=4)
    done.says("exact match of 'backward' on", "could never fail", "less than 100%", "above 0, got 0")
