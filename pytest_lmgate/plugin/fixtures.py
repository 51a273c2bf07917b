"""The user's fixtures: those that measure for tests of two projects, and those that ``lmgate.fixture("name")`` names.

pytest sets such a fixture up with the test's own, and its value stands in the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.private import fixture_definitions, requested_fixtures
from pytest_lmgate.settings.metrics import FIXTURES
from pytest_lmgate.settings.options import find_project_file


def shared_fixtures(items: Sequence[pytest.Item]) -> list[str]:
    """Refuse fixtures that measure once for tests of several projects: names differ between projects."""
    if not items or options.project_file(items[0].config):
        return []
    projects: dict[int, Path | None] = {}
    problems = []
    for item in items:
        requested = requested_fixtures(item)
        for name, definitions in requested.items():
            if definitions[-1].scope not in ("session", "package") or not _measures(name, requested):
                continue
            own = find_project_file(item.path.parent)
            if (first := projects.setdefault(id(definitions[-1]), own)) != own:
                problems.append(
                    f"the fixture {name!r} has one result for tests of two projects, {first} and {own}: give it the "
                    "scope 'module', or define it once in each project"
                )
    return problems


def _measures(name: str, requested: Mapping[str, Sequence[pytest.FixtureDef[Any]]]) -> bool:
    """Whether a fixture of the user's requests one of ours, directly or not."""
    if name in FIXTURES:
        return False
    needed, todo = set[str](), [name]
    while todo:  # fixtures that need each other in a circle are pytest's to refuse
        others = requested[each][-1].argnames if (each := todo.pop()) in requested else ()
        todo += {*others} - needed
        needed.update(others)
    return not FIXTURES.keys().isdisjoint(needed)


def naming_fixture(item: pytest.Item, names: Iterable[Any], error: ConfigError) -> ConfigError:
    """Add a hint to the error of an unknown name if the test has a fixture of that name."""
    for name in names:
        is_it = isinstance(name, str) and f"{name!r} is not known" in str(error) and hasattr(item, "fixturenames")
        if is_it and fixture_definitions(item, name):
            hint = f"; {name!r} is a fixture: lmgate.fixture({name!r}) stands for its value"
            return ConfigError(f"{error}{hint}")
    return error


def request_fixture(name: str, item: pytest.Item) -> None:
    """Have pytest set a fixture up for a test that does not name it among its arguments."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None:
        raise ConfigError(f"lmgate.fixture({name!r}): a {type(item).__name__} has no fixtures; name a model")
    if not fixture_definitions(item, name):
        if name in _parameters(item):
            raise ConfigError(
                f"lmgate.fixture: {name!r} is an argument of parametrize, not a fixture: make it one and say "
                f"indirect=[{name!r}], or give each value its marker by pytest.param(..., marks=...)"
            )
        raise ConfigError(
            f"lmgate.fixture: no fixture {name!r} for this test; pytest --fixtures lists the known fixtures"
        )
    if name in names:
        return
    if parametrized := _without_parameter(name, item, set()):
        raise ConfigError(
            f"lmgate.fixture: fixture {parametrized!r} has params: pytest collects a test once for each of them only "
            f"if the test asks for the fixture; add {name!r} to the test's arguments or to @pytest.mark.usefixtures"
        )
    names.append(name)


def _parameters(item: pytest.Item) -> Mapping[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _without_parameter(name: str, item: pytest.Item, seen: set[str]) -> str:
    """Return the first fixture with params, of `name` and those that it needs, that this test does not request."""
    if name in seen or name in _parameters(item):
        return ""
    seen.add(name)
    definitions = fixture_definitions(item, name)
    if any(definition.params is not None for definition in definitions[-1:]):
        return name
    needed = (other for definition in definitions for other in definition.argnames)
    return next(filter(None, (_without_parameter(other, item, seen) for other in needed)), "")
