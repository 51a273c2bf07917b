"""One line of a terminal for a text that a model wrote, whatever is in it."""

from __future__ import annotations

__all__ = ["ending", "excerpt", "printable", "shortened"]

import unicodedata
from collections.abc import Iterable

from pytest_lmgate.errors import encodable, harmless

_END = "..."
# Unprintable by Unicode's classes, but part of how words of some scripts (and emoji) are written.
_JOINERS = "\u200c\u200d"


def excerpt(text: str, width: int) -> str:
    r"""Return the beginning of a text, in one line of so many cells at most.

    Args:
        text: Any text: with line breaks, without spaces, with terminal escapes, not encodable.
        width: Cells, more than three. A Chinese, Japanese or Korean character takes two, a combining mark none.

    Returns:
        The text with what is not printable written as an escape (a line break as ``\n``), ending in ``...`` where it
        is cut. It is cut between words where there are any near the end.
    """
    shown, is_whole = _fitting(text, width)
    return "".join(shown) if is_whole else _between_words("".join(shown)) + _END


def ending(text: str, width: int) -> str:
    """Return the end of a text, in one line of so many cells at most, beginning with ``...`` where it is cut.

    It is cut between words where there are any near its begin.
    """
    shown, is_whole = _fitting(reversed(text), width)
    text = "".join(reversed(shown))
    return text if is_whole else _END + _between_words(text[::-1])[::-1]


def printable(text: str) -> str:
    """Return a text that every terminal, file and process takes, and none obeys: no half of a surrogate pair."""
    return encodable(harmless(text))


def shortened(text: str, most: int) -> str:
    """Return a text of several lines with each line cut to so many characters, and told how many are left out."""
    return "\n".join(
        line if len(line) <= most else f"{line[:most]}{_END} ({len(line) - most:,} characters more)"
        for line in text.split("\n")
    )


def _fitting(text: Iterable[str], width: int) -> tuple[list[str], bool]:
    """Return the characters that fit into a line as they are shown, and whether these are all: else dots fit too."""
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
    """Leave out what may be the beginning of a word only, unless that is half of the text or more."""
    at = text.rfind(" ")
    return text[:at] if 2 * at > len(text) else text
