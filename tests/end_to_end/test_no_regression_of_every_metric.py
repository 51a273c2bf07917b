"""``no_regression`` of every metric there is, in real processes, against another model and against the baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.projects import Project
from tests.end_to_end.writers import write_rows, writing_project

QUIZ = [{"q": q, "options": list(o), "answer": 0} for q, o in [
    ("one", ["two", "six"]), ("two", ["three", "one"]), ("three", ["four", "two"]), ("four", ["five", "three"]),
]]  # fmt: skip
GATES = {
    "bleu": '"bleu", MODEL, "chains", "1%", max_ngram_order=2',
    "chrf": '"chrf", MODEL, "chains", "1%"',
    "ter": '"ter", MODEL, "chains", 1.0',
    "rouge": '"rouge", MODEL, "chains", "1%", variant="rouge1"',
    "exact": '"exact", MODEL, "chains", 0.01',
    "accuracy": '"accuracy", MODEL, "quiz", "1%", variant="acc_norm"',
    "length": '"length", MODEL, "chains", 0.1',
    "median": '"median", MODEL, "chains", 0.1',
}
"""Of each metric what stands in the marker; "length" and "median" are a user's, a mean and none."""
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
TEST = "import pytest\n\n" + "".join(
    f"@pytest.mark.no_regression({arguments})\ndef test_{name}(): pass\n\n" for name, arguments in GATES.items()
)


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    text = (made.folder / "lmgate.yaml").read_text()
    quiz = "  quiz: {path: quiz.jsonl, question: q, choices: options, answer: answer}\n"
    write_rows(made, "quiz", QUIZ)
    return made.write(lmgate_yaml=text + quiz, conftest=USERS_METRICS)


def test_the_same_model_passes_and_a_worse_one_fails_by_every_metric(project: Project) -> None:
    worse = TEST.replace("MODEL", '"backward"').replace(")\ndef", ', against="counter")\ndef')
    same = TEST.replace("MODEL", '"counter"').replace(")\ndef", ', against="counter")\ndef')
    project.write(test_same=same, test_worse=worse)
    done = project.run("--lmgate-report", "json:report.json").expect(1, passed=len(GATES), failed=len(GATES))
    done.says("bootstrap  p = ", "worst rows", "of the model 'counter'")
    for gate in project.report()["gates"]:
        found = gate["comparison"]
        if gate["model"] == "counter":
            assert gate["verdict"] == "pass"
            assert found["degradation"] == 0
        else:
            assert found["degradation"] > found["size"]
            assert gate["verdict"] in ("fail", "inconclusive")  # four rows are few
        closed_form = gate["metric"] not in ("bleu", "chrf", "ter", "median")
        assert (found["p_value"] is None) == (closed_form or found["lower"] == found["upper"])


def test_every_metric_goes_by_the_baseline(project: Project) -> None:
    project.write(test_gate=TEST.replace("MODEL", '"counter"'))
    project.run("--lmgate-update", "-n", "2").expect(0, passed=len(GATES)).says(f"{len(GATES)} new")
    project.run("--lmgate-strict").expect(0, passed=len(GATES)).says(f"{len(GATES)} gates: {len(GATES)} pass")
    entries = json.loads((project.folder / "lmgate-baseline.json").read_text(encoding="utf-8"))["gates"]
    assert {entry["n"] for entry in entries.values()} == {9, 4}
    text = (project.folder / "lmgate.yaml").read_text()
    (project.folder / "lmgate.yaml").write_text(text.replace("/counter}", "/backward}"), encoding="utf-8")
    project.run().expect(1, failed=len(GATES)).says("of the baseline of")


def test_a_function_and_a_masked_model_go_by_the_baseline(project: Project) -> None:
    project.write(
        conftest="""
            import os
            import pytest

            @pytest.fixture
            def system():
                return lambda prompts: [os.environ["SAYS"] for _ in prompts]
        """,
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.no_regression("chrf", lmgate.fixture("system"), "chains", "1%")
            def test_function(): pass

            @pytest.mark.no_regression("pppl", "masked", "text", "1%")
            def test_masked(): pass
        """,
        lmgate_yaml=(project.folder / "lmgate.yaml").read_text() + "  text: {path: text.txt, lines: true}\n",
        text_txt="one two three\nfour five\nsix seven\n",
    )
    project.run("--lmgate-update", env={"SAYS": "two three"}).expect(0, passed=2)
    project.run(env={"SAYS": "two three"}).expect(0, passed=2)
    project.run(env={"SAYS": "nothing"}).expect(1, passed=1, failed=1).says("chrF")


def test_a_baseline_of_nothing_is_not_written_for_a_tolerance_in_percent(project: Project) -> None:
    project.write(
        conftest="""
            import pytest

            @pytest.fixture
            def silent():
                return lambda prompts: [""] * len(prompts)
        """,
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.no_regression("bleu", lmgate.fixture("silent"), "chains", "10%")
            def test_percent(): pass

            @pytest.mark.no_regression("bleu", lmgate.fixture("silent"), "chains", 10)
            def test_points(): pass
        """,
    )
    project.run("--lmgate-update").expect(1, passed=1, error=1).says(
        "a tolerance in percent needs a baseline above 0, got 0", "1 new"
    )


def test_another_version_of_a_users_metric_is_another_metric(project: Project) -> None:
    metric = """
        from pytest_lmgate import TextMetric

        def words(predictions, references, rows):
            return [[FACTOR * len(text.split()), 1] for text in predictions]

        def pytest_lmgate_metrics(config):
            return [TextMetric("length", "higher", "length|version:FACTOR", words)]
    """
    test = TEST[TEST.index('@pytest.mark.no_regression("length') : TEST.index('@pytest.mark.no_regression("median')]
    project.write(test_gate="import pytest\n" + test.replace("MODEL", '"counter"'))
    project.write(conftest=metric.replace("FACTOR", "1")).run("--lmgate-update").expect(0)
    project.run().expect(0, passed=1)
    project.write(conftest=metric.replace("FACTOR", "2"))
    project.run().expect(1, error=1).says("the metric differs, by its signature", "version:1", "version:2")


def test_another_tokenizer_of_the_same_name_is_another_protocol(project: Project) -> None:
    test = """
        import pytest

        @pytest.mark.no_regression("rouge", "counter", "chains", "1%", tokenizer=lambda text: text.split())
        def test_gate(): pass
    """
    project.write(test_gate=test).run("--lmgate-update").expect(0)
    project.run().expect(0, passed=1)
    project.write(test_gate=test.replace("text.split()", "list(text)"))
    project.run().expect(1, error=1).says("the protocol differs", "tokenizer:test_gate.<lambda>@")


def test_other_prompts_or_references_are_other_data(project: Project) -> None:
    project.write(test_gate=TEST.replace("MODEL", '"counter"'))
    project.run("--lmgate-update", "-k", "rouge or accuracy").expect(0)
    rows = (project.folder / "chains.jsonl").read_text(encoding="utf-8")
    (project.folder / "chains.jsonl").write_text(rows.replace("seven", "eight"), encoding="utf-8")
    write_rows(project, "quiz", [{**row, "answer": 1} for row in QUIZ])
    project.run("-k", "rouge or accuracy").expect(1, error=2).says(
        "the data differs: other rows, prompts, references or clusters"
    )


def test_other_clusters_and_other_columns_for_a_users_metric_are_other_data(project: Project) -> None:
    rows = [json.loads(line) for line in (project.folder / "chains.jsonl").read_text(encoding="utf-8").splitlines()]
    written = (project.folder / "lmgate.yaml").read_text(encoding="utf-8")
    project.write(
        test_gate=TEST.replace("MODEL", '"counter"'),
        lmgate_yaml=written.replace("references: rest", "references: rest, cluster: group").replace(
            "answer: answer", "answer: answer, cluster: group"
        ),
    )
    write_rows(project, "quiz", [{**row, "group": index // 2} for index, row in enumerate(QUIZ)])
    chosen = ("-k", "rouge or accuracy or length")
    project.run("--lmgate-update", *chosen).expect(0, passed=3)
    # As many clusters of the same sizes, of other rows.
    write_rows(project, "chains", [{**row, "group": index % 3} for index, row in enumerate(rows)])
    write_rows(project, "quiz", [{**row, "group": index % 2} for index, row in enumerate(QUIZ)])
    project.run(*chosen).expect(1, error=3).says("the data differs: other rows, prompts, references or clusters")
    write_rows(project, "chains", [{**row, "another": 1} for row in rows])
    project.run(*chosen).expect(1, passed=1, error=2).says("rouge", "could not be judged")
