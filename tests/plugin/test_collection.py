"""Which tests a session runs: all there are, mistyped marks, and gates of lmgate.yaml."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pytest_lmgate.plugin.session  # noqa: F401 - see conftest.py
from pytest_lmgate.plugin.collection import asks_for_all, mistyped, was_stopped
from pytest_lmgate.plugin.yaml_items import may_have_gates
from tests.plugin.conftest import Configured


def test_what_selects_tests_does_not_ask_for_all_but_strict_options_do(
    configured: Configured, pytester: pytest.Pytester
) -> None:
    (pytester.path / "other.yaml").touch()
    selecting = ["-k die", "-m slow", "-x", "--lf", "--ignore packages", "--deselect test_a.py::test_one", "."]
    selecting += ["--lmgate-config other.yaml", "-o addopts=", "--strict-markers -o python_files=x.py", "--noconftest"]
    assert not [each for each in selecting if asks_for_all(configured(*each.split()))]
    assert asks_for_all(configured("--strict-markers", "--strict-config"))


def test_a_session_that_was_stopped_left_tests() -> None:
    failed, ok, interrupted = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED
    for fail, stop, status, stopped in (
        (False, False, failed, False),
        ("after 1 failure", False, failed, True),
        (False, "enough", ok, True),
        (False, False, interrupted, True),
    ):
        session: Any = SimpleNamespace(shouldfail=fail, shouldstop=stop, exitstatus=status)
        assert was_stopped(session) is stopped


GATES = ("ppl_max", "bleu_min", "no_regression")
CLOSE = {
    "ppl_mx(1)": "ppl_max",
    "bleu_max(limit=1)": "bleu_min",
    "no_regresion(1)": "no_regression",
    "ppl('die', 'words', 1)": "ppl_max",
    "perplexity_limit('die', 'words', limit=1)": "ppl_max",
    "lmgate_bleu_min(1)": "bleu_min",
    "max_ppl('die', 'words', 1)": "ppl_max",
    "bleu_score_min('die', 'words', 1)": "bleu_min",
}
# A gate, marks of others, marks without arguments, and one that the project registers.
OTHERS = ["ppl_max('die', 'words', 1)", "slow(1)", "ppl_mx", "ppl_mix(1)", "max_retries(1)", "int8_min(1)"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")  # of older versions of pytest
def test_a_mark_that_is_close_to_a_gate_is_named_once_with_the_first_test(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = ppl_mix: of the project's own\nfilterwarnings = ignore\n")
    tests = "".join(f"\n@pytest.mark.{mark}\ndef test_{at}(): pass\n" for at, mark in enumerate([*CLOSE, *OTHERS]))
    again = "".join(f"\n@pytest.mark.{mark}\ndef test_again_{at}(): pass\n" for at, mark in enumerate(CLOSE))
    said = mistyped(pytester.getitems(f"import pytest\n{tests}{again}"), GATES)
    assert len(said) == len(CLOSE)
    for at, (mark, meant) in enumerate(CLOSE.items()):
        name = mark.partition("(")[0]
        assert f"::test_{at}: @pytest.mark.{name}: no such gate, did you mean '{meant}'?" in said[at]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models: {a: {path: x, load: {gate_up: [1]}}}\ndatasets:\ndefaults: {}\n# gates:\n", False),
        ("datasets:\n  gate-keepers: &a {path: x}\n  b: *a\n", False),
        ("models:\n  a: {path: x}\n  gates:\n    - ppl_max: {model: a}\n", True),
        ("datasets:\n  - pplmax: {model: a}\n", True),
        ("datasets:\n  a: {path: x}\n  gatse:\n    - pplmax: {model: a}\n", True),
        ("{models: {}, gates: []}", True),
        ("models: {}\n<<: {gates: []}\n", True),
        ("? [gates]\n: []\n", True),
        ("- models: {}\n", True),
        ("models: {}\n---\ngates: []\n", True),
        ("models: {a: [}", True),
        ("models: {a: '\x07'}", True),
        ("models: " + "[" * 100_000, True),
    ],
)
def test_a_project_file_is_searched_for_gates_and_for_what_lost_them(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "lmgate.yaml").write_text(text)
    assert may_have_gates(tmp_path / "lmgate.yaml") is expected
