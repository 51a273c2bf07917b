"""The plugin's modules, called by themselves, with configurations and tests that pytester makes in this process.

pytester takes away the modules that were imported during a test. What this package imports late is imported here, since
extension modules such as numpy's cannot be imported twice.
"""

from collections.abc import Callable

import numpy as np  # noqa: F401
import pytest
import yaml  # noqa: F401

import pytest_lmgate.judge.result
import pytest_lmgate.settings.file  # noqa: F401

Configured = Callable[..., pytest.Config]


@pytest.fixture
def configured(pytester: pytest.Pytester) -> Configured:
    """Return what reads a command line, and the text of an ini file, as pytest does."""

    def read(*arguments: str, ini: str = "") -> pytest.Config:
        pytester.makeini(f"[pytest]\n{ini}\n")
        return pytester.parseconfig(*arguments)

    return read
