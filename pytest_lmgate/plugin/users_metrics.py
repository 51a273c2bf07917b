"""The metrics that a conftest or another plugin registers, and what to say where it does so wrongly."""

from __future__ import annotations

__all__ = ["users_metrics"]

import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pytest_lmgate.errors import ConfigError, LmgateError
from pytest_lmgate.metrics.texts import TextMetric, collected_metrics

_HOOK = "pytest_lmgate_metrics"


def users_metrics(config: pytest.Config) -> Mapping[str, TextMetric]:
    """Ask for the metrics that are registered.

    Raises:
        pytest.UsageError: One of them is not what it should be, or could not be made.
    """
    try:
        given = config.hook.pytest_lmgate_metrics(config=config)
        return collected_metrics(metric for metrics in given for metric in _listed(metrics))
    except LmgateError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception as error:  # it is the user's code that ran
        message = f"{_line_of(error, config)}{_HOOK}: {type(error).__name__}: {error}"
        raise pytest.UsageError(message) from error


def _listed(metrics: Any) -> Iterable[Any]:
    if isinstance(metrics, str | Mapping) or not isinstance(metrics, Iterable):
        kind = type(metrics).__name__
        raise ConfigError(f"{_HOOK}: expected a list of TextMetric objects, got {kind} {metrics!r:.80}")
    return metrics


def _line_of(error: Exception, config: pytest.Config) -> str:
    """The line of the hook that raised."""
    files = {hook.function.__code__.co_filename for hook in config.hook.pytest_lmgate_metrics.get_hookimpls()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
