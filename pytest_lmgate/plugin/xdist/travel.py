"""Values that travel: a worker of xdist sends builtins only, and crashes on any other value, such as a `Score`.

The crash would lose the failure in the report, and a session could end green.
"""

from __future__ import annotations

__all__ = ["make_plain"]

import contextlib
from typing import Any

import pytest


def make_plain(report: pytest.TestReport) -> None:
    """Turn instances of subclasses of numbers and texts into these builtins, wherever a report holds them."""
    for name, value in list(vars(report).items()):
        with contextlib.suppress(RecursionError):  # of a list that holds itself, say, which is another plugin's
            setattr(report, name, _plain(value))


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if kind in (list, tuple):
        return kind(map(_plain, value))
    if kind is dict:
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, str):
        return str.__str__(value)
    return str(value) if kind.__module__.startswith("pytest_lmgate.") else value
