"""Fixtures of the tests of every engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.projects import described


@pytest.fixture(scope="module")
def reference(opened: Callable[..., Any]) -> Any:
    """The model that all are compared with, run by transformers."""
    return opened("float")


@pytest.fixture(scope="session")
def opened(files: Path) -> Callable[..., Any]:
    """Opens a model of `files` by its name there; further arguments are those of its entry."""
    return lambda name, **entry: described(name, path=str(files / name), **entry).open()
