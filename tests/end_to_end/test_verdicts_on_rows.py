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


def regression(dataset: str, against: str) -> str:
    more = f', against="{against}", same={against in ("counter", "copy")}' if against else ""
    return marked(gate=f'no_regression("accuracy", "counter", "{dataset}", 0.05{more})')


def only_comparison(quiz: Project) -> tuple[str, dict]:
    (gate,) = quiz.report()["gates"]
    return gate["verdict"], gate["comparison"]


def test_two_models_with_equal_answers_on_20_rows_are_inconclusive_and_52_rows_settle_it(quiz: Project) -> None:
    settles = "it needs 52 rows without a change to show less than 0.05"
    quiz.write(test_gate=regression("right", "even"))
    done = quiz.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    done.says("1 gate: 1 inconclusive", settles, "few rows: 1 gate has fewer than 30 (min 20)")
    verdict, found = only_comparison(quiz)
    z2 = scipy.stats.norm.ppf(0.95) ** 2
    assert (verdict, found["bounds"], found["clustered_by"], found["needed"]) == ("inconclusive", "tango", "rows", 52)
    assert (found["degradation"], found["upper"]) == (0, pytest.approx(z2 / (20 + z2)))
    done = quiz.run("--lmgate-strict").expect(1, failed=1)
    done.says(settles, "noise      from 20 rows, by Tango's test", "--lmgate-strict fails the build")

    quiz.write(test_gate=regression("many", "even"))
    done = quiz.run("--lmgate-strict", "--lmgate-report", "json:report.json").expect(0, passed=1)
    done.says("1 gate: 1 pass").is_silent_on("few rows", "settle")
    assert only_comparison(quiz)[1]["upper"] <= 0.05


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


def test_a_perplexity_passes_fails_or_stays_open_by_its_bounds(measured: Project) -> None:
    lower, value, upper = bounds(measured)
    assert lower < value < upper
    cases = {
        upper * 1.001: ("pass", 0, "the value is within the limit with 95% confidence"),
        (value + upper) / 2: ("inconclusive", 0, "the build does not fail"),
        (value + lower) / 2: ("inconclusive", 1, "the build fails"),
        lower * 0.999: ("fail", 1, "the value is beyond the limit with 95% confidence"),
    }
    for limit, (verdict, code, says) in cases.items():
        done = measured.write(test_gate=marked(gate=OF_SURE.format(limit))).run("--lmgate-report", "json:report.json")
        done.expect(code).says(f"1 gate: 1 {verdict}")
        if verdict != "pass":
            done.says(says, "24 blocks of text, by ").is_silent_on("few rows")
        assert measured.report()["gates"][0]["verdict"] == verdict
        measured.run("--lmgate-strict").expect(0 if verdict == "pass" else 1)
