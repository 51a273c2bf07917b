"""Rows become prompts, references and tags exactly as a dataset's entry says; an error names row and column."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.data.columns import TextTask, fill, make_task, read_tags
from pytest_lmgate.errors import DataError
from pytest_lmgate.settings.entries import DatasetSpec

ROWS = ({"q": "one?", "a": "1", "n": 3}, {"q": "two?", "a": ["2", "zwei"], "n": 4.5})


def task(rows: Any = ROWS, template: str | None = "{q}", references: Any = ("a",), **how: Any) -> TextTask:
    examples = how.pop("examples", ())
    spec = DatasetSpec(path=how.pop("path", "quiz.jsonl"), prompt=template, references=list(references), **how)
    return make_task(rows, spec, name="quiz", examples=examples)


@pytest.mark.parametrize("column", ["src:ko", "src!r", "{src}", "{", "}", "a.b[0]"])
def test_a_source_is_a_column_of_whatever_name(column: str) -> None:
    rows = [{column: "{x}", "a": "1"}, {column: 3, "a": "2"}]
    assert task(rows, template=None, source=column).prompts == ("{x}", "3")
    shown = task(rows, template=None, source=column, examples=[{column: "{x}", "a": "3"}])
    assert shown.prompts == ("{x}3\n\n{x}", "{x}3\n\n3")
    with pytest.raises(DataError, match=r"dataset 'quiz': row 0: source: no column 'q'; it has "):
        task(rows, template=None, source="q")


def test_examples_that_are_rows_of_the_dataset_are_an_error_that_names_them() -> None:
    rows = [{"q": "Capital of X?", "a": ["Aa", "A."]}, {"q": "1 - 1 =", "a": "0"}, {"q": "1 - 1 =", "a": "none"}]
    others = [{"q": "1 + 1 =", "a": "0"}, {"q": "1 - 1 =", "a": "nothing"}, {"q": "capital of Y?", "a": "Aa"}]
    assert len(task(rows, examples=others).prompts) == 3
    worked_out = {"q": "1 - 1 =", "a": "One less one is 0."}
    for example, place in (
        ({"a": "a", "q": " capital\tof X"}, 0),
        ({"q": "1 - 1 =", "a": "None."}, 2),
        (worked_out, 1),
    ):
        with pytest.raises(DataError, match=rf"'quiz': examples: .* got 1: example 3 is row {place} \(from 0\)"):
            task(rows, examples=[*others, example])


def test_fields_are_filled_from_the_row_and_everything_else_stays() -> None:
    made = task(template="  Q{{{n}}}: {q}\n{q}\tA:")
    assert made.prompts == ("  Q{3}: one?\none?\tA:", "  Q{4.5}: two?\ntwo?\tA:")
    assert (made.name, made.rows) == ("quiz", ROWS)


@given(st.text(), st.text())
def test_values_are_never_read_as_templates(before: str, value: str) -> None:
    template = before.replace("{", "{{").replace("}", "}}") + "{x}"
    assert fill(template, {"x": value}, "d", 0) == before + value


def test_references_are_a_text_or_a_list_of_one_or_more_columns() -> None:
    assert task().references == (("1",), ("2", "zwei"))
    both = [{"q": "?", "a": "x", "b": ["y", "z"]}]
    assert task(both, references=["b", "a"]).references == (("y", "z", "x"),)


def test_examples_stand_before_every_prompt_with_the_first_of_their_references() -> None:
    examples = [{"q": "three?", "a": ["3", "drei"]}, {"q": "four?", "a": "4"}]
    made = task(template="Q: {q}\nA: ", examples=examples)
    assert made.prompts[0] == "Q: three?\nA: 3\n\nQ: four?\nA: 4\n\nQ: one?\nA: "
    assert len(made.prompts) == len(made.references) == 2
    with_system = task(template="{q} ", examples=examples[1:], system="Count.")
    assert with_system.prompts[1] == "Count.\n\nfour? 4\n\ntwo? "


def test_a_chat_has_the_system_text_the_examples_as_turns_and_the_prompt() -> None:
    examples = [{"q": "three?", "a": "3"}]
    turns = (("system", "Count."), ("user", "three?"), ("assistant", "3"), ("user", "one?"))
    assert task(chat=True, system="Count.", examples=examples).prompts[0] == turns
    assert task(chat=True).prompts[0] == (("user", "one?"),)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"template": "{p}"}, "dataset 'quiz': row 0: prompt: no column 'p'; it has q, a, n"),
        ({"rows": [{"article": "x", "a": "1"}], "template": "{artcle}"}, r"'artcle' \(did you mean 'article'\?\); it"),
        ({"template": "{}"}, "row 0: prompt: no column ''"),
        ({"template": "{q"}, "prompt: expected '}' before end of string; write {{ and }} for braces in '{q'"),
        ({"template": "q}"}, "prompt: Single '}' encountered in format string; write"),
        ({"template": "{n:.2f}"}, "prompt: expected {column}, got a format in {n} of '{n:.2f}'"),
        ({"template": "{q!r}"}, "prompt: expected {column}, got a format in {q}"),
        ({"template": "{a}"}, "row 1: prompt: column 'a': expected text or a number, got list"),
        ({"references": ["b"]}, "row 0: references: no column 'b'"),
        ({"references": ["n"]}, "row 0: references: column 'n': expected text or a list of texts, got 3"),
        ({"rows": [{"q": "?", "a": ["x", 3]}]}, r"row 0: references: column 'a': expected text .* got \['x', 3\]"),
        ({"rows": [{"q": "?", "a": []}]}, "row 0: expected at least one reference, got none in a"),
        ({"rows": [{"q": "?", "a": None}]}, "row 0: expected at least one reference, got none in a"),
        (
            {"rows": [ROWS[0], {"q": "?", "a": " "}], "path": "a.csv"},
            "row 1: expected at least one reference, got none",
        ),
        (
            {"rows": [{"q": "?", "a": ""}, {"q": "!", "a": [" "]}]},
            "'quiz': every reference is empty, so .* its answers",
        ),
        ({"rows": [{"q": None, "a": "1"}]}, "row 0: prompt: column 'q' is null"),
        ({"rows": [ROWS[0], {"q": math.nan, "a": "1"}]}, "row 1: prompt: column 'q': expected text .* got NaN"),
        ({"rows": [ROWS[0], {"q": "a\ud83d", "a": "1"}]}, "row 1: prompt: column 'q': .* at character 1 is half of"),
        ({"examples": [{"q": "?", "a": "\udc00"}]}, r"'quiz \(examples\)': row 0: references: .* is half of a surr"),
        ({"rows": [{}]}, "row 0: prompt: no column 'q'; it has none"),
        ({"examples": [{"q": "?"}]}, r"dataset 'quiz \(examples\)': row 0: references: no column 'a'"),
    ],
)
def test_what_cannot_be_filled_in_names_row_and_column(how: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        task(**how)


def test_values_are_tags_as_they_are_written() -> None:
    rows = [{"language": "ko", "new": True, "year": 2020}, {"language": "en", "new": False, "year": 2021}]
    tags = {"language": ("ko", "en"), "new": ("True", "False"), "year": ("2020", "2021")}
    assert read_tags(rows, [*tags], "d") == tags


@pytest.mark.parametrize("written", [int, float, str])
def test_many_different_numbers_become_four_ranges_of_as_many_rows(written: type) -> None:
    rows = [{"length": written(each)} for each in range(1, 41)]
    found = read_tags(rows, ["length"], "d")["length"]
    assert {tag: found.count(tag) for tag in found} == dict.fromkeys(
        ["1 to 10", "11 to 20", "21 to 30", "31 to 40"], 10
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"lang": "ko"}, "row 1: tags: no column 'language'"),
        ({"language": None}, "row 1: tags: column 'language' is null"),
        ({"language": ["ko"]}, "row 1: tags: column 'language': expected text, a number, true or false, got list"),
        ("a text", "row 1: tags: expected a row with columns, got str"),
    ],
)
def test_a_row_without_its_tag_is_an_error(row: object, message: str) -> None:
    with pytest.raises(DataError, match="dataset 'd': ") as caught:
        read_tags([{"language": "ko"}, row], ["language"], "d")
    assert message in str(caught.value)
