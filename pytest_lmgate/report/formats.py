"""The formats of ``--lmgate-report``, one row each, and the writing of the files."""

from __future__ import annotations

__all__ = ["FORMATS", "write_reports"]

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_lmgate.cache.files import write_durably

if TYPE_CHECKING:
    from pytest_lmgate.gates.verdict import Verdict
    from pytest_lmgate.report.measured import Measured

FORMATS: Mapping[str, str] = {"json": "json_file:json_report"}
"""For each format ``module:function`` of this package, from verdicts and what fixtures measured to text.

It is imported when a report is written.
"""


def write_reports(
    verdicts: Sequence[Verdict],
    reports: Iterable[tuple[str, str]],
    folder: Path,
    measured: Sequence[Measured] = (),
) -> list[str]:
    """Write each report, given by format and destination, which is relative to `folder`.

    Returns:
        What could not be written, and why: the session must still show its verdicts.
    """
    problems = []
    for name, destination in reports:
        module, _, function = FORMATS[name].partition(":")
        render = getattr(import_module(f"pytest_lmgate.report.{module}"), function)
        try:
            _write(folder / Path(destination).expanduser(), render(verdicts, measured).encode())
        except (OSError, RuntimeError) as error:  # RuntimeError: a home that nobody has
            problems.append(f"--lmgate-report {name}:{destination}: cannot be written: {error}")
    return problems


def _write(path: Path, data: bytes) -> None:
    """Write a file whole; a link, a pipe or a device is written to, never replaced by a file."""
    if path.is_relative_to("/dev"):
        with path.open("ab") as file:  # /dev/stdout may be a file, with pytest's own output in it
            file.write(data)
    elif path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        write_durably(path, data)
