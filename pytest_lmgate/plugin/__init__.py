"""The pytest plugin's entry: options, markers, fixtures, and the hooks' registration. Nothing heavy is imported here.

A gate measures in its test's setup phase, so that what cannot be measured is a pytest ERROR, and fails in its call
phase, before the test's own body, so that a body that skips cannot hide a verdict. Verdicts travel as an
attribute of the reports; the controller alone renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.plugin.hooks import GateHooks, PlanHooks
from pytest_lmgate.plugin.options import add_options, project_file, reports, update
from pytest_lmgate.settings.metrics import FIXTURES, MARKER_NAMES

if TYPE_CHECKING:
    from pytest_lmgate.engines.base import Backend
    from pytest_lmgate.judge.result import Results
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score
    from pytest_lmgate.metrics.texts import TextMetric

__all__: list[str] = []


class Measure:
    """The value of ``ppl_of`` and so on, which measures inside a test and returns a `Score`.

    Its repr is its name, for failed assertions.
    """

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


MeasuringFixtures = type("MeasuringFixtures", (), {name: _fixture(name) for name in FIXTURES})
"""A plugin that is nothing but the fixtures ``ppl_of`` and so on; no instance, to which pytest would bind them."""


class HookSpecs:
    """The hooks that a conftest.py or another plugin may implement."""

    def pytest_lmgate_metrics(self, config: pytest.Config) -> Iterable[TextMetric]:
        """Return metrics of texts, each a pure function from (predictions, references, rows) to statistics.

        They get the markers ``metric_min`` and ``metric_max`` and the fixture ``metric_of``, and share generations,
        intervals, worst rows and reports with the metrics of this package. Called once, for the first gate or fixture.
        See docs/texts.md.
        """
        raise AssertionError("a hook specification is never called")  # pragma: no branch

    def pytest_lmgate_backends(self, config: pytest.Config) -> Iterable[Backend]:
        """Return engines: each describes models by their entries in lmgate.yaml, and loads them.

        A model's entry chooses an engine by ``backend: NAME``, or by a suffix of its path that the engine claims.
        Metrics, verdicts, the cache, resuming, progress and reports are the same for every engine. Called once, for
        the first gate or fixture. See `pytest_lmgate.engines.base` and docs/engines.md.
        """
        raise AssertionError("a hook specification is never called")  # pragma: no branch

    def pytest_lmgate_report(self, config: pytest.Config, run: Results) -> None:
        """Receive the records of a run, with the content of the JSON report, for a tracker or a dashboard.

        Called once, at the end of a session in which a gate or a fixture measured, also after failures; with xdist only
        in the controller, which reads the conftest.py of rootdir and of the paths given to pytest. An exception fails
        the session and is told with the plugin's name; verdicts, reports and other plugins' hooks are not affected.
        See docs/reports.md.
        """
        raise AssertionError("a hook specification is never called")  # pragma: no branch


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(HookSpecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    reports(config)  # raises here rather than after an hour of measuring
    update(config)
    project_file(config)  # a missing file may hold gates
    for line in _markers(config):
        config.addinivalue_line("markers", line)
    if config.getoption("showfixtures") or config.getoption("show_fixtures_per_test"):
        _describe_fixtures()
    hooks = GateHooks(config)
    _register(config, "fixtures", MeasuringFixtures)
    _register(config, "gates", hooks)
    if hooks.controller is not None:
        _register(config, "xdist", hooks.controller)
    if config.getoption("lmgate_plan"):
        _register(config, "plan", PlanHooks(config, hooks))


def _register(config: pytest.Config, name: str, part: object) -> None:
    """Register a part of this plugin, which ``-p no:lmgate-NAME`` must not turn off: a gate might pass unjudged."""
    if config.pluginmanager.register(part, f"lmgate-{name}") is None:
        raise pytest.UsageError(
            f"-p no:lmgate-{name}: expected no part of pytest-lmgate to be turned off alone, since gates could pass "
            "unjudged; --no-lmgate skips them, and -p no:lmgate turns the whole plugin off"
        )


def _markers(config: pytest.Config) -> Iterable[str]:
    """Return the markers' names, with their help for ``pytest --markers``, which imports all records of settings."""
    if not config.getoption("markers"):
        return MARKER_NAMES
    from pytest_lmgate.settings.help import markers_help

    return markers_help().values()


def _describe_fixtures() -> None:
    """Give the fixtures their help for ``pytest --fixtures``."""
    from pytest_lmgate.settings.help import fixtures_help

    for name, words in fixtures_help().items():
        _FUNCTIONS[name].__doc__ = words
