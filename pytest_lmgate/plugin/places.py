"""Whose lmgate.yaml a test is judged by: a session reads one, by its rootdir, and may run tests of other projects."""

from __future__ import annotations

__all__ = ["judged_by_others"]

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_lmgate.config import FILE_NAME
from pytest_lmgate.plugin import options


def judged_by_others(config: pytest.Config, items: Sequence[pytest.Item]) -> dict[pytest.Item, str]:
    """Return what to say of each test whose nearest lmgate.yaml is not the one that the session reads.

    Names in its gates would be looked up in the other file, and where both have them, other models measured than when
    the test runs by itself. A file named by ``--lmgate-config`` is for all tests.
    """
    if not items or options.project_file(config):
        return {}
    from pytest_lmgate.config.file import find_project_file

    used = find_project_file(config.rootpath)
    nearest: dict[Path, Path | None] = {}
    found = {}
    for item in items:
        folder = item.path.parent
        if folder not in nearest:
            nearest[folder] = find_project_file(folder)
        own = nearest[folder]
        if own is not None and not (used and own.samefile(used)):
            # One message for all tests of a file: there may be hundreds.
            found[item] = (
                f"{item.path}: {own} is the nearest {FILE_NAME}, but this session reads "
                f"{used or 'none'}, since its rootdir is {config.rootpath}; name one by --lmgate-config, or run these "
                "tests by themselves from their own project"
            )
    return found
