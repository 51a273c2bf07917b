"""The formats of ``--lmgate-report``, one row each, and the writing of the reports."""

from __future__ import annotations

__all__ = ["FORMATS", "STDOUT", "Format", "write_reports"]

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_lmgate.cache.files import write_durably

if TYPE_CHECKING:
    from pytest_lmgate.report.results import Results

STDOUT = "-"
"""The destination that prints a report when pytest has written everything else."""


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        renders: ``module:function`` of the room `report`, from `Results` to text; imported when it is written.
        appends: Whether the report is added to what its file holds.
        destination: Where the report goes when no destination is given; empty where one is required.
    """

    renders: str
    appends: bool = False
    destination: str = ""

    def render(self, results: Results) -> str:
        """Return the report."""
        module, _, function = self.renders.partition(":")
        text: str = getattr(import_module(f"pytest_lmgate.report.{module}"), function)(results)
        return text


FORMATS: Mapping[str, Format] = {
    "json": Format("formats.json_file:json_report"),
    "markdown": Format("formats.markdown:markdown_report"),
    "markdown-append": Format("formats.markdown:markdown_section", appends=True),
    "github": Format("formats.github:github_annotations", destination=STDOUT),
    "openmetrics": Format("formats.openmetrics:openmetrics_report"),
    "html": Format("html.page:html_report"),
}


def write_reports(results: Results, reports: Iterable[tuple[str, str]], say: list[str], problems: list[str]) -> None:
    """Write each report, given by format and destination, which is relative to the folder where pytest was called.

    Args:
        results: What the session found.
        reports: Format and destination of each.
        say: Gets the reports that are to be printed.
        problems: Gets what could not be written, and why: the session must still show its verdicts.
    """
    for name, destination in reports:
        kind = FORMATS[name]
        text = kind.render(results).encode("utf-8", "backslashreplace")  # half of a surrogate pair has no UTF-8
        if destination == STDOUT:
            say.append(text.decode())
            continue
        try:
            _write(results.folder / Path(destination).expanduser(), text, appends=kind.appends)
        except (OSError, RuntimeError) as error:  # RuntimeError: a home that nobody has
            problems.append(f"--lmgate-report {name}:{destination}: cannot be written: {error}")


def _write(path: Path, data: bytes, *, appends: bool) -> None:
    """Write a file whole; a link, a pipe or a device is written to, never replaced by a file."""
    if appends or path.is_relative_to("/dev"):  # /dev/stdout may be a file, with pytest's own output in it
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, data)
    elif path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        write_durably(path, data)


def _append(path: Path, data: bytes) -> None:
    """Add to a file; where the disk is full, what it held before is left as it was."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            with contextlib.suppress(OSError):  # a pipe or a device has no size
                file.truncate(before)
            raise
