"""Check a metric's options by kind, so that a marker's wrong argument is told before any model runs."""

from __future__ import annotations

__all__ = ["checked_choice", "checked_flag", "checked_number", "checked_whole"]

import math
from collections.abc import Iterable
from typing import Any

from pytest_lmgate.errors import ConfigError, nearest


def checked_flag(metric: str, option: str, given: Any) -> bool:
    """Return a yes-or-no option; a string such as 'no' is not one."""
    if not isinstance(given, bool):
        raise ConfigError(f"{metric}: expected {option} to be true or false, got {given!r}")
    return given


def checked_whole(metric: str, option: str, given: Any, *, least: int) -> int:
    """Return a whole number that is not below `least`."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigError(f"{metric}: expected {option} to be a whole number from {least}, got {given!r}")
    return given


def checked_number(metric: str, option: str, given: Any, *, zero: bool = False) -> float:
    """Return a finite number above zero, or zero too, of the kind that came."""
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not math.isfinite(given)
        or given < 0
        or (given == 0 and not zero)
    ):
        raise ConfigError(f"{metric}: expected {option} to be a number above 0{' or 0' * zero}, got {given!r}")
    return given


def checked_choice(metric: str, option: str, given: Any, valid: Iterable[str]) -> str:
    """Return one of the `valid` names."""
    names = sorted(valid)
    if given not in names:
        raise ConfigError(
            f"{metric}: expected {option} to be one of {', '.join(names)}; got {given!r}{nearest(str(given), names)}"
        )
    return str(given)
