"""Marks that were meant to be gates: pytest only warns of a mark that it does not know, and the gate would not run."""

from __future__ import annotations

__all__ = ["mistyped"]

import re
from collections.abc import Collection, Iterable

import pytest

from pytest_lmgate.metrics.table import metric_called

_CLOSE = 0.85  # by difflib: ppl_mx is 0.92 from ppl_max
_ENDS = {"min": "min", "minimum": "min", "max": "max", "maximum": "max"}
_FILLERS = ("score", "value", "limit", "gate", "lmgate")
_ARGUMENTS = 3  # that any gate has: model, dataset, limit


def mistyped(items: Iterable[pytest.Item], markers: Collection[str]) -> list[str]:
    """Return a sentence for each mark that looks like one of our `markers`, with the first test that carries it.

    Marks without arguments are no gates, and marks that the project registers are its own business.
    """
    unknown: dict[str, tuple[pytest.Item, int]] = {}  # the first of a name, and how many arguments it has
    for item in items:
        for mark in item.iter_markers():
            if mark.name not in markers and (mark.args or mark.kwargs):
                unknown.setdefault(mark.name, (item, len(mark.args) + len(mark.kwargs)))
    if not unknown:
        return []
    config = next(item.config for item, _ in unknown.values())
    registered = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    found = {
        name: _meant(name, arguments, markers) for name, (_, arguments) in unknown.items() if name not in registered
    }
    return [
        f"{unknown[name][0].nodeid}: @pytest.mark.{name}: no such gate, did you mean {meant!r}? A mark of your own is "
        "registered under `markers` in the ini file"
        for name, meant in found.items()
        if meant
    ]


def _meant(name: str, arguments: int, markers: Collection[str]) -> str:
    import difflib  # not at import: sessions whose marks are all known need it not

    close = difflib.get_close_matches(name, markers, n=1, cutoff=_CLOSE)
    return next(iter([*_renamed(name, arguments, markers), *close]), "")


def _renamed(name: str, arguments: int, markers: Collection[str]) -> list[str]:
    """Return the marker that a name says in other words: ``perplexity_max``, ``maxPPL``, ``ppl_min``.

    The name of a metric alone, such as ``ppl``, is meant so if the mark has as many arguments as a gate.
    """
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]
    ends = [_ENDS[word] for word in words if word in _ENDS]
    if not ends and arguments < _ARGUMENTS:
        return []
    metric = metric_called("".join(word for word in words if word not in _ENDS and word not in _FILLERS))
    return [marker for end in [*ends, "min", "max"] if (marker := f"{metric}_{end}") in markers]
