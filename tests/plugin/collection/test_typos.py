"""A mark that looks like a gate and is none is said to be mistyped."""

from __future__ import annotations

import pytest

from pytest_lmgate.plugin.collection.typos import mistyped

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")  # of older versions of pytest
GATES = ("ppl_max", "bleu_min", "no_regression")


def said(pytester: pytest.Pytester, *marks: str) -> list[str]:
    decorators = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    items = pytester.getitems(
        f"import pytest\n\n{decorators}\ndef test_it(): pass\n\n{decorators}\ndef test_again(): pass"
    )
    return mistyped(items, GATES)


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers = ppl_mix: of the project's own\nfilterwarnings = ignore\n")
    return pytester


@pytest.mark.parametrize(
    ("mark", "meant"),
    [
        ("ppl_mx(1)", "ppl_max"),
        ("bleu_max(limit=1)", "bleu_min"),
        ("no_regresion(1)", "no_regression"),
        ("ppl('die', 'words', 1)", "ppl_max"),
        ("perplexity_limit('die', 'words', limit=1)", "ppl_max"),
        ("lmgate_bleu_min(1)", "bleu_min"),
    ],
)
def test_a_mark_that_is_close_to_a_gate_is_named_once_with_the_first_test(
    pytester: pytest.Pytester, mark: str, meant: str
) -> None:
    (sentence,) = said(pytester, mark)
    name = mark.partition("(")[0]
    assert f"::test_it: @pytest.mark.{name}: no such gate, did you mean '{meant}'?" in sentence


@pytest.mark.parametrize("mark", ["ppl_max('die', 'words', 1)", "slow(1)", "ppl_mx", "ppl_mix(1)", "ppl(1)"])
def test_gates_other_marks_marks_without_arguments_and_registered_marks_are_not_mistyped(
    pytester: pytest.Pytester, mark: str
) -> None:
    assert said(pytester, mark) == []
