"""How far a measurement is: one line kept up to date on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

__all__ = ["ProgressLine"]

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_lmgate.errors import harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.engine.loop import Progress

_TERMINAL_SECONDS, _LOG_SECONDS = 0.2, 30.0


class ProgressLine:
    """A context manager that clears the line at the end.

    Args:
        write: Writes a text to where the user looks, at once.
        on_terminal: Says whether that is a terminal.
        apart: Whether somebody else may have begun a line there, which stays as it is.
    """

    def __init__(self, write: Callable[[str], None], on_terminal: Callable[[], bool], *, apart: bool = False) -> None:
        self._write, self._on_terminal, self._before = write, on_terminal, "\n" * apart
        self._drawn, self._last = 0, time.monotonic()

    def __enter__(self) -> ProgressLine:
        self._last = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def show(self, progress: Progress) -> None:
        """Show progress, if it is time to."""
        terminal, now = self._on_terminal(), time.monotonic()
        if now - self._last < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS):
            return
        self._last = now
        line = f"lmgate: {harmless_line(progress.line)}"
        if not terminal:
            self._write(f"{self._before}{line}\n")
            return
        line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be drawn over
        self._write(("\r" if self._drawn else self._before) + line.ljust(self._drawn))
        self._drawn = max(self._drawn, len(line))

    def say(self, sentence: str) -> None:
        """Say something once, on a line of its own."""
        self._clear()
        self._write(f"{self._before}lmgate: {harmless_line(sentence)}\n")

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0
