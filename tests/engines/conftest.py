"""Fixtures of the tests of single engines; what is asked of all of them is in `tests.engines.contract`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.projects import described


@pytest.fixture(scope="module")
def opened(files: Path) -> Iterator[Callable[..., Any]]:
    """Opens a model of `files` by its name there, once; further arguments are those of its entry."""
    runners: dict[str, Any] = {}

    def open_(name: str, **entry: Any) -> Any:
        key = f"{name} {entry}"
        if key not in runners:
            runners[key] = described(name, path=str(files / name), **entry).open()
        return runners[key]

    yield open_
    for runner in runners.values():
        runner.close()
