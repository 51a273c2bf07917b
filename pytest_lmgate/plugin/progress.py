"""How far a measurement is: one line kept up to date on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

__all__ = ["ProgressLine"]

import shutil
import sys
import time
from typing import TYPE_CHECKING, TextIO

import pytest

from pytest_lmgate.errors import harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.engine.loop import Progress

_TERMINAL_SECONDS, _LOG_SECONDS = 0.2, 30.0


class ProgressLine:
    """Writes past pytest's capturing, to where the user looks; a context manager clears the line at the end.

    A worker of xdist has no terminal: it writes its lines to the standard error that it shares with the controller.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Find out where to write."""
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._drawn = 0
        self._last = time.monotonic()

    def __enter__(self) -> ProgressLine:
        self._last = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0

    def show(self, progress: Progress) -> None:
        """Show progress, if it is time to."""
        terminal = self._on_terminal()
        now = time.monotonic()
        if now - self._last < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS):
            return
        self._last = now
        line = f"lmgate: {harmless_line(progress.line)}"
        if terminal:
            line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be drawn over
            # On a line of its own, so that pytest's own stays as it is.
            self._write(("\r" if self._drawn else "\n") + line.ljust(self._drawn))
            self._drawn = max(self._drawn, len(line))
        else:
            self._write(f"\n{line}\n")

    def say(self, sentence: str) -> None:
        """Say something once, on a line of its own."""
        self._write(f"\nlmgate: {harmless_line(sentence)}\n")

    def _stream(self) -> TextIO:
        return sys.__stderr__ if self._is_worker and sys.__stderr__ is not None else sys.stdout

    def _on_terminal(self) -> bool:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        return not self._is_worker and terminal is not None and bool(terminal.isatty)

    def _write(self, text: str) -> None:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            self._stream().write(text)
            self._stream().flush()
            return
        with capture.global_and_fixture_disabled():
            self._stream().write(text)
            self._stream().flush()
