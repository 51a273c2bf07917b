"""Whether a session runs all tests: only then has an unused entry of the baseline lost its gate."""

from __future__ import annotations

__all__ = ["are_all_in", "asks_for_all", "only_lists", "passed", "was_stopped"]

from collections.abc import Iterable

import pytest


def are_all_in(found: Iterable[pytest.Item], left: Iterable[pytest.Item]) -> bool:
    """Whether all tests that were found still run, whether plugins report what they take out or not."""
    kept = set(map(id, left))  # not by node id, which xdist changes
    return all(id(item) in kept for item in found)


def only_lists(config: pytest.Config) -> bool:
    """Whether the session only lists tests or fixtures, or plans, and runs nothing."""
    lists = ("collectonly", "lmgate_plan", "showfixtures", "show_fixtures_per_test")
    return any(getattr(config.option, name, False) for name in lists)


def passed(session: pytest.Session) -> bool:
    """Whether pytest would end the session with success, or because there are no tests."""
    return session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def was_stopped(session: pytest.Session) -> bool:
    """Whether tests were left that did not run."""
    return bool(session.shouldfail or session.shouldstop) or session.exitstatus == pytest.ExitCode.INTERRUPTED


def asks_for_all(config: pytest.Config) -> bool:
    """Whether the command line selects nothing: no tests, no other gates, no part of the folders, no other settings."""
    option = config.option
    selects = ("lf", "stepwise", "ignore", "ignore_glob", "deselect", "keyword", "markexpr", "maxfail")
    others = ("override_ini", "noconftest", "lmgate_config", "inifilename")
    by_arguments = config.args_source is pytest.Config.ArgsSource.ARGS
    in_rootdir = config.invocation_params.dir.resolve() == config.rootpath.resolve()
    return in_rootdir and not by_arguments and not any(getattr(option, name, None) for name in selects + others)
