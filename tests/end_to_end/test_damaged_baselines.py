"""Outcomes of rows in a baseline that were edited by hand are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project
from tests.end_to_end.test_no_regression import baseline
from tests.end_to_end.writers import write_rows, writing_project


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


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ("eeeeeeeeef", "they do not add up to the clusters"),
        ("eeeeeeeee7", "they do not add up to the clusters"),
        ("eeeeeeee", "expected a bit for each of 40 rows, got 32"),
        ("", "expected a bit for each of 40 rows, got 0"),
        ("xeeeeeeeee", "expected hexadecimal digits"),
    ],
)
def test_outcomes_that_were_edited_by_hand_are_an_error(quiz: Project, outcomes: str, says: str) -> None:
    quiz.run("--lmgate-update").expect(0)
    text = baseline(quiz).read_text(encoding="utf-8")
    baseline(quiz).write_text(text.replace("eeeeeeeeee", outcomes), encoding="utf-8")
    quiz.run().expect(1, error=1).says(f"outcomes: {says}", "lmgate-baseline.json")
