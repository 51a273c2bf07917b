"""Verdicts that rest on few rows, the same model twice, and limit gates with a confidence, in real processes."""

import json
import shutil
from pathlib import Path

import pytest
import scipy.stats

from tests.end_to_end.projects import Project
from tests.end_to_end.writers import models_that_write, write_rows, writing_project

# `counter` knows which word is next, and `even` takes the first of equals: both are right, or both are wrong.
RIGHT = {"q": "one", "options": ["two", "six"], "answer": 0}
WRONG = {"q": "one", "options": ["two", "six"], "answer": 1}


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    text = (made.folder / "lmgate.yaml").read_text()
    entries = "".join(
        f"  {name}: {{path: {name}.jsonl, question: q, choices: options, answer: answer}}\n"
        for name in ("right", "wrong", "many")
    )
    for name, rows in {"right": [RIGHT] * 20, "wrong": [WRONG] * 20, "many": [RIGHT] * 52}.items():
        write_rows(made, name, rows)
    return made.write(lmgate_yaml=text + entries)


def regression(dataset: str, against: str, *, model: str = "counter", metric: str = "accuracy") -> str:
    against = f', against="{against}"' if against else ""
    return f"""
        import pytest

        @pytest.mark.no_regression("{metric}", "{model}", "{dataset}", 0.05{against})
        def test_gate(): pass
    """


def only_comparison(project: Project) -> tuple[str, dict]:
    (gate,) = project.report()["gates"]
    return gate["verdict"], gate["comparison"]


def test_two_models_with_equal_answers_on_20_rows_are_inconclusive_and_52_rows_settle_it(project: Project) -> None:
    settles = "it needs 52 rows without a change to show less than 0.05"
    project.write(test_gate=regression("right", "even"))
    done = project.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    done.says("1 gate: 1 inconclusive", settles, "few rows: 1 gate has fewer than 30 (min 20)")
    verdict, found = only_comparison(project)
    z2 = scipy.stats.norm.ppf(0.95) ** 2
    assert (verdict, found["bounds"], found["clustered_by"], found["needed"]) == ("inconclusive", "tango", "rows", 52)
    assert (found["degradation"], found["upper"]) == (0, pytest.approx(z2 / (20 + z2)))
    done = project.run("--lmgate-strict").expect(1, failed=1)
    done.says(settles, "noise      from 20 rows, by Tango's test", "--lmgate-strict fails the build")

    project.write(test_gate=regression("many", "even"))
    done = project.run("--lmgate-strict", "--lmgate-report", "json:report.json").expect(0, passed=1)
    done.says("1 gate: 1 pass").is_silent_on("few rows", "settle")
    assert only_comparison(project)[1]["upper"] <= 0.05


def test_the_same_checkpoint_twice_passes_with_any_rows_also_from_another_folder(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    models = models_that_write(tmp_path_factory.getbasetemp())
    project.model("copy", models / "counter")
    path = project.folder / "lmgate.yaml"
    written = path.read_text(encoding="utf-8")
    path.write_text(written.replace("models:\n", "models:\n  copy: {path: copy}\n", 1), encoding="utf-8")
    for against in ("counter", "copy"):
        project.write(test_gate=regression("right", against))
        done = project.run("--lmgate-strict", "--lmgate-report", "json:report.json").expect(0, passed=1)
        done.says("1 gate: 1 pass").is_silent_on("few rows")
        verdict, found = only_comparison(project)
        assert (verdict, found["reason"]) == ("pass", "both are the same measurement")
        assert (found["degradation"], found["lower"], found["upper"]) == (0, 0, 0)

    # The same against a baseline: of this checkpoint, a copy of it, and another model.
    project.write(test_gate=regression("right", "")).run("--lmgate-update").expect(0)
    entry = next(iter(json.loads((project.folder / "lmgate-baseline.json").read_text())["gates"].values()))
    assert entry["outcomes"] == "fffff0"
    project.run("--lmgate-strict").expect(0, passed=1).says("1 gate: 1 pass")
    shutil.rmtree(project.cache)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"counter: {{path: {models}/counter}}", "counter: {path: copy}"), encoding="utf-8")
    project.run("--lmgate-strict").expect(0, passed=1).says("1 gate: 1 pass")
    path.write_text(text.replace(f"{models}/counter}}", f"{models}/even}}"), encoding="utf-8")
    done = project.run().expect(0, passed=1)
    done.says("1 gate: 1 inconclusive", "it needs 52 rows without a change to show less than 0.05")


# Limit gates with a confidence.

LIMITS = """
    import pytest

    @pytest.mark.accuracy_min("counter", "right", 0.88, confidence=0.95)
    def test_pass(): pass

    @pytest.mark.accuracy_min("counter", "right", 0.9, confidence=0.95)
    def test_open_within(): pass

    @pytest.mark.accuracy_min("counter", "wrong", 0.1, confidence=0.95)
    def test_open_beyond(): pass

    @pytest.mark.accuracy_min("counter", "wrong", 0.12, confidence=0.95)
    def test_fail(): pass
"""


def test_an_accuracy_passes_by_its_lower_bound_and_fails_by_its_upper_one(project: Project) -> None:
    project.write(test_gate=LIMITS)
    done = project.run("--lmgate-report", "json:report.json").expect(1, passed=2, failed=2)
    done.says(
        "4 gates: 1 pass, 1 fail, 2 inconclusive",
        "the build does not fail",
        "the build fails",
        "accuracy 0 [0, 0.161125] of 'counter' on 'wrong'",
        "few rows: 4 gates have fewer than 30 (min 20)",
    )
    gates = {gate["test"].rpartition("::")[2]: gate for gate in project.report()["gates"]}
    assert {name: gate["verdict"] for name, gate in gates.items()} == {
        "test_pass": "pass",
        "test_open_within": "inconclusive",
        "test_open_beyond": "inconclusive",
        "test_fail": "fail",
    }
    # Wilson's one-sided bound of 20 right of 20: 20 / (20 + z^2).
    z2 = scipy.stats.norm.ppf(0.95) ** 2
    bounded = gates["test_open_within"]["bounded"]
    assert (bounded["lower"], bounded["upper"]) == (pytest.approx(20 / (20 + z2)), 1)
    assert (bounded["bounds"], bounded["clusters"], bounded["confidence"]) == ("wilson", 20, 0.95)
    assert bounded["needed"] > 20
    assert gates["test_open_beyond"]["bounded"]["upper"] == pytest.approx(z2 / (20 + z2))
