"""The fixtures: measure inside a test, and get a `Score`, a real float, to compare as one likes."""

from __future__ import annotations

__all__ = ["FIXTURES"]

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.plugin.hooks import GateHooks
from pytest_lmgate.spec.catalogue import FIXTURES_HELP

if TYPE_CHECKING:
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score


class Measure:
    """The value of ``ppl_of`` and so on; its repr is its name, so that a failed assertion reads as it was written."""

    def __init__(self, hooks: GateHooks, name: str) -> None:
        self._hooks, self._session, self._name = hooks, hooks.session(), name

    def __call__(self, *args: Any, **kwargs: Any) -> Score | Divergence:
        """Measure; see the fixtures."""
        __tracebackhide__ = True
        return self._session.score(self._hooks.running, self._name, args, kwargs)

    def __repr__(self) -> str:
        return self._name


def _fixture(name: str, doc: str) -> Any:
    def measure(pytestconfig: pytest.Config) -> Measure:
        if pytestconfig.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: nothing is measured")
        try:
            return Measure(GateHooks.of(pytestconfig), name)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    measure.__doc__ = doc
    named: Callable[[Any], Any] = pytest.fixture(scope="session", name=name)
    return named(measure)


FIXTURES = {name: _fixture(name, doc) for name, doc in FIXTURES_HELP.items()}
