"""Multiple choice by likelihood: values by hand, three variants from one measurement, and what cannot be answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.end_to_end.writers import CONTEXT, models_that_write, write_rows, writing_project

# `counter` takes the word that is next: right three times of four. The last row's question is empty.
QUIZ = [
    {"q": "one", "options": ["two", "five"], "label": 0, "a": "two", "b": "five", "topic": "numbers"},
    {"q": "two", "options": ["one", "five", "three"], "label": "three", "a": "one", "b": "three", "topic": "numbers"},
    {"q": "류현진이", "options": ["던졌다.", "공을"], "label": "1", "a": "던졌다.", "b": "공을", "topic": "sport"},
    {"q": "今天", "options": ["天气", "好"], "label": 1, "a": "天气", "b": "好", "topic": "weather"},
]
# To `even` these are equally likely. The second has the most characters, the third the most bytes.
TIES = [{"q": "one", "options": ["two", "thirteen", "류현진이"], "label": label} for label in (0, 0, 0, 1, 1, 2)]


@pytest.fixture
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models_that_write(tmp_path_factory.getbasetemp())


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    write_rows(made, "quiz", QUIZ)
    write_rows(made, "ties", TIES)
    write_rows(made, "shots", [{"q": "six", "options": ["seven", "one"], "label": 0}])
    yaml = (made.folder / "lmgate.yaml").read_text()
    entries = {
        "quiz": "path: quiz.jsonl, question: q, choices: options, answer: label",
        "grouped": "path: quiz.jsonl, question: q, choices: options, answer: label, cluster: topic",
        "columns": 'path: quiz.jsonl, question: "seven {q}", choices: [a, b], answer: a',
        "shown": "path: quiz.jsonl, question: q, choices: options, answer: label, examples: shots.jsonl",
        "told": "path: quiz.jsonl, question: q, choices: options, answer: label, system: one",
        "own": "path: quiz.jsonl, question: q, choices: options, answer: label, examples: ./quiz.jsonl",
        "chat": "path: quiz.jsonl, question: q, choices: options, answer: label, chat: true",
        "ties": "path: ties.jsonl, question: q, choices: options, answer: label",
    }
    return made.write(
        lmgate_yaml=yaml + "".join(f"  {name}: {{{entry}}}\n" for name, entry in entries.items()),
        conftest=COUNT_MEASUREMENTS,
    )


def test_accuracy_is_the_share_of_rows_whose_right_choice_is_the_most_likely(project: Project) -> None:
    project.write(
        test_quiz="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.accuracy_min("counter", "quiz", 0.75)
            @pytest.mark.accuracy_min("counter", "quiz", 0.75, variant="acc_norm")
            def test_passes(): pass

            @pytest.mark.accuracy_min("counter", "quiz", 0.7500001)
            def test_fails(): pass

            @pytest.mark.accuracy_min("even", "ties", 0.5)
            @pytest.mark.accuracy_min("even", "ties", 0.3333, variant="acc_norm")
            @pytest.mark.accuracy_min("even", "ties", 0.1666, variant="acc_bytes")
            def test_ties_go_to_the_lowest_index(): pass

            def test_scores(accuracy_of):
                score = accuracy_of("even", "ties")
                assert score.cached
                assert score.details == pytest.approx({"acc": 3 / 6, "acc_norm": 2 / 6, "acc_bytes": 1 / 6})
                assert accuracy_of("even", "ties", variant="acc_bytes") == pytest.approx(1 / 6)
                assert (score.n, score.unit, score.direction) == (6, "row", "higher")
                assert accuracy_of("counter", "columns") == 0.5, "the first column where it is right"
                quiz, grouped = accuracy_of("counter", "quiz"), accuracy_of("counter", "grouped")
                assert grouped == quiz == 0.75 and grouped.fingerprint == quiz.fingerprint
                assert grouped.stderr != quiz.stderr
                assert f"variant:acc|max_length:{CONTEXT}|delimiter:' '|" in quiz.signature

            def test_rows_in_memory(accuracy_of):
                rows = [
                    {"question": "", "choices": ["one", "two"], "answer": 0},
                    {"question": "two", "choices": ("one", "three"), "answer": 1},
                ]
                score = accuracy_of("counter", rows)
                assert score == 1 and not score.cached, "the first word of a text is a tie, which the lowest index wins"
                for row in rows:
                    row["answer"] = 1 - row["answer"]
                score = accuracy_of("counter", rows)
                assert score == 0 and score.cached, "which answer is right is not asked of the model"
                rows[1]["choices"] = ("one", "four")
                assert not accuracy_of("counter", rows).cached
        """.replace("{CONTEXT}", str(CONTEXT))
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, passed=4, failed=1)
    outcome.says(
        "accuracy_min: accuracy 0.75 ",
        "of 'counter' on 'quiz' is below the limit 0.7500001",
        "accuracy_min:acc_norm[counter-quiz]",
        "accuracy_min:acc_bytes[even-ties]",
        "4 rows, standard error",
    )
    assert [(gate["value"], gate["verdict"]) for gate in project.report()["gates"]] == [
        (0.75, "pass"), (0.75, "pass"), (0.75, "fail"),
        (0.5, "pass"), (pytest.approx(1 / 3), "pass"), (pytest.approx(1 / 6), "pass"),
    ]  # fmt: skip
    assert project.measured == ["counter", "even", "counter", "counter", "counter"], (
        "quiz, ties, columns, and two in memory"
    )
    again = project.run("-n", "2", "--lmgate-explain-cache", "-k", "not test_scores and not memory")
    again.expect(1, passed=2, failed=1)
    assert again.out.count(": hit\n") == 6
    assert len(project.measured) == 5


def test_examples_chat_and_system_text_are_read_before_each_question(project: Project, models: Path) -> None:
    # `chatty` counts on from the last word that it reads, which is the template's.
    chatty = project.model("chatty", models / "counter")
    (chatty / "chat_template.jinja").write_text("{{ messages[-1].content }} one ")
    project.write(
        test_shown="""
            import pytest

            def test_shown(accuracy_of):
                plain, others = accuracy_of("counter", "quiz"), []
                for dataset in ("shown", "told"):
                    score = accuracy_of("counter", dataset)
                    assert score.fingerprint not in (plain.fingerprint, *others) and not score.cached
                    assert score == 0.75, "it looks at one word only"
                    others.append(score.fingerprint)
                assert accuracy_of("./chatty", "quiz") == 0.75 and accuracy_of("./chatty", "chat") == 0.25

            @pytest.mark.accuracy_min("counter", "chat", 0.1)
            def test_no_template(): pass

            @pytest.mark.accuracy_min("counter", "own", 0.1)
            def test_own_answers(): pass
        """
    )
    done = project.run().expect(1, passed=1, error=2)
    done.says("model 'counter': chat: true, but its tokenizer has no chat template")
    done.says(
        "datasets.own.examples: ", "quiz.jsonl is the dataset's own file: each row would be shown with its answer"
    )


def test_columns_may_have_any_name_and_csv_any_answer(project: Project) -> None:
    write_rows(project, "named", [{"q:1": row["q"], "{c}": row["options"], "r!": row["label"]} for row in QUIZ])
    write_rows(project, "chains", [{"src:ko": "six", "ref:en": "seven"}])
    project.write(
        lmgate_yaml=(project.folder / "lmgate.yaml").read_text()
        + """
          named: {path: named.jsonl, question: "q:1", choices: "{c}", answer: "r!"}
          colon: {path: chains.jsonl, source: "src:ko", references: "ref:en"}
          texts: {path: texts.csv, question: q, choices: [a, b, c], answer: right}
          both: {path: both.csv, question: q, choices: [a, b, c], answer: right}
        """.replace("\n          ", "\n  "),
        texts_csv="q,a,b,c,right\none,five,2,two,two\none,2,six,two,2\n",
        both_csv="q,a,b,c,right\none,1,2,two,1\n",
        test_names="""
            def test_named(accuracy_of, exact_of):
                assert accuracy_of("counter", "named") == 0.75
                assert exact_of("counter", "colon") == 1

            def test_texts(accuracy_of):
                assert accuracy_of("counter", "texts") == 0.5, "the second answer is the text 2, as the first is one"

            def test_both(accuracy_of):
                accuracy_of("counter", "both")
        """,
    )
    outcome = project.run().expect(1, passed=2, failed=1).is_silent_on("Traceback", "/pytest_lmgate/")
    outcome.says(
        "dataset 'both': row 0: answer: '1' is the text of choice 0 or the index of choice 1; no other row "
        "decides: write indexes as numbers, in .jsonl or .parquet"
    )


CASES = {
    "one_choice": (
        {"choices": ["two"]},
        "row 1: choices: expected two or more, got 1: nothing could be chosen wrongly",
    ),
    "no_choice": ({"choices": []}, "row 1: choices: expected two or more, got 0"),
    "text": ({"choices": "two"}, "row 1: choices: expected a list of texts, got 'two'"),
    "number": ({"choices": ["two", 3]}, "row 1: choices: expected a list of texts, got ['two', 3]"),
    "empty": ({"choices": ["two", ""]}, "row 1: choices: expected a list of texts"),
    "twice": ({"choices": ["two", "two"]}, "row 1: choices: 'two' is there twice: no model could tell them apart"),
    "unknown": (
        {"choices": ["eleven", "twelve"]},
        "row 1: the choices 'eleven' and 'twelve' are the same tokens to the model 'counter'",
    ),
    "null": ({"choices": None}, "row 1: choices: column 'choices' is null"),
    "beyond": ({"answer": 2}, "row 1: answer: expected an index from 0 to 1 or the text of a choice, got 2"),
    "negative": ({"answer": -1}, "row 1: answer: expected an index from 0 to 1 or the text of a choice, got -1"),
    "other": ({"answer": "four"}, "row 1: answer: expected an index from 0 to 1 or the text of a choice, got 'four'"),
    "letter": (
        {"answer": "b"},
        "got 'b'; letters are not counted: for b write 1, the index from 0, or the text 'three'",
    ),
    "no_letter": ({"answer": "C"}, "row 1: answer: expected an index from 0 to 1 or the text of a choice, got 'C'\n"),
    "true": ({"answer": True}, "row 1: answer: expected an index from 0 to 1 or the text of a choice, got True"),
    "long": (
        {"choices": ["two", "two " * CONTEXT + "two"]},
        "row 1: a choice of 161 tokens is longer than the context",
    ),
}


def test_what_cannot_be_answered_is_one_clear_error_and_fails_the_build(project: Project) -> None:
    good = {"question": "one", "choices": ["two", "three"], "answer": 0}
    fixtures = [
        f"@pytest.fixture\ndef {name}(): return {[good, {**good, **change}]!r}" for name, (change, _) in CASES.items()
    ]
    gates = [
        f"@pytest.mark.accuracy_min('counter', lmgate.fixture({name!r}), 0.1)\ndef test_{name}(): pass"
        for name in CASES
    ]
    project.write(
        test_bad="\n\n".join(["import pytest\nimport pytest_lmgate as lmgate", *fixtures, *gates]),
        test_other="""
            import pytest

            @pytest.mark.accuracy_min("counter", "chains", 0.1)
            def test_no_question(): pass

            @pytest.mark.accuracy_min("masked", "quiz", 0.1)
            def test_masked(): pass

            @pytest.mark.accuracy_min("translator", "quiz", 0.1)
            def test_encoder_decoder(): pass

            @pytest.mark.accuracy_min("counter", "./quiz.jsonl", 0.1)
            def test_no_entry(): pass

            @pytest.mark.accuracy_min("counter", "unknown", 0.1)
            def test_unknown_field(): pass
        """,
        lmgate_yaml=(project.folder / "lmgate.yaml").read_text()
        + '  unknown: {path: quiz.jsonl, question: "seven {optoins}", choices: options, answer: label}\n',
    )
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error").expect(1, error=len(CASES) + 5)
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    sentences = {name: sentence for name, (_, sentence) in CASES.items()} | {
        "no_question": "dataset 'chains': accuracy needs question:",
        "no_entry": "dataset './quiz.jsonl': accuracy needs question:",
        "unknown_field": "row 0: question: no column 'optoins' (did you mean 'options'?)",
        "masked": "accuracy is undefined for the masked model 'masked' (architecture BertForMaskedLM)",
        "encoder_decoder": "accuracy is undefined for the encoder-decoder model 'translator'",
    }
    for name, sentence in sentences.items():
        assert sentence in sections[name], f"{name}: expected {sentence!r} in\n{sections[name]}"
    assert {gate["verdict"] for gate in project.report()["gates"]} == {"error"}
    assert not list(project.cache.glob("choices/*/*.lmgate"))


def test_wrong_arguments_are_named_at_collection(project: Project) -> None:
    project.write(
        test_wrong="""
            import pytest

            @pytest.mark.accuracy_min("counter", "quiz", 75)
            def test_percent(): pass

            @pytest.mark.accuracy_min("counter", "quiz", 0.5, variant="acc_nrom")
            def test_variant(): pass

            @pytest.mark.accuracy_min("counter", "quiz", 0.5, max_new_tokens=3)
            def test_argument(): pass
        """
    )
    outcome = project.run().expect(4).is_silent_on("Traceback", "INTERNALERROR")
    outcome.says("test_percent: @pytest.mark.accuracy_min: limit: accuracy_min is on a scale from 0 to 1, got 75")
    outcome.says("got 'acc_nrom' (did you mean 'acc_norm'?)", "max_new_tokens: unknown argument")
    project.write(lmgate_yaml="datasets: {quiz: {path: quiz.jsonl, choices: options}}")
    project.run().expect(4).says("a multiple-choice dataset needs question: and answer: beside choices:")
