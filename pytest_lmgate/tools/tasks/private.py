"""What the import of tasks uses of lm-evaluation-harness that it keeps private, tried with lm-eval 0.4.13.

A task's metrics and filters are made once, of its YAML or by code of its class, and no public name has them. Files are
read with the harness's own loader, since tasks include other files and name functions in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def load_yaml(path: Path, *, with_functions: bool) -> dict[str, Any]:
    """Read a task's file with all that it includes; without its functions, none of its code runs."""
    from lm_eval.tasks import _yaml_loader

    config: dict[str, Any] = _yaml_loader.load_yaml(path, resolve_func=with_functions)
    return config


def filters_of(task: Any) -> Sequence[Any]:
    """Return a task's filters, an ensemble for each name under which it scores."""
    filters: Sequence[Any] = task._filters
    return filters


def metrics_of(task: Any) -> Mapping[str, Callable[..., Any] | None]:
    """Return a task's metrics by name: the function of each, or None. A task that is a class of its own has none."""
    metrics: Mapping[str, Callable[..., Any] | None] = getattr(task, "_metric_fn_list", {})
    return metrics


def metric_options(task: Any, metric: str) -> Mapping[str, Any]:
    options: Mapping[str, Any] = task._metric_fn_kwargs[metric]
    return options
