"""Multiple choice by likelihood: values by hand, three variants from one measurement, and what cannot be answered."""

import pytest

from tests.end_to_end.projects import Project, marked
from tests.end_to_end.writers import CONTEXT, write_rows

ASKED = "question: q, choices: options, answer: label"
# `counter` takes the word that is next: right three times of four.
QUIZ = [
    {"q": "one", "options": ["two", "five"], "label": 0},
    {"q": "two", "options": ["one", "five", "three"], "label": "three"},
    {"q": "류현진이", "options": ["던졌다.", "공을"], "label": "1"},
    {"q": "今天", "options": ["天气", "好"], "label": 1},
]


@pytest.fixture
def project(writing: Project) -> Project:
    # Right three times of four in one topic, and once of two in the other: 0.625.
    topics = [*({**row, "topic": "x"} for row in QUIZ), *({**QUIZ[0], "label": at, "topic": "y"} for at in (0, 1))]
    pronouns = [{"q": ["one", "five"], "t": "two", "a": 0}, {"q": ["one", "two"], "t": "three", "a": [1]}]
    targets = [{"q": "one", "t": "two three"}, {"q": "six", "t": "five"}]
    for name, rows in {"quiz": QUIZ, "targets": targets, "pronouns": pronouns, "topics": topics}.items():
        write_rows(writing, name, rows)
    return writing.add(
        "datasets",
        quiz=f"path: quiz.jsonl, {ASKED}",
        greedy="path: targets.jsonl, question: q, target: t",
        pronouns="path: pronouns.jsonl, question: q, target: t, answer: a",
        averaged=f"path: topics.jsonl, {ASKED}, average_by: topic",
    )


def test_what_cannot_be_answered_is_one_clear_error_and_fails_the_build(project: Project) -> None:
    asked = {**QUIZ[0], "t": "two"}
    write_rows(project, "long", [asked, {**asked, "q": " ".join(["one"] * (CONTEXT + 1))}])
    write_rows(project, "unknown", [asked, {**asked, "options": ["eleven", "twelve"]}])
    project.add(
        "datasets",
        long=f"path: long.jsonl, {ASKED}",
        cut=f"path: long.jsonl, {ASKED}, truncate: left",
        long_target="path: long.jsonl, question: q, target: t",
        unknown=f"path: unknown.jsonl, {ASKED}",
    )
    wrong = {
        "unknown": ('accuracy_min("counter", "unknown", 0.1)', "row 1: the choices 'eleven' and 'twelve'"),
        "masked": ('accuracy_min("masked", "quiz", 0.1)', "'masked'"),
        "encoder_decoder": ('accuracy_min("translator", "quiz", 0.1)', "'translator'"),
        "long": ('accuracy_min("counter", "long", 0.1)', "'long': row 1: question and choice have"),
        "target": ('target_ppl_max("counter", "long_target", 9)', "'long_target': row 1: question and target have"),
    }
    gates = {name: gate for name, (gate, _) in wrong.items()}
    project.write(test_bad=marked(**gates, cut='accuracy_min("counter", "cut", 1)'))
    outcome = project.run("-W", "error").expect(1, error=len(wrong), passed=1)
    outcome.says(*(said for _, said in wrong.values())).is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    refused = {
        "no_entry": ('accuracy_min("counter", "./quiz.jsonl", 0.1)', "question:"),
        "variant": ("accuracy_min('counter', 'greedy', 0.5, variant='acc_norm')", "'greedy' has one target a row"),
        "average": ("ppl_max('counter', 'averaged', 9)", "dataset 'averaged': average_by: "),
    }
    project.write(test_bad=marked(**{name: gate for name, (gate, _) in refused.items()}))
    project.run(torch_free=True).expect(4).says(*(said for _, said in refused.values()))


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

            def test_scores(accuracy_of, target_ppl_of):
                share, perplexity = accuracy_of("counter", "greedy"), target_ppl_of("counter", "greedy")
                assert share == 0.5 and share.cached and perplexity.cached
                assert (share.n, perplexity.n, perplexity.unit, perplexity.direction) == (2, 2, "row", "lower")
                assert perplexity == pytest.approx(math.exp(perplexity.details["nll_sum"] / 2))
                assert "target:perplexity per row|" in perplexity.signature
                assert "|average_by:topic|" in accuracy_of("counter", "averaged").signature
        """
    )
    project.run().expect(1, passed=2, failed=1).says("below the limit 0.6251")
