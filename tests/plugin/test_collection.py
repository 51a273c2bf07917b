"""Which tests a session runs: all there are, mistyped marks, and gates of lmgate.yaml."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pytest_lmgate.plugin.session  # noqa: F401 - see conftest.py
from pytest_lmgate.plugin.collection import (
    _left_out,
    are_all_in,
    asks_for_all,
    mistyped,
    only_lists,
    was_stopped,
)
from pytest_lmgate.plugin.yaml_items import add_to_testpaths, may_have_gates
from pytest_lmgate.settings import decoding
from tests.plugin.conftest import Configured


def items(count: int) -> list[Any]:
    return [SimpleNamespace(nodeid="test_a.py::test_one") for _ in range(count)]


def test_a_test_that_is_gone_is_noticed_even_where_another_has_its_name_and_more_or_another_order_is_not() -> None:
    found = items(2)
    assert not are_all_in(found, [found[0], *items(1)])
    assert are_all_in(found, [*items(1), *reversed(found)])
    assert are_all_in([], [])


def test_a_plain_command_line_asks_for_all(configured: Configured) -> None:
    assert asks_for_all(configured("-v", "--lmgate-update"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "die"),
        ("-m", "slow"),
        ("-x",),
        ("--lf",),
        ("--ignore", "packages"),
        ("--deselect", "test_a.py::test_one"),
        ("--lmgate-config", "other.yaml"),
        ("-o", "addopts="),
        ("--noconftest",),
        (".",),
    ],
)
def test_whatever_selects_tests_or_settings_does_not_ask_for_all(
    configured: Configured, pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    (pytester.path / "other.yaml").touch()
    assert not asks_for_all(configured(*arguments))


def test_a_session_started_in_an_inner_folder_does_not_ask_for_all(
    configured: Configured, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    monkeypatch.chdir(pytester.mkdir("inner"))
    assert not asks_for_all(pytester.parseconfig())


def test_options_that_list_run_nothing(configured: Configured) -> None:
    options = ((), ("--collect-only",), ("--fixtures",), ("--fixtures-per-test",))
    assert [only_lists(configured(*each)) for each in options] == [False, True, True, True]


@pytest.mark.parametrize(
    ("shouldfail", "shouldstop", "status", "stopped"),
    [
        (False, False, pytest.ExitCode.TESTS_FAILED, False),
        ("stopping after 1 failures", False, pytest.ExitCode.TESTS_FAILED, True),
        (False, "enough", pytest.ExitCode.OK, True),
        (False, False, pytest.ExitCode.INTERRUPTED, True),
    ],
)
def test_a_session_that_was_stopped_left_tests(
    shouldfail: Any, shouldstop: Any, status: pytest.ExitCode, stopped: bool
) -> None:
    session: Any = SimpleNamespace(shouldfail=shouldfail, shouldstop=shouldstop, exitstatus=status)
    assert was_stopped(session) is stopped


GATES = ("ppl_max", "bleu_min", "no_regression")


def said(pytester: pytest.Pytester, *marks: str) -> list[str]:
    decorators = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    items = pytester.getitems(
        f"import pytest\n\n{decorators}\ndef test_it(): pass\n\n{decorators}\ndef test_again(): pass"
    )
    return mistyped(items, GATES)


@pytest.fixture
def marks(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers = ppl_mix: of the project's own\nfilterwarnings = ignore\n")
    return pytester


@pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")  # of older versions of pytest
@pytest.mark.parametrize(
    ("mark", "meant"),
    [
        ("ppl_mx(1)", "ppl_max"),
        ("bleu_max(limit=1)", "bleu_min"),
        ("no_regresion(1)", "no_regression"),
        ("ppl('die', 'words', 1)", "ppl_max"),
        ("perplexity_limit('die', 'words', limit=1)", "ppl_max"),
        ("lmgate_bleu_min(1)", "bleu_min"),
        ("max_ppl('die', 'words', 1)", "ppl_max"),
        ("bleu_score_min('die', 'words', 1)", "bleu_min"),
    ],
)
def test_a_mark_that_is_close_to_a_gate_is_named_once_with_the_first_test(
    marks: pytest.Pytester, mark: str, meant: str
) -> None:
    (sentence,) = said(marks, mark)
    name = mark.partition("(")[0]
    assert f"::test_it: @pytest.mark.{name}: no such gate, did you mean '{meant}'?" in sentence


@pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")  # of older versions of pytest
@pytest.mark.parametrize(
    "mark", ["ppl_max('die', 'words', 1)", "slow(1)", "ppl_mx", "ppl_mix(1)", "ppl(1)", "max_retries(1)", "int8_min(1)"]
)
def test_gates_other_marks_marks_without_arguments_and_registered_marks_are_not_mistyped(
    marks: pytest.Pytester, mark: str
) -> None:
    assert said(marks, mark) == []


def test_a_gate_is_parsed_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makefile(
        ".yaml",
        lmgate="""
        models: {die: {path: die}}
        datasets: {words: {path: words.txt}}
        gates:
          - ppl_max: {model: die, dataset: words, limit: 3}
          - no_regression: {metric: bpb, model: die, dataset: words, tolerance: 1%, against: die}
        """,
    )
    parsed: list[str] = []
    original: Any = decoding._evaluation
    monkeypatch.setattr(decoding, "_evaluation", lambda row, given: parsed.append(row.name) or original(row, given))
    session = pytester.inline_run("--collect-only", "lmgate.yaml")
    assert session.ret == pytest.ExitCode.OK
    assert parsed == ["ppl", "bpb"]


def test_a_file_without_gates_is_not_said_to_be_left_out_and_one_in_a_folder_is_said_not_to_be_entered(
    configured: Configured, pytester: pytest.Pytester
) -> None:
    config = configured()
    (pytester.path / "inner").mkdir()
    file = pytester.path / "inner" / "lmgate.yaml"
    file.write_text("datasets:\n  gates: {path: gates.txt}\n")
    assert _left_out(config, file) == ""
    file.write_text("gates:\n  - ppl_max: {model: m, dataset: d, limit: 3}\n")
    assert "1 gate of lmgate.yaml was not collected (pytest does not enter inner)" in _left_out(config, file)


def test_testpaths_get_a_file_of_gates_only_where_there_is_one(
    configured: Configured, pytester: pytest.Pytester
) -> None:
    (pytester.path / "tests").mkdir()
    config = configured(ini="testpaths = tests")
    add_to_testpaths(config)
    assert config.args == ["tests"]
    (pytester.path / "lmgate.yaml").write_text("models: {}\n")
    add_to_testpaths(config)
    assert config.args == ["tests"]
    (pytester.path / "lmgate.yaml").write_text("gates:\n  - ppl_max: {model: m, dataset: d, limit: 3}\n")
    add_to_testpaths(config)
    assert config.args == ["tests", str(pytester.path / "lmgate.yaml")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models: {a: {path: x, load: {gate_up: [1]}}}\ndatasets:\ndefaults: {}\n# gates:\n", False),
        ("datasets:\n  gate-keepers: &a {path: x}\n  b: *a\n", False),
        ("models:\n  a: {path: x}\n  gates:\n    - ppl_max: {model: a}\n", True),
        ("datasets:\n  a: {path: x}\n  all:\n    - ppl_max: {model: a}\n", True),
        ("datasets:\n  - pplmax: {model: a}\n", True),
        ("datasets:\n  a: {path: x}\n  gatse:\n    - pplmax: {model: a}\n", True),
        ("models: {a: {path: x, load: {b: [1]}, choices: [c]}}", False),
        ("{models: {}, gates: []}", True),
        ("models: {}\ngatse: []\n", True),
        ("models: {}\n<<: {gates: []}\n", True),
        ("? [gates]\n: []\n", True),
        ("? *a\n: []\n", True),
        ("- models: {}\n", True),
        ("models\n", True),
        ("models: {}\n---\ngates: []\n", True),
        ("models: {a: [}", True),
        ("models: {a: '\x07'}", True),
        ("models: " + "[" * 100_000, True),
    ],
)
def test_a_project_file_is_looked_at_for_gates_and_for_what_may_have_lost_them(
    tmp_path: Path, text: str, expected: bool
) -> None:
    (tmp_path / "lmgate.yaml").write_text(text)
    assert may_have_gates(tmp_path / "lmgate.yaml") is expected
