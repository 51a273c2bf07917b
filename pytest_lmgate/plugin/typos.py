"""Marks that were meant to be gates: pytest only warns of a mark that it does not know, and the gate would not run."""

from __future__ import annotations

__all__ = ["mistyped"]

from collections.abc import Collection, Iterable

import pytest

_CLOSE = 0.85  # by difflib: ppl_mx is 0.92 from ppl_max


def mistyped(items: Iterable[pytest.Item], markers: Collection[str]) -> list[str]:
    """Say of every mark that looks like one of ours which is meant.

    Args:
        items: The tests.
        markers: Ours.

    Returns:
        A sentence for each name, with the first test that carries it. Marks without arguments, which no gate is, and
        marks that the project registers are its own business.
    """
    unknown: dict[str, pytest.Item] = {}
    for item in items:
        for mark in item.iter_markers():
            if mark.name not in markers and (mark.args or mark.kwargs):
                unknown.setdefault(mark.name, item)
    if not unknown:
        return []
    config = next(iter(unknown.values())).config
    registered = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    found = {name: _meant(name, markers) for name in unknown if name not in registered}
    return [
        f"{unknown[name].nodeid}: @pytest.mark.{name}: no such gate, did you mean {meant!r}? A mark of your own is "
        "registered under `markers` in the ini file"
        for name, meant in found.items()
        if meant
    ]


def _meant(name: str, markers: Collection[str]) -> str:
    metric, _, end = name.rpartition("_")
    other = {"min": f"{metric}_max", "max": f"{metric}_min"}.get(end)
    if other in markers:
        return str(other)
    import difflib  # not at import: sessions whose marks are all known need it not

    return next(iter(difflib.get_close_matches(name, markers, n=1, cutoff=_CLOSE)), "")
