"""A table in as many characters as the terminal has: names are shortened in the middle, and columns left out.

A table of rich wraps cells or cuts their ends, and keeps every column, so that it would only pad what is decided here.
"""

from __future__ import annotations

__all__ = ["fitted", "shortened_name"]

from collections.abc import Sequence

_NAME, _LEAST = 32, 16  # characters that a name has before a column goes, and once all are gone that can
_GAP = "  "
_DOTS = "..."


def fitted(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, folds: Sequence[str]) -> list[str]:
    """Return the lines of a table whose first two columns, an outcome and a name, stand on the left.

    Where it is wider than `width` characters, or names that fit would look alike, columns go in the order of `folds`.
    """
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    widths = {title: max(map(len, (title, *texts))) for title, texts in columns.items()}
    outcome, name, *_ = header
    longest = widths[name]

    def others() -> int:
        return sum(widths[title] + len(_GAP) for title in columns) - widths[name] - len(_GAP)

    def shown() -> tuple[str, ...]:
        room = max(_LEAST, width - others())
        names = tuple(shortened_name(text, room) for text in columns[name])
        return names if len(set(names)) == len(set(columns[name])) else ()  # nobody could tell them apart

    for title in folds:
        if others() + min(longest, _NAME) > width or not shown():
            del columns[title]
    columns[name] = shown() or columns[name]
    widths[name] = max(map(len, (name, *columns[name])))
    left = (outcome, name)
    return [
        _GAP.join(
            text.ljust(widths[title]) if title in left else text.rjust(widths[title])
            for title, text in zip(columns, row, strict=True)
        ).rstrip()
        for row in [tuple(columns), *zip(*columns.values(), strict=True)]
    ]


def shortened_name(name: str, most: int) -> str:
    """Return a name of so many characters at most: both its ends are kept, which say the metric and the dataset."""
    if len(name) <= most:
        return name
    kept = most - len(_DOTS)
    return f"{name[: kept - kept // 2]}{_DOTS}{name[len(name) - kept // 2 :]}"
