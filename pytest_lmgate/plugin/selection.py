"""Whether a session runs all there is: only then is a baseline's entry that no gate used one that no gate has."""

from __future__ import annotations

__all__ = ["Collected", "asks_for_all", "only_lists", "passed", "was_stopped"]

from collections.abc import Sequence

import pytest


class Collected:
    """The tests that were found, to be compared with those that are left when every plugin has had its say.

    A plugin that takes tests out of the list need not tell the others, and not all do.
    """

    def __init__(self) -> None:
        self._items: list[pytest.Item] = []

    def add(self, item: pytest.Item) -> None:
        """Note a test that was found."""
        self._items.append(item)

    def are_all_in(self, items: Sequence[pytest.Item]) -> bool:
        """Whether none is gone; those noted are then forgotten."""
        found, self._items = self._items, []
        left = set(map(id, items))  # not by node id, which xdist changes
        return all(id(item) in left for item in found)


def only_lists(config: pytest.Config) -> bool:
    """Whether the session shows what there is and runs nothing."""
    lists = ("collectonly", "showfixtures", "show_fixtures_per_test")
    return any(getattr(config.option, name, False) for name in lists)


def passed(session: pytest.Session) -> bool:
    """Whether pytest would end the session with success, or for want of tests."""
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
