"""``lmgate.fixture("name")`` in a marker: pytest sets the fixture up with the test's own, and its value is taken."""

from __future__ import annotations

__all__ = ["ask_for_fixtures", "naming_fixture", "value_of"]

from typing import Any

import pytest

from pytest_lmgate.config.arguments.fixture import FixtureReference
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.spec.gates import Gate, NoRegression


def ask_for_fixtures(item: pytest.Item, gate: Gate | NoRegression) -> None:
    """Have pytest set up the fixtures that a gate names.

    Raises:
        ConfigError: One does not exist for this test, or has parameters that the test was not collected with.
    """
    against = [gate.against] if isinstance(gate, NoRegression) else []
    for given in [*gate.evaluation.given, *against]:
        if isinstance(given, FixtureReference):
            _ask_for(given.name, item)


def naming_fixture(item: pytest.Item, gate: Gate | NoRegression, error: ConfigError) -> ConfigError:
    """Return the error of an unknown name, with a hint where a fixture of the test has that name."""
    given = [*gate.evaluation.given, *([gate.against] if isinstance(gate, NoRegression) else [])]
    for name in given:
        is_it = isinstance(name, str) and f"{name!r} is not known" in str(error) and hasattr(item, "fixturenames")
        if is_it and item.session._fixturemanager.getfixturedefs(name, item):
            hint = f"; {name!r} is a fixture: lmgate.fixture({name!r}) stands for its value"
            return ConfigError(f"{error}{hint}")
    return error


def value_of(given: Any, item: pytest.Item) -> Any:
    """Return what a fixture returned, where a fixture was given; else what was given."""
    return getattr(item, "funcargs", {})[given.name] if isinstance(given, FixtureReference) else given


def _ask_for(name: str, item: pytest.Item) -> None:
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None:
        raise ConfigError(f"lmgate.fixture({name!r}): a {type(item).__name__} has no fixtures; name a model")
    if not item.session._fixturemanager.getfixturedefs(name, item):
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


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _without_parameter(name: str, item: pytest.Item, seen: set[str]) -> str:
    """Return the first fixture with params, of `name` and those that it needs, that this test has no parameter of."""
    if name in seen or name in _parameters(item):
        return ""
    seen.add(name)
    definitions = item.session._fixturemanager.getfixturedefs(name, item) or ()
    if any(definition.params is not None for definition in definitions[-1:]):
        return name
    needed = (other for definition in definitions for other in definition.argnames)
    return next(filter(None, (_without_parameter(other, item, seen) for other in needed)), "")
