"""Baselines of schema 1 stay readable: judged in their own clusters by the rule of their time, and the summary says so.

The entries are as earlier versions wrote them, with clusters by hand: a fair die's negative log-likelihood is log 60 a
token, and `sliding` with windows of 32 and a step of 16 scores 31 targets and then 16 each.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.end_to_end.projects import FACES, Project
from tests.end_to_end.test_no_regression import AGAINST_BASELINE, ID, baseline, other_model
from tests.end_to_end.writers import write_rows, writing_project

SAYS = "an earlier version wrote the baseline and kept less: it is judged by Student's bounds, as it was then"
ROWS = [" ".join(f"w{(7 * i * j) % 57}" for j in range(1, length)) for i, length in enumerate((121, 9, 14, 12), 1)]
BY_DOCUMENT = f"""
    import pytest
    import pytest_lmgate as lmgate

    @pytest.fixture(scope="session")
    def rows(): return {ROWS!r}

    @pytest.mark.no_regression("ppl", "die", lmgate.fixture("rows"), "1%", protocol="document")
    def test_gate(): pass
"""


def made_old(project: Project, clusters: list[int] | None = None) -> None:
    """Turn the baseline into what an earlier version wrote; with `clusters`, of so many targets each."""
    file = baseline(project)
    data = json.loads(file.read_text(encoding="utf-8"))
    assert data["schema"] == 2
    data["schema"] = 1
    for entry in data["gates"].values():
        del entry["content"], entry["outcomes"]
        if clusters is not None:
            assert sum(clusters) == entry["n"] == sum(row[0] for row in entry["clusters"])
            entry["clusters"] = [[count, count * math.log(FACES)] for count in clusters]
            entry["value"] = float(FACES)
    file.write_text(json.dumps(data), encoding="utf-8")


def comparison(project: Project) -> dict:
    (gate,) = project.report()["gates"]
    return gate["comparison"]


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_perplexity_with_windows_as_clusters_is_judged_as_then(measured: Project, workers: tuple[str, ...]) -> None:
    measured.write(test_gate=AGAINST_BASELINE).run("--lmgate-update").expect(0)
    windows = [31, *[16] * 23]
    made_old(measured, windows)

    done = measured.run("--lmgate-report", "json:report.json", *workers).expect(0, passed=1)

    assert done.text.count(SAYS) == 1
    assert "1 gate: " + SAYS in done.text
    found = comparison(measured)
    assert (found["clusters"], found["bounds"]) == (24, "student")
    assert found["degradation"] == pytest.approx(0, abs=1e-6)
    other_model(measured, "sure")
    measured.run(*workers).expect(1, failed=1).says("FAIL at a tolerance of 1%", f"note       {SAYS}")
    # Measured anew it is judged by the new rule, and nothing is said.
    done = measured.run("--lmgate-update").expect(0).says(f"{ID}: 60 -> ")
    assert len(json.loads(baseline(measured).read_text(encoding="utf-8"))["gates"][ID]["clusters"]) == 20
    measured.run(*workers).expect(0, passed=1).is_silent_on("earlier version")


def test_documents_of_which_a_long_one_was_cut_are_paired_as_then(project: Project) -> None:
    project.write(test_gate=BY_DOCUMENT).run("--lmgate-update").expect(0)
    (entry,) = json.loads(baseline(project).read_text(encoding="utf-8"))["gates"].values()
    assert [row[0] for row in entry["clusters"]] == [119, 7, 12, 10], "rows are not cut"
    # More than a quarter of the targets are in the first row, which was cut into its windows: 31, five of 16 and 8.
    made_old(project, [31, *[16] * 5, 8, 7, 12, 10])

    done = project.run("--lmgate-report", "json:report.json").expect(0, passed=1)

    assert done.text.count(SAYS) == 1
    assert (comparison(project)["clusters"], comparison(project)["bounds"]) == (10, "student")


def test_an_old_entry_in_todays_clusters_needs_no_note(project: Project) -> None:
    project.write(test_gate=BY_DOCUMENT).run("--lmgate-update").expect(0)
    made_old(project)
    project.run("--lmgate-report", "json:report.json").expect(0, passed=1).is_silent_on("earlier version")
    assert comparison(project)["clusters"] == 4


def test_clusters_that_no_version_made_are_an_error(measured: Project) -> None:
    measured.write(test_gate=AGAINST_BASELINE).run("--lmgate-update").expect(0)
    made_old(measured, [100, 299])
    measured.run().expect(1, error=1).says("expected the same clusters of targets or rows on both sides")


@pytest.fixture
def quiz(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An accuracy of 40 rows, of which `counter` has 30 right."""
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    text = (made.folder / "lmgate.yaml").read_text()
    rows = [{"q": "one", "options": ["two", "six"], "answer": int(index % 4 == 3)} for index in range(40)]
    write_rows(made, "quiz", rows)
    return made.write(
        lmgate_yaml=text + "  quiz: {path: quiz.jsonl, question: q, choices: options, answer: answer}\n",
        test_gate="""
            import pytest

            @pytest.mark.no_regression("accuracy", "counter", "quiz", 0.05)
            def test_gate(): pass
        """,
    )


def test_an_accuracy_without_the_outcome_of_each_row_is_judged_as_then(quiz: Project) -> None:
    quiz.run("--lmgate-update").expect(0)
    entry = next(iter(json.loads(baseline(quiz).read_text(encoding="utf-8"))["gates"].values()))
    assert entry["outcomes"] == "eeeeeeeeee"
    made_old(quiz)
    done = quiz.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    assert done.text.count(SAYS) == 1
    assert comparison(quiz)["bounds"] == "student"


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ("eeeeeeeeef", "they do not add up to the clusters"),
        ("eeeeeeeee7", "they do not add up to the clusters"),
        ("eeeeeeee", "expected a bit for each of 40 rows, got 32"),
        ("xeeeeeeeee", "expected hexadecimal digits"),
    ],
)
def test_outcomes_that_were_edited_by_hand_are_an_error(quiz: Project, outcomes: str, says: str) -> None:
    quiz.run("--lmgate-update").expect(0)
    text = baseline(quiz).read_text(encoding="utf-8")
    baseline(quiz).write_text(text.replace("eeeeeeeeee", outcomes), encoding="utf-8")
    quiz.run().expect(1, error=1).says(f"outcomes: {says}", "lmgate-baseline.json")
