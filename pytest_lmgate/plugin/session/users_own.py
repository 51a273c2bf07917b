"""The metrics and engines that a conftest or another plugin registers, and the messages if that fails."""

from __future__ import annotations

__all__ = ["users_backends", "users_metrics"]

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pytest

from pytest_lmgate.backends.base import Backend
from pytest_lmgate.backends.table import collected_backends
from pytest_lmgate.errors import ConfigError, LmgateError
from pytest_lmgate.metrics.texts import TextMetric, collected_metrics

T = TypeVar("T")


def users_metrics(config: pytest.Config) -> Mapping[str, TextMetric]:
    """Ask for the metrics that are registered.

    Raises:
        pytest.UsageError: One of them is not what it should be, or could not be made.
    """
    return _registered(config, "pytest_lmgate_metrics", "TextMetric", collected_metrics)


def users_backends(config: pytest.Config) -> Mapping[str, Backend]:
    """Ask for the engines that are registered.

    Raises:
        pytest.UsageError: One of them is not what it should be, or could not be made.
    """
    return _registered(config, "pytest_lmgate_backends", "Backend", collected_backends)


def _registered(
    config: pytest.Config, hook: str, kind: str, collect: Callable[[Iterable[Any]], Mapping[str, T]]
) -> Mapping[str, T]:
    try:
        return collect(
            [each for given in getattr(config.hook, hook)(config=config) for each in _listed(given, hook, kind)]
        )
    except LmgateError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception as error:  # it is the user's code that ran
        message = f"{_line_of(error, config, hook)}{hook}: {type(error).__name__}: {error}"
        raise pytest.UsageError(message) from error


def _listed(given: Any, hook: str, kind: str) -> Iterable[Any]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"{hook}: expected a list of {kind} objects, got {type(given).__name__} {given!r:.80}")
    return given


def _line_of(error: Exception, config: pytest.Config, hook: str) -> str:
    """The line of the hook that raised."""
    files = {each.function.__code__.co_filename for each in getattr(config.hook, hook).get_hookimpls()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
