"""The history: a folder with one record of each run, which is written once and never changed.

The name of a record has the time, the commit and the run's id, so that two jobs never write the same file and a merge
of two branches never conflicts.
"""

from __future__ import annotations

__all__ = ["append_to_history", "read_history"]

import os
import subprocess
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.errors import RecordError
from pytest_lmgate.gates.record import RunRecord, format_record, parse_record, record_of
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.judge.provenance import provenance

# Systems of CI check out a commit rather than a branch; a pull request's own branch comes first.
_BRANCH_VARIABLES = (
    "GITHUB_HEAD_REF",
    "GITHUB_REF_NAME",
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
    "CI_COMMIT_REF_NAME",
    "BUILD_SOURCEBRANCHNAME",
    "BUILDKITE_BRANCH",
    "CIRCLE_BRANCH",
    "BRANCH_NAME",
)


def append_to_history(
    folder: Path,
    verdicts: Sequence[Verdict],
    *,
    run: str,
    rootdir: Path,
    stopped: bool,
    problems: Sequence[str],
    expected_to_fail: Collection[str] = (),
) -> Path | None:
    """Write the record of a run; a run that measured nothing has none.

    Args:
        folder: Of the history; made where it is missing.
        verdicts: Of all gates.
        run: Id of the run.
        rootdir: Folder whose commit is under test.
        stopped: Whether tests were left that did not run.
        problems: What fails the session although every test passed.
        expected_to_fail: Ids of the gates whose tests are marked xfail.

    Returns:
        The new file, if any.

    Raises:
        OSError: It cannot be written.
    """
    if all(verdict.value is None for verdict in verdicts):
        return None
    device = next((verdict.device for verdict in verdicts if verdict.device), "")
    made, now = provenance(rootdir, device), datetime.now(timezone.utc)
    text = format_record(
        run=run,
        date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        commit=made.commit,
        branch=_branch(rootdir),
        hardware=made.hardware,
        versions=made.versions,
        stopped=stopped,
        problems=[problem.encode("utf-8", "backslashreplace").decode() for problem in problems],
        gates=[record_of(verdict, xfail=verdict.id in expected_to_fail) for verdict in verdicts],
    )
    commit = made.commit.rstrip("+") or "nocommit"
    path = folder / f"{now:%Y%m%dT%H%M%SZ}-{commit}-{run[:12]}.json"
    write_durably(path, text)
    return path


def read_history(folder: Path) -> list[RunRecord]:
    """Return all records by date.

    Raises:
        RecordError: The folder or a record cannot be read, or there is none.
    """
    found = []
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix == ".json" and not path.name.startswith("."):
                found.append(parse_record(path.read_bytes(), str(path)))
    except OSError as error:
        raise RecordError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
    if not found:
        raise RecordError(f"{folder}: expected records that pytest --lmgate-history {folder} wrote, found none")
    return sorted(found, key=lambda record: (record.date, record.run))


def _branch(folder: Path) -> str:
    """Return the branch that is checked out, else the one that CI names, else nothing."""
    command = ["git", "symbolic-ref", "--short", "-q", "HEAD"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    named = (os.environ.get(name, "") for name in _BRANCH_VARIABLES)
    return done.stdout.strip() or next(filter(None, named), "")
