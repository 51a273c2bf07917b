"""Where progress is shown: past pytest's capturing, where the user looks."""

from __future__ import annotations

__all__ = ["progress_line"]

import contextlib
import sys
from typing import Any

import pytest

from pytest_lmgate.report.terminal.progress import ProgressLine


def progress_line(config: pytest.Config) -> ProgressLine:
    """Return the session's progress line.

    A worker of xdist has no terminal: it writes its lines to the standard error that it shares with the controller.
    """
    is_worker = hasattr(config, "workerinput")

    def on_terminal() -> bool:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        return not is_worker and terminal is not None and bool(terminal.isatty)

    def write(text: str) -> None:
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            stream = sys.__stderr__ if is_worker and sys.__stderr__ is not None else sys.stdout
            stream.write(text)
            stream.flush()

    return ProgressLine(write, on_terminal, apart=True)
