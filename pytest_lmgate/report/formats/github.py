"""``--lmgate-report github``: annotations of GitHub Actions, on the lines where gates stand.

GitHub reads a command only at the beginning of a line, and shows ten errors and ten warnings of a step; the worst come
first. See https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

__all__ = ["github_annotations"]

import os
from pathlib import Path

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.excerpt import excerpt, printable, shortened
from pytest_lmgate.report.wording.explanation import explain

_TITLE, _LINE = 200, 2000


def github_annotations(results: Results) -> str:
    """Return an error for each gate that fails the build, and a warning for each other that is inconclusive."""
    lines = [_command("error", {"title": "lmgate"}, problem) for problem in results.problems]
    for verdict in results.worst_first():
        if results.fails(verdict):
            lines.append(_annotation("error", verdict, results.folder))
        elif verdict.verdict == "inconclusive":
            lines.append(_annotation("warning", verdict, results.folder))
    return "".join(f"{line}\n" for line in lines)


def _annotation(level: str, verdict: Verdict, folder: Path) -> str:
    title = f"{verdict.verdict.upper()} {verdict.label}"
    place = {"file": _in_repository(folder / verdict.file), "line": str(verdict.line)} if verdict.file else {}
    return _command(level, place | {"title": excerpt(title, _TITLE)}, explain(verdict))


def _in_repository(file: Path) -> str:
    """Return a file's path in the repository that GitHub checked out, else as it is."""
    root = os.environ.get("GITHUB_WORKSPACE")
    return file.relative_to(root).as_posix() if root and file.is_relative_to(root) else str(file)


def _command(level: str, properties: dict[str, str], message: str) -> str:
    shown = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {shown}::{_data(shortened(printable(message), _LINE))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")
