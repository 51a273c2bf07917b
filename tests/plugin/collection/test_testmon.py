"""What is taken off the lists of pytest-testmon, here a plugin that only has its lists."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_lmgate.plugin.collection.testmon import keep_files
from tests.plugin.conftest import Configured


def test_files_that_measure_or_cannot_be_read_are_collected(configured: Configured, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_gate="ppl_max", test_plain="ppl_maximum = 1")
    config = configured()
    lists = SimpleNamespace(deselected_files=["test_gate.py", "test_plain.py", "gone.py"], deselected_tests=[])
    config.pluginmanager.register(lists, "TestmonSelect")
    keep_files(config, ["ppl_max", "ppl_of"])
    assert lists.deselected_files == ["test_plain.py"]
