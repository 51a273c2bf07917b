"""Metrics that users bring: collected once into a plain mapping by name, no import side effects."""

from __future__ import annotations

__all__ = ["collected_metrics", "found_metric"]

from collections.abc import Iterable, Mapping

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.table import METRICS, RESERVED, metric_hint
from pytest_lmgate.metrics.texts.text_metric import TextMetric


def collected_metrics(metrics: Iterable[TextMetric]) -> dict[str, TextMetric]:
    """Return the metrics that the ``pytest_lmgate_metrics`` hooks gave, by name, in the order they came.

    Raises:
        ConfigError: One is not a `TextMetric`, has the name of a metric of this package, or of another one.
    """
    by_name: dict[str, TextMetric] = {}
    for metric in metrics:
        if not isinstance(metric, TextMetric):
            raise ConfigError(
                f"pytest_lmgate_metrics: expected TextMetric objects, got {type(metric).__name__} {metric!r:.80}"
            )
        if metric.name in RESERVED:
            raise ConfigError(
                f"pytest_lmgate_metrics: the name {metric.name!r} is that of a metric of pytest-lmgate: choose another"
            )
        if metric.name in by_name:
            raise ConfigError(
                f"pytest_lmgate_metrics: two metrics are named {metric.name!r}, with the signatures "
                f"{by_name[metric.name].signature!r} and {metric.signature!r}: rename one"
            )
        by_name[metric.name] = metric
    return by_name


def found_metric(metrics: Mapping[str, TextMetric], name: str) -> TextMetric:
    """Return the user's metric of that name.

    Raises:
        ConfigError: There is none.
    """
    if name in metrics:
        return metrics[name]
    if name in RESERVED:
        raise ConfigError(f"{name!r} is a metric of pytest-lmgate: use its own markers and fixture")
    known = ", ".join(sorted(metrics)) or "none (the hook pytest_lmgate_metrics registers them)"
    own = sorted(row.name for row in METRICS.values() if row.is_number)
    raise ConfigError.of(
        "metric",
        f"expected a registered metric, got {name!r}{metric_hint(name, metrics)}; registered are {known}; those of "
        f"pytest-lmgate are {', '.join(own)}",
    )
