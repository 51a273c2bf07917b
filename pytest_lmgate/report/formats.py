"""The formats of ``--lmgate-report``, one row each, and the writing of the reports."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_lmgate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from pytest_lmgate.judge.result import Results


STDOUT = "-"
"""The destination that prints a report when pytest has written everything else."""


class Format(NamedTuple):
    """A format."""

    renders: str  # ``module:function`` from `Results` to text, imported lazily; of a folder, see `render_files`
    appends: bool = False  # whether the report is appended to its file
    destination: str = ""  # default destination; empty if one is required
    is_folder: bool = False  # whether it has several files

    @property
    def usage(self) -> str:
        return "" if self.destination else ":DIR" if self.is_folder else ":FILE"

    def render(self, results: Results) -> str:
        text: str = self._renderer(results)
        return text

    def render_files(self, results: Results, *, offline: bool) -> tuple[dict[str, str], list[str]]:
        """Return the text of each file of a folder by its name, and sentences about what is not in them."""
        files: tuple[dict[str, str], list[str]] = self._renderer(results, offline=offline)
        return files

    @property
    def _renderer(self) -> Callable[..., Any]:
        from pkgutil import resolve_name  # imported lazily: sessions without reports never need it

        renderer: Callable[..., Any] = resolve_name(f"pytest_lmgate.{self.renders}")
        return renderer


FORMATS: Mapping[str, Format] = {
    "json": Format("judge.result:to_json"),
    "markdown": Format("report.services:markdown_report"),
    "markdown-append": Format("report.services:markdown_section", appends=True),
    "github": Format("report.services:github_annotations", destination=STDOUT),
    "openmetrics": Format("report.services:openmetrics_report"),
    "html": Format("report.page:html_report"),
    "eval-results": Format("report.services:eval_results", is_folder=True),
}


def parse_report(written: str) -> tuple[str, str]:
    """Return type and destination of a report that is written as ``TYPE:DEST``."""
    kind, colon, destination = written.partition(":")
    if kind in FORMATS and not colon:
        destination = FORMATS[kind].destination
    if not destination or kind not in FORMATS:
        known = f"{', '.join(FORMATS)}{'' if kind in FORMATS else nearest(kind, FORMATS)}"
        raise ConfigError(f"expected TYPE:DEST with TYPE one of {known}; got {written!r}")
    if FORMATS[kind].is_folder and destination == STDOUT:
        raise ConfigError(f"{written}: expected a folder, since it has a file for each model")
    return kind, destination


def shared_file(reports: Iterable[tuple[str, str]]) -> Path | None:
    """Return a file that two reports would replace, so that one is lost; None if there is none."""
    files = [Path(to).resolve() for kind, to in reports if to != STDOUT and not FORMATS[kind].appends]
    return next((file for file in files if files.count(file) > 1), None)


def write_reports(
    results: Results,
    reports: Iterable[tuple[str, str]],
    folder: Path,
    say: list[str],
    problems: list[str],
    *,
    offline: bool = False,
) -> list[str]:
    """Write each report, given by format and destination; errors are `problems`, since verdicts must still show.

    Return a sentence about each kind of value that a report leaves out; `say` gets what goes to stdout.
    """
    notes: list[str] = []
    for name, destination in reports:
        kind = FORMATS[name]
        if kind.is_folder:
            texts, left_out = kind.render_files(results, offline=offline)
            files = {str(Path(destination) / file): text for file, text in texts.items()}
            notes += [f"--lmgate-report {name}:{destination}: {sentence}" for sentence in left_out]
        else:
            files = {destination: kind.render(results)}
        for file, text in files.items():
            data = text.encode("utf-8", "backslashreplace")  # half of a surrogate pair has no UTF-8
            if file == STDOUT:
                say.append(data.decode())
                continue
            try:
                write_file(folder / Path(file).expanduser(), data, appends=kind.appends)
            except (OSError, RuntimeError) as error:  # RuntimeError: a home that nobody has
                problems.append(f"--lmgate-report {name}:{destination}: cannot be written: {error}")
    return notes


def write_file(path: Path, data: bytes, *, appends: bool = False) -> None:
    """Write a file atomically; a link, a pipe or a device is written to, never replaced."""
    if appends or path.is_relative_to("/dev"):  # /dev/stdout may be a file, with pytest's own output in it
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, data)
    elif path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        from pytest_lmgate.cache.files import write_durably

        write_durably(path, data)


def _append(path: Path, data: bytes) -> None:
    """Append to a file; if the disk is full, the old content stays."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            with contextlib.suppress(OSError):  # a pipe or a device has no size
                file.truncate(before)
            raise
