"""Verdicts that rest on few rows, the same model twice, and limit gates with a confidence, in real processes."""

import pytest
import scipy.stats

from tests.end_to_end.projects import Project, marked
from tests.end_to_end.writers import write_rows

# `counter` knows which word is next, and `even` takes the first of equals: both are right, or both are wrong.
RIGHT = {"q": "one", "options": ["two", "six"], "answer": 0}
WRONG = {"q": "one", "options": ["two", "six"], "answer": 1}


@pytest.fixture
def quiz(writing: Project) -> Project:
    entry = "question: q, choices: options, answer: answer"
    for name, rows in {"right": [RIGHT] * 20, "wrong": [WRONG] * 20, "many": [RIGHT] * 52}.items():
        write_rows(writing, name, rows)
        writing.add("datasets", **{name: f"path: {name}.jsonl, {entry}"})
    return writing


# Limit gates with a confidence.

LIMITS = {
    "pass": ("right", 0.88),
    "open_within": ("right", 0.9),
    "open_beyond": ("wrong", 0.1),
    "fail": ("wrong", 0.12),
}


def test_an_accuracy_passes_by_its_lower_bound_and_fails_by_its_upper_one(quiz: Project) -> None:
    gates = {
        name: f"accuracy_min('counter', {data!r}, {limit}, confidence=0.95)" for name, (data, limit) in LIMITS.items()
    }
    quiz.write(test_gate=marked(**gates))
    done = quiz.run("--lmgate-report", "json:report.json").expect(1, passed=2, failed=2)
    done.says(
        "4 gates: 1 pass, 1 fail, 2 inconclusive",
        "the build does not fail",
        "the build fails",
        "accuracy 0 [0, 0.161125] of 'counter' on 'wrong'",
        "few rows: 4 gates have fewer than 30 (min 20)",
    )
    gates = {gate["test"].rpartition("::")[2]: gate for gate in quiz.report()["gates"]}
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


OF_SURE = "ppl_max('sure', 'words', {!r}, confidence=0.95)"


def bounds(quiz: Project) -> tuple[float, float, float]:
    """Bounds of the perplexity of `sure`, with its value between them."""
    quiz.write(test_gate=marked(gate=OF_SURE.format(1e300))).run("--lmgate-report", "json:report.json").expect(0)
    (gate,) = quiz.report()["gates"]
    assert gate["bounded"]["clusters"] == 24
    assert gate["bounded"]["clustered_by"] == "blocks"
    return gate["bounded"]["lower"], gate["value"], gate["bounded"]["upper"]
