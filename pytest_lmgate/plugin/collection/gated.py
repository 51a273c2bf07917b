"""Which tests carry gates, which measure by a fixture, and the ids that a user knows them by."""

from __future__ import annotations

__all__ = ["gates_of", "is_gated", "is_measuring", "mixed_up", "refuse_late_gates", "test_id"]

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.config import find_project_file
from pytest_lmgate.plugin import options
from pytest_lmgate.spec.catalogue import FIXTURES_HELP, MARKERS_HELP


def gates_of(item: pytest.Item) -> list[str]:
    """Return the names of the markers of a test that are gates."""
    return [mark.name for mark in item.iter_markers() if mark.name in MARKERS_HELP]


def is_gated(item: pytest.Item) -> bool:
    """Whether a test carries a gate."""
    return bool(gates_of(item))


def is_measuring(item: pytest.Item) -> bool:
    """Whether a test asks for one of our fixtures."""
    return not FIXTURES_HELP.keys().isdisjoint(getattr(item, "fixturenames", ()))


def mixed_up(gated: Sequence[pytest.Item], measuring: Sequence[pytest.Item]) -> list[str]:
    """Return messages on tests and fixtures of several projects that cannot be told apart."""
    return [*_same_ids([*gated, *measuring]), *_shared_fixtures(measuring)]


def _same_ids(items: Sequence[pytest.Item]) -> list[str]:
    """Return messages on tests in two files that have the same id: one verdict would hide the other.

    pytest counts ids from rootdir, and those of tests outside of it from the folder that it was given.
    """
    files: dict[str, Path] = {}
    return [
        f"{item.path} and {first} both have a test {item.nodeid}, since pytest's rootdir is {item.config.rootpath}: "
        "call pytest with --rootdir of a folder that holds both"
        for item in items
        if (first := files.setdefault(item.nodeid, item.path)) != item.path
    ]


def _shared_fixtures(items: Sequence[pytest.Item]) -> list[str]:
    """Return messages on fixtures that measure once for tests of several projects, whose names differ."""
    if not items or options.project_file(items[0].config):
        return []
    projects: dict[int, Path | None] = {}
    problems = []
    for item in items:
        info: Any = getattr(item, "_fixtureinfo", None)
        known = {} if info is None else info.name2fixturedefs
        for name, definitions in known.items():
            if definitions[-1].scope not in ("session", "package") or not _measures(name, known):
                continue
            own = find_project_file(item.path.parent)
            if (first := projects.setdefault(id(definitions[-1]), own)) != own:
                problems.append(
                    f"the fixture {name!r} has one result for tests of two projects, {first} and {own}: give it the "
                    "scope 'module', or define it once in each project"
                )
    return problems


def _measures(name: str, known: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a fixture of the user's asks for one of ours, or for one that does."""
    if name in FIXTURES_HELP:
        return False
    needed, todo = set[str](), [name]
    while todo:  # fixtures that need each other in a circle are pytest's to refuse
        asked = known[each][-1].argnames if (each := todo.pop()) in known else ()
        todo += {*asked} - needed
        needed.update(asked)
    return not FIXTURES_HELP.keys().isdisjoint(needed)


def refuse_late_gates(item: pytest.Item, expected: int) -> None:
    """Fail a test that got more gates than `expected` after its setup, in which gates are measured."""
    names = gates_of(item)
    if len(names) > expected and not item.config.getoption("no_lmgate"):
        pytest.fail(
            f"{item.nodeid}: a gate was added too late ({', '.join(dict.fromkeys(names))}): add it in a fixture that "
            "the test asks for, or at collection; gates are measured once the test's fixtures are set up",
            pytrace=False,
        )


def test_id(item: pytest.Item) -> str:
    """Node id as the user would write it; xdist's loadgroup appends ``@group`` on its workers."""
    if not getattr(item.config.option, "loadgroup", False):
        return item.nodeid
    marks = list(item.iter_markers("xdist_group"))
    groups = [str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks]
    # All groups of a test, or with an older xdist the nearest one; an id may have its own @, as in [org/name@main].
    suffixes = [f"@{'_'.join(sorted(set(groups)))}", *(f"@{group}" for group in groups[:1])]
    found = next((suffix for suffix in suffixes if groups and item.nodeid.endswith(suffix)), "")
    return item.nodeid.removesuffix(found)
