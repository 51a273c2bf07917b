"""pytest-testmon leaves out tests whose Python code did not change; it does not see that a model or a dataset did.

Where it is on, tests that measure are taken off its lists, so that they run always. All other tests are its business.
"""

from __future__ import annotations

__all__ = ["keep_files", "keep_tests"]

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def keep_files(config: pytest.Config, words: Iterable[str]) -> None:
    """Have files collected in which one of `words` stands: the names of markers and fixtures."""
    if (plugin := _testmon(config)) is None:
        return
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b".encode())

    def measures(file: str) -> bool:
        with contextlib.suppress(OSError):
            return pattern.search((config.rootpath / file).read_bytes()) is not None
        return True

    plugin.deselected_files = [file for file in plugin.deselected_files if not measures(file)]


def keep_tests(config: pytest.Config, items: Iterable[pytest.Item], measures: Callable[[pytest.Item], bool]) -> None:
    """Have the tests run that measure."""
    if (plugin := _testmon(config)) is None:
        return
    kept = {item.nodeid for item in items if measures(item)}
    plugin.deselected_tests = [test for test in plugin.deselected_tests if test not in kept]


def _testmon(config: pytest.Config) -> Any:
    """Return the part of pytest-testmon that selects, where it does."""
    plugin = config.pluginmanager.get_plugin("TestmonSelect")
    has_lists = all(isinstance(getattr(plugin, name, None), list) for name in ("deselected_files", "deselected_tests"))
    return plugin if has_lists else None
