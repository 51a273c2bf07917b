"""Fixtures of the tests of every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def opened(files: Path) -> Callable[..., Any]:
    """Opens a model of `files` by its name there; further arguments are those of its entry."""
    from pytest_lmgate.backends.base import Entry
    from pytest_lmgate.backends.table import backend_of
    from pytest_lmgate.config.specs import ModelSpec

    def open_(name: str, **entry: Any) -> Any:
        spec = ModelSpec(path=str(files / name), **entry)
        backend = backend_of(spec, name, {})
        known = {"path": Path, "hub_id": lambda _: None, "digest": lambda path: path.name, "device": "cpu"}
        return backend.describe(Entry(name=name, spec=spec, **known)).open()

    return open_
