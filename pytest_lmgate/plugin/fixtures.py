"""The fixtures: measure inside a test, and get a `Score`, a real float, to compare as one likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.plugin.hooks import GateHooks
from pytest_lmgate.settings import metrics

if TYPE_CHECKING:
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score


class Measure:
    """The value of ``ppl_of`` and so on; its repr is its name, for failed assertions."""

    def __init__(self, hooks: GateHooks, name: str) -> None:
        self._hooks, self._session, self._name = hooks, hooks.session(), name

    def __call__(self, *args: Any, **kwargs: Any) -> Score | Divergence:
        __tracebackhide__ = True
        return self._session.score(self._hooks.running, self._name, args, kwargs)

    def __repr__(self) -> str:
        return self._name


_FUNCTIONS: dict[str, Callable[[pytest.Config], Measure]] = {}


def _fixture(name: str) -> Any:
    def measure(pytestconfig: pytest.Config) -> Measure:
        if pytestconfig.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: nothing is measured")
        try:
            return Measure(GateHooks.of(pytestconfig), name)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    _FUNCTIONS[name] = measure
    named: Callable[[Any], Any] = pytest.fixture(scope="session", name=name)
    return named(measure)


FIXTURES = {name: _fixture(name) for name in metrics.FIXTURES}


def describe_fixtures() -> None:
    from pytest_lmgate.settings.help import fixtures_help

    for name, words in fixtures_help().items():
        _FUNCTIONS[name].__doc__ = words
