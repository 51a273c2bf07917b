"""The pytest plugin's entry: options, markers, fixtures, and the hooks' registration. Nothing heavy is imported here.

A gate measures in its test's setup phase, so that what cannot be measured is a pytest ERROR, and fails in its call
phase, before the test's own body, so that a body that skips cannot hide a verdict. Verdicts travel in the reports'
user_properties; the controller alone renders them.
"""

from __future__ import annotations

import pytest

from pytest_lmgate.plugin import hookspecs
from pytest_lmgate.plugin.fixtures import FIXTURES
from pytest_lmgate.plugin.hooks import GateHooks
from pytest_lmgate.plugin.options import add_options, project_file, reports
from pytest_lmgate.plugin.planning import PlanHooks
from pytest_lmgate.plugin.updates import update
from pytest_lmgate.spec.catalogue import MARKERS_HELP

__all__: list[str] = []

globals().update(FIXTURES)  # where pytest looks for the fixtures of a plugin


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our hooks."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers and register the hooks."""
    reports(config)  # a report that cannot be made is said now, not after an hour of measuring
    update(config)
    project_file(config)  # one that is named but not there may hold gates
    for line in MARKERS_HELP.values():
        config.addinivalue_line("markers", line)
    hooks = GateHooks(config)
    # None has a name, by which -p no:NAME could leave it out alone.
    config.pluginmanager.register(hooks)
    config.pluginmanager.register(hooks.controller)
    if config.getoption("lmgate_plan"):
        config.pluginmanager.register(PlanHooks(config, hooks))
