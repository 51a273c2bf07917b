"""The hooks that a conftest.py or another plugin may implement."""

from __future__ import annotations

__all__ = ["pytest_lmgate_backends", "pytest_lmgate_metrics"]

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_lmgate.backends.base import Backend
    from pytest_lmgate.metrics.texts import TextMetric


def pytest_lmgate_metrics(config: pytest.Config) -> Iterable[TextMetric]:
    """Return metrics of texts, each a pure function from (predictions, references, rows) to statistics.

    They get the markers ``metric_min`` and ``metric_max`` and the fixture ``metric_of``, and share generations,
    intervals, worst rows and reports with the metrics of this package. Called once, for the first gate or fixture.
    See docs/texts.md.
    """
    raise AssertionError("a hook specification is never called")  # pragma: no branch


def pytest_lmgate_backends(config: pytest.Config) -> Iterable[Backend]:
    """Return engines: each describes models by their entries in lmgate.yaml, and loads them.

    A model's entry takes an engine by ``backend: NAME``, or by a suffix of its path that the engine claims. All else is
    the same for every engine: metrics, verdicts, the cache, resuming, progress and reports. Called once, for the first
    gate or fixture. See `pytest_lmgate.backends.base` and docs/engines.md.
    """
    raise AssertionError("a hook specification is never called")  # pragma: no branch
