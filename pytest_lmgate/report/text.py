"""Text that fits a terminal, and that no terminal obeys: counts, excerpts, tables and a line of progress.

Commands and the plugin import this at once, so nothing heavy is imported here.
"""

from __future__ import annotations

import math
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_lmgate.errors import escape_controls

if TYPE_CHECKING:
    from pytest_lmgate.measure.loop import Progress


def counted(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def byte_size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


_END = "..."
# Unprintable by Unicode's classes, but part of how words of some scripts (and emoji) are written.
_JOINERS = "\u200c\u200d"


def excerpt(text: str, width: int) -> str:
    r"""Return the beginning of any text in one line of at most so many cells, cut between words if possible.

    A Chinese, Japanese or Korean character takes two cells, a combining mark none; unprintable ones are escaped.
    """
    shown, is_whole = _fitting(text, width)
    return "".join(shown) if is_whole else _between_words("".join(shown)) + _END


def ending(text: str, width: int) -> str:
    """Return the end of a text, in one line of at most so many cells, beginning with ``...`` if it is cut.

    It is cut between words if there are any near its begin.
    """
    shown, is_whole = _fitting(reversed(text), width)
    text = "".join(reversed(shown))
    return text if is_whole else _END + _between_words(text[::-1])[::-1]


def shortened(text: str, most: int) -> str:
    """Return a text with each line cut to so many characters."""
    return "\n".join(
        line if len(line) <= most else f"{line[:most]}{_END} ({len(line) - most:,} characters more)"
        for line in text.split("\n")
    )


def _fitting(text: Iterable[str], width: int) -> tuple[list[str], bool]:
    """Return the characters that fit into a line, and whether these are all; else leave room for dots."""
    kept: list[str] = []
    used, fits = 0, 0  # cells so far; characters after which the dots still fit
    for character in text:
        shown = _shown(character)
        used += sum(map(_cells, shown))
        if used > width:
            return kept[:fits], False
        kept.append(shown)
        if used + len(_END) <= width:
            fits = len(kept)
    return kept, True


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _cells(character: str) -> int:
    if character in _JOINERS or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _between_words(text: str) -> str:
    """Remove a partial word at the end, unless it is half of the text or more."""
    at = text.rfind(" ")
    return text[:at] if 2 * at > len(text) else text


_NAME, _LEAST = 32, 16  # characters that a name has before a column is left out, and after
_GAP = "  "


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: Sequence[str],
    left: Sequence[str] = (),
    folds: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table that fits the terminal; without a terminal, and without COLUMNS, nothing is left out.

    A table of rich would wrap cells or cut their ends, and keep every column.

    Args:
        header: Titles of the columns, which are right-aligned unless they are in `names` or `left`.
        rows: Texts of each row.
        names: Columns whose texts are shortened in the middle, unless they would look alike.
        left: Columns that are left-aligned.
        folds: Columns that are left out, in this order, before names get short or look alike.
    """
    room = shutil.get_terminal_size((0, 0)).columns or math.inf
    columns = {title: [escape_controls(row[at], line=True) for row in rows] for at, title in enumerate(header)}

    def fitted(least: int) -> tuple[dict[str, list[str]], bool]:
        """Return the columns with names of so many characters at least, and whether they fit and differ."""
        widths = {title: max(map(len, (title, *texts))) for title, texts in columns.items()}
        while (beyond := sum(widths.values()) + len(_GAP) * (len(widths) - 1) > room) and names:
            widest = max(names, key=widths.__getitem__)
            if widths[widest] <= least:
                break
            widths[widest] -= 1
        cut = {title: [shortened_name(text, widths[title]) for text in texts] for title, texts in columns.items()}
        if all(len(set(cut[title])) == len(set(columns[title])) for title in names):
            return cut, not beyond
        return columns, False

    for title in folds:
        if not fitted(_NAME)[1]:
            del columns[title]
    columns, _ = fitted(_LEAST)
    widths = {title: max(map(len, (title, *texts))) for title, texts in columns.items()}
    return [
        _GAP.join(
            text.ljust(widths[title]) if title in (*names, *left) else text.rjust(widths[title])
            for title, text in zip(columns, row, strict=True)
        ).rstrip()
        for row in [tuple(columns), *zip(*columns.values(), strict=True)]
    ]


def shortened_name(name: str, most: int) -> str:
    """Return a name of at most so many characters, with both ends: the metric and the dataset."""
    if len(name) <= most:
        return name
    kept = most - len(_END)
    return f"{name[: kept - kept // 2]}{_END}{name[len(name) - kept // 2 :]}"


def bar(value: float, largest: float) -> str:
    return "█" * round(30 * value / largest) if largest > 0 else ""


_TERMINAL_SECONDS, _LOG_SECONDS = 0.2, 30.0


class ProgressLine:
    """How far a measurement is: one line kept up to date on a terminal, a line every 30 seconds elsewhere.

    A context manager that clears the line at the end. With `apart`, something else may have begun a line, which stays.
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
        terminal, now = self._on_terminal(), time.monotonic()
        if now - self._last < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS):
            return
        self._last = now
        line = f"lmgate: {escape_controls(progress.line, line=True)}"
        if not terminal:
            self._write(f"{self._before}{line}\n")
            return
        line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be drawn over
        self._write(("\r" if self._drawn else self._before) + line.ljust(self._drawn))
        self._drawn = max(self._drawn, len(line))

    def say(self, sentence: str) -> None:
        self._clear()
        self._write(f"{self._before}lmgate: {escape_controls(sentence, line=True)}\n")

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0
