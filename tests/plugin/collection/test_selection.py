"""Whether a session runs all there is, from what its command line says and from the tests that are left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_lmgate.plugin.collection.selection import are_all_in, asks_for_all, only_lists, was_stopped
from tests.plugin.conftest import Configured


def items(count: int) -> list[Any]:
    return [SimpleNamespace(nodeid="test_a.py::test_one") for _ in range(count)]


def test_a_test_that_is_gone_is_noticed_even_where_another_has_its_name() -> None:
    found = items(2)
    assert not are_all_in(found, [found[0], *items(1)])


def test_tests_in_another_order_or_with_more_are_all_there() -> None:
    found = items(2)
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


@pytest.mark.parametrize("option", ["--collect-only", "--fixtures", "--fixtures-per-test"])
def test_options_that_list_run_nothing(configured: Configured, option: str) -> None:
    assert only_lists(configured(option))
    assert not only_lists(configured())


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
