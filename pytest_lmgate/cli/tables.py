"""Tables, sizes and ages as commands print them."""

from __future__ import annotations

__all__ = ["age", "bytes_of", "table"]

import re
import shutil
from collections.abc import Sequence

import typer

from pytest_lmgate.errors import harmless_line
from pytest_lmgate.report.terminal.columns import shortened_name

_GAP, _LEAST = "  ", 12
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), whole: Sequence[str] = ()
) -> str:
    """Return a table that fits the terminal as far as its texts can be shortened in the middle.

    Args:
        header: Names of the columns.
        rows: Texts of each row.
        right: Columns of numbers, which stand on the right and are never shortened.
        whole: Other columns that are never shortened, since people copy what stands there.
    """
    lines = [list(header), *([harmless_line(text) for text in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    room = shutil.get_terminal_size().columns - len(_GAP) * (len(header) - 1)
    while sum(widths) > room:
        widest = max(
            (i for i, name in enumerate(header) if name not in (*right, *whole)), key=widths.__getitem__, default=None
        )
        if widest is None or widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return "\n".join(
        _GAP.join(
            text.rjust(width) if name in right else shortened_name(text, width).ljust(width)
            for text, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    )


def bytes_of(written: str) -> int:
    """Return the bytes of a size such as ``500M``, ``2GB`` or ``1.5GiB``.

    Raises:
        typer.BadParameter: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", written.strip().upper())
    # A bare 2 is 2 bytes to us and 2 GB to whoever types it: it would empty the cache.
    if match is None or match[2] not in _UNITS or (match[0][-1] not in "KMGTIB" and float(match[1])):
        raise typer.BadParameter(f"expected a size with its unit, such as 500M, 2GB or 1.5GiB, got {written!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def age(seconds: float) -> str:
    """Return how long ago something was, as in ``3 d``."""
    found = next(((seconds / each, unit) for each, unit in _AGES if seconds >= each), (max(seconds, 0), "s"))
    return f"{int(found[0])} {found[1]}"
