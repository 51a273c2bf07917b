"""Multiple choice by likelihood: values by hand, three variants from one measurement, and what cannot be answered."""

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CONTEXT, write_rows

# `counter` takes the word that is next: right three times of four. The last row's question is empty.
QUIZ = [
    {"q": "one", "options": ["two", "five"], "label": 0, "a": "two", "b": "five", "topic": "numbers"},
    {"q": "two", "options": ["one", "five", "three"], "label": "three", "a": "one", "b": "three", "topic": "numbers"},
    {"q": "류현진이", "options": ["던졌다.", "공을"], "label": "1", "a": "던졌다.", "b": "공을", "topic": "sport"},
    {"q": "今天", "options": ["天气", "好"], "label": 1, "a": "天气", "b": "好", "topic": "weather"},
]


@pytest.fixture
def project(writing: Project) -> Project:
    made = writing
    write_rows(made, "quiz", QUIZ)
    write_rows(made, "targets", [{"q": "one", "t": "two three"}, {"q": "six", "t": "five"}])
    write_rows(
        made, "pronouns", [{"q": ["one", "five"], "t": "two", "a": 0}, {"q": ["one", "two"], "t": "three", "a": [1]}]
    )
    # Right three times of four in one topic, and once of two in the other: 0.625.
    write_rows(made, "topics", [*({**row, "topic": "x"} for row in QUIZ), *({**QUIZ[0], "label": at} for at in (0, 1))])
    entries = {
        "quiz": "path: quiz.jsonl, question: q, choices: options, answer: label",
        "greedy": "path: targets.jsonl, question: q, target: t",
        "pronouns": "path: pronouns.jsonl, question: q, target: t, answer: a",
        "averaged": "path: topics.jsonl, question: q, choices: options, answer: label, average_by: topic",
    }
    return made.add("datasets", **entries).write(conftest=COUNT_MEASUREMENTS)


def test_what_cannot_be_answered_is_one_clear_error_and_fails_the_build(project: Project) -> None:
    asked = {"options": ["two", "five"], "label": 0, "t": "two"}
    for name, words in {"long": CONTEXT + 1, "shown": 2}.items():
        write_rows(project, name, [{**asked, "q": "one"}, {**asked, "q": " ".join(["one"] * words)}])
    # The example, its answer and the question have as many words.
    write_rows(project, "shot", [{**asked, "q": " ".join(["one"] * (CONTEXT - 2))}])
    quiz = "question: q, choices: options, answer: label"
    project.add(
        "datasets",
        long=f"path: long.jsonl, {quiz}",
        cut=f"path: long.jsonl, {quiz}, truncate: left",
        long_target="path: long.jsonl, question: q, target: t",
        long_shot=f"path: shown.jsonl, {quiz}, examples: shot.jsonl",
    )
    project.write(
        test_bad="import pytest_lmgate as lmgate\n"
        + marked(
            unknown_words='accuracy_min("counter", lmgate.fixture("rows"), 0.1)',
            masked='accuracy_min("masked", "quiz", 0.1)',
            encoder_decoder='accuracy_min("translator", "quiz", 0.1)',
            long='accuracy_min("counter", "long", 0.1)',
            long_target='target_ppl_max("counter", "long_target", 9)',
            long_shot='accuracy_min("counter", "long_shot", 0.1)',
            cut='accuracy_min("counter", "long", 1, truncate="left")',
            cut_too='accuracy_min("counter", "cut", 1)',
        )
        + """
@pytest.fixture
def rows():
    row = {"question": "one", "choices": ["two", "three"], "answer": 0}
    return [row, {**row, "choices": ["eleven", "twelve"]}]
"""
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, error=6, passed=2)
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    outcome.says("row 1: the choices 'eleven' and 'twelve'", "'masked'", "'translator'")
    most = f"tokens, but the model 'counter' reads {CONTEXT} "
    for name, scored in {"long": "choice", "long_target": "target", "long_shot": "choice"}.items():
        outcome.says(f"dataset '{name}': row 1: question and {scored} have {CONTEXT + 2} {most}")
    assert [gate["verdict"] for gate in project.report()["gates"]].count("error") == 6
    assert len(list(project.cache.glob("choices/*/*.lmgate"))) == 1, "the two that are cut are one measurement"
    project.write(test_bad=marked(no_entry='accuracy_min("counter", "./quiz.jsonl", 0.1)'))
    project.run().expect(4).says("test_bad.py::test_no_entry", "'./quiz.jsonl'", "question:")


def test_targets_several_questions_and_averages_of_groups_are_gated(project: Project) -> None:
    project.write(
        test_targets="""
            import math
            import pytest

            @pytest.mark.accuracy_min("counter", "greedy", 0.5)
            @pytest.mark.accuracy_min("counter", "pronouns", 1)
            @pytest.mark.accuracy_min("counter", "averaged", 0.625)
            @pytest.mark.no_regression("accuracy", "counter", "averaged", "50%", against="even")
            def test_passes(): pass

            @pytest.mark.accuracy_min("counter", "averaged", 0.6251)
            def test_fails(): pass

            @pytest.mark.ppl_max("counter", "greedy", 9)
            def test_no_text(): pass

            @pytest.mark.target_ppl_max("counter", "quiz", 9)
            def test_choices(): pass

            @pytest.mark.accuracy_min("counter", "greedy", 0.5, variant="acc_norm")
            def test_no_variant(): pass

            def test_scores(accuracy_of, target_ppl_of):
                share, perplexity = accuracy_of("counter", "greedy"), target_ppl_of("counter", "greedy")
                assert share == 0.5 and share.cached and perplexity.cached
                assert (share.n, perplexity.n, perplexity.unit, perplexity.direction) == (2, 2, "row", "lower")
                assert perplexity == pytest.approx(math.exp(perplexity.details["nll_sum"] / 2))
                assert "target:perplexity per row|" in perplexity.signature
                assert "|average_by:topic|" in accuracy_of("counter", "averaged").signature
        """
    )
    done = project.run().expect(1, passed=2, failed=1, error=3)
    done.says("below the limit 0.6251", "target_ppl needs a dataset with question: and target:")
    done.says("variant: 'acc_norm' chooses between choices, but the dataset 'greedy' has one target a row")
    project.write(test_targets=marked(no_average="ppl_max('counter', 'averaged', 9)")).run().expect(4).says(
        "dataset 'averaged': average_by: "
    )
