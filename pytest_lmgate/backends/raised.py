"""What an engine raised, as a message tells it."""

from __future__ import annotations

__all__ = ["raised"]

import traceback
from pathlib import Path

import pytest_lmgate
from pytest_lmgate.identity.libraries import home_of_file


def raised(error: Exception) -> str:
    """Return an exception's class and text, and the line of the user's own code that raised it, if there is one.

    Lines of this package, of installed libraries and of Python itself are not the user's own.
    """
    ours = Path(pytest_lmgate.__file__).parent
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and not Path(frame.filename).is_relative_to(ours)
        and home_of_file(frame.filename) is None
    ]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
