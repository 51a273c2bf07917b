"""Answers: every step equals the filter of lm-evaluation-harness that it is named after, to the character."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from pytest_lmgate.errors import ConfigError, DataError, MetricInputError
from pytest_lmgate.metrics.texts import exact, number_in, text_score
from pytest_lmgate.settings.extraction import (
    INVALID,
    PRESETS,
    Answer,
    MajorityVote,
    Map,
    Steps,
    TakeFirstK,
    extracted,
    read_extractions,
)

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis, which makes the texts, is not installed")
st = hypothesis.strategies

# Texts with all that the patterns look for: numbers, letters, brackets, line breaks, other scripts.
TEXTS = st.text(st.sampled_from("AB(): #-1 2.,$\n٣Éßx'答{}\\"), max_size=24) | st.sampled_from(
    ["#### 1,234.", "The answer is (B).", "A: blue whale", "blue, blue whale", "", " ", "$", "#### ", "$18.00.", "(C)"]
)
PATTERNS = st.sampled_from(
    [
        r"#### (\-?[0-9\.\,]+)",
        r"(-?[$0-9.,]{2,})|(-?[0-9]+)",
        r"(\([A-Z]\))",
        r"((?<=The answer is )(.*)(?=.)|(?<=the answer is )(.*)(?=.))",
        r"[0-9]*",
        r"(x?)(y?)",
        r"\s+",
        r"answer is \(?([ABCDEFGHIJ])\)?",
    ]
)


def steps_of(*written: Any) -> Steps:
    return read_extractions(list(written))[""]


def by_the_harness(name: str, texts: Sequence[str], doc: dict[str, Any] | None = None, **how: Any) -> list[Any]:
    """Return what the harness's own filter makes of the texts of one row."""
    registry = pytest.importorskip("lm_eval.api.registry", reason="lm_eval, whose filters are compared, is not there")
    pytest.importorskip("lm_eval.filters")
    found = next(iter(registry.get_filter(name)(**how).apply([list(texts)], [doc or {}])))
    return [found] if isinstance(found, str) else list(found)


def ours(written: Any, texts: Sequence[str], row: dict[str, Any] | None = None) -> list[str]:
    found = [Answer(text) for text in texts]
    for step in steps_of(written):
        found = step.apply(found, row or {}, "row 0")
    return [answer.text for answer in found]


@hypothesis.given(
    st.lists(TEXTS, min_size=1, max_size=3), PATTERNS, st.sampled_from([0, -1]), st.sampled_from(["", " no "])
)
def test_regex_equals_the_harness(texts: list[str], pattern: str, group: int, fallback: str) -> None:
    theirs = by_the_harness("regex", texts, regex_pattern=pattern, group_select=group, fallback=fallback)
    assert ours({"regex": {"pattern": pattern, "group": group, "fallback": fallback}}, texts) == theirs


@hypothesis.given(st.lists(TEXTS, min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["take_first", "remove_whitespace", "lowercase", "uppercase"])
def test_a_step_without_arguments_equals_the_harness(name: str, texts: list[str]) -> None:
    assert ours(name, texts) == by_the_harness(name, texts)


@hypothesis.given(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=3, max_size=7))
def test_choosing_among_several_texts_equals_the_harness(texts: list[str]) -> None:
    answers = [Answer(text) for text in texts]
    for step, name, how in ((TakeFirstK(3), "take_first_k", {"k": 3}), (MajorityVote(), "majority_vote", {})):
        found = [answer.text for answer in step.apply(answers, {}, "row 0")]
        assert found == by_the_harness(name, texts, **how)


@hypothesis.given(st.lists(st.sampled_from(["A", "B", "a", ""]), min_size=1, max_size=3))
def test_map_equals_the_harness(texts: list[str]) -> None:
    mapping = {"A": "yes", "B": ""}
    theirs = by_the_harness("map", texts, mapping_dict=mapping, default_value="?")
    assert ours({"map": {"mapping": mapping, "default": "?"}}, texts) == theirs


@hypothesis.given(
    st.lists(TEXTS, min_size=1, max_size=2),
    st.lists(st.sampled_from(["blue", "blue whale", "Éßx", "A.B", "", "(a)", "2"]), min_size=1, max_size=4),
    PATTERNS,
    st.sampled_from([0, -1]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), ("b",), (r"\s", "[.]")]),
)
@hypothesis.settings(max_examples=10, deadline=None)
def test_multi_choice_regex_equals_the_harness(
    texts: list[str],
    choices: list[str],
    pattern: str,
    group: int,
    case: bool,
    punctuation: bool,
    ignore: tuple[str, ...],
) -> None:
    module = pytest.importorskip("lm_eval.filters.extraction")
    with pytest.MonkeyPatch.context() as patch:
        # For each call the harness looks for punctuation in all of Unicode, of which no text here has the larger part.
        patch.setattr(module, "sys", SimpleNamespace(maxunicode=0xFFFF))
        theirs = by_the_harness(
            "multi_choice_regex", texts, {"choices": choices}, regex_pattern=pattern, group_select=group,
            ignore_case=case, ignore_punctuation=punctuation, regexes_to_ignore=list(ignore),
        )  # fmt: skip
    ignored = {"ignore_case": case, "ignore_punctuation": punctuation, "ignore": ignore}
    step = {"pattern": pattern, "group": group, **ignored}
    assert ours({"multi_choice_regex": step}, texts, {"choices": choices}) == theirs


PLAIN = st.text(st.sampled_from("aB 1,.!$É«ß"), max_size=6)  # no letter that is two in lower case, which NumPy cuts
ANSWER = PLAIN.map("É".__add__)  # something is left of it, whatever is ignored


@hypothesis.given(
    st.lists(st.tuples(st.one_of(PLAIN, ANSWER), ANSWER), min_size=1, max_size=4),
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from([[], [","], [r"\.$", "[aB]"]]),
)  # fmt: skip
def test_exact_equals_the_harnesses_exact_match(
    pairs: list[tuple[str, str]], case: bool, punctuation: bool, numbers: bool, ignore: list[str]
) -> None:
    metrics = pytest.importorskip("lm_eval.api.metrics", reason="lm_eval, whose exact_match is compared, is not there")
    how = {"ignore_case": case, "ignore_punctuation": punctuation, "ignore_numbers": numbers}
    outputs, references = map(list, zip(*pairs, strict=True))
    theirs = metrics.exact_match_hf_evaluate(outputs, references, regexes_to_ignore=ignore or None, **how)
    found = text_score(exact(**how, ignore=ignore, strip=False), outputs, [[each] for each in references])
    assert float(found) == pytest.approx(float(theirs["exact_match"]))


def test_presets_for_gsm8k_are_the_filters_of_the_harnesses_task() -> None:
    tasks = pytest.importorskip("lm_eval.tasks", reason="lm_eval, whose task is compared, is not there")
    file = Path(tasks.__file__).parent / "gsm8k" / "gsm8k.yaml"
    filters = {each["name"]: each["filter"] for each in yaml.safe_load(file.read_text())["filter_list"]}
    for preset, name in (("gsm8k-strict", "strict-match"), ("gsm8k-flexible", "flexible-extract")):
        first, second = filters[name]
        regex, take = PRESETS[preset]
        assert regex["regex"] == {
            key: first[theirs]
            for key, theirs in (("pattern", "regex_pattern"), ("group", "group_select"))
            if theirs in first
        }
        assert take == second["function"] == "take_first"


def test_an_answer_is_found_unless_a_step_fell_back_or_it_is_empty() -> None:
    texts = ["7 ", "x", "", " "]
    steps = steps_of({"regex": {"pattern": r"\d|\s", "fallback": "7"}}, "lowercase")
    found = extracted(steps, texts, [{}] * 4, name="d")
    assert found == [Answer("7"), Answer("7", False), Answer("7", False), Answer("", False)]


def test_a_match_that_is_not_there_is_no_answer() -> None:
    steps = steps_of({"regex": {"pattern": r"\d", "group": 1}})
    assert extracted(steps, ["1 2", "1"], [{}] * 2, name="d") == [Answer("2"), Answer(INVALID, False)]
    assert steps_of({"map": {"mapping": {"a": "b"}}}) == (Map(mapping={"a": "b"}),)


@pytest.mark.parametrize("row", [{"choice": ["a"]}, {"choices": "ab"}, {"choices": []}])
def test_choices_that_a_step_cannot_read_are_an_error(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"row 0: extract: .*'choices'"):
        extracted(steps_of({"multi_choice_regex": {"pattern": "x"}}), ["y"], [row], name="d")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([{"regex": {"pattern": "("}}], ": step 1: regex: pattern: expected a regular expression of Python, got '('"),
        ([{"regex": {"pattern": r"(a)\2"}}], ": step 1: regex: pattern: expected a regular expression of Python, got"),
        ([{"regex": {"pattern": "a", "group": "x"}}], ": step 1: regex: group: expected a whole number, got 'x'"),
        ([{"regex": {"patern": "a"}}], ": step 1: regex: unknown argument 'patern' (did you mean 'pattern'?)"),
        (["regex"], ": step 1: regex: expected pattern:"),
        (["strip", "regex"], ": step 1: unknown step 'strip'; known: regex, take_first, "),
        ([{"lowercase": {"x": 1}}], ": step 1: lowercase: unknown argument 'x'"),
        ([{"regex": "a"}], ": step 1: regex: expected pattern, group, fallback, got 'a'"),
        ([{"a": 1, "b": 2}], ": step 1: expected a name, or a name with its arguments"),
        ([{"multi_choice_regex": {"pattern": "a", "ignore": ["["]}}], ": step 1: multi_choice_regex: ignore: expected"),
        ([], ": expected a list of steps, or one of gsm8k-strict, "),
        ({}, ": expected one step or more, got none"),
        ("gsm8k-stric", ": expected a list of steps, or one of gsm8k-strict, "),
        ({"regex": {"pattern": "a"}}, ": expected a list of steps, or names with lists of steps, got 'regex'"),
        ({"strict": "gsm"}, ".strict: expected a list of steps, or one of gsm8k-strict, "),
        ({"a b": "boxed"}, ": expected a name of letters, digits, - and _, got 'a b'"),
    ],
)
def test_steps_that_cannot_be_are_refused_with_what_was_expected(written: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_extractions(written)
    assert str(raised.value).startswith(f"extract{message}")


@pytest.mark.parametrize(
    "text", ["", ".", "$", "1,2", "12,34", "--1", "-$-1", "1e", "٣", "1/2", "5%", "NaN", "inf", "1 2"]
)
def test_what_is_no_number_is_none(text: str) -> None:
    assert number_in(text) is None


def test_a_reference_that_is_no_number_is_an_error() -> None:
    with pytest.raises(MetricInputError, match="exact: numeric: row 1: expected a number as the reference, got 'five'"):
        text_score(exact(numeric=True), ["1", "5"], [["1"], ["5", "five"]])


@pytest.mark.parametrize("ignore", ["(", ["a", "("]])
def test_a_pattern_to_ignore_that_does_not_compile_is_refused(ignore: Any) -> None:
    with pytest.raises(ConfigError, match=r"ignore: expected a regular expression of Python, got '\('"):
        exact(ignore=ignore)
    for wrong in (3, [3], [""]):
        with pytest.raises(ConfigError, match="ignore: expected a regular expression, or a list of them, got"):
            exact(ignore=wrong)
    assert np.array_equal(exact(ignore=["a|b"]).statistics(["ax"], [["xb"]], [{}]), [[1, 1]])
