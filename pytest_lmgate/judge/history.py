"""The history: a folder, here or at a URI, with one record of each run, which is written once and never changed.

The name of a record has the time, the commit and the run's id, so that two jobs never write the same file and a merge
of two branches never conflicts.
"""

from __future__ import annotations

__all__ = ["History", "append_to_history", "read_history"]

from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.cache.remote import Address, AddressError
from pytest_lmgate.errors import RecordError, encodable
from pytest_lmgate.gates.record import RunRecord, format_record, parse_record, record_of
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.judge.provenance import provenance
from pytest_lmgate.judge.repository import branch

History = Path | Address


def append_to_history(
    history: History,
    verdicts: Sequence[Verdict],
    *,
    run: str,
    rootdir: Path,
    stopped: bool,
    problems: Sequence[str],
    expected_to_fail: Collection[str] = (),
) -> RunRecord | None:
    """Write the record of a run; a run that measured nothing has none.

    Args:
        history: The history; a folder is made where it is missing.
        verdicts: Of all gates.
        run: Id of the run.
        rootdir: Folder whose commit is under test.
        stopped: Whether tests were left that did not run.
        problems: What fails the session although every test passed.
        expected_to_fail: Ids of the gates whose tests are marked xfail.

    Returns:
        The new record, if any.

    Raises:
        OSError: It cannot be written.
    """
    if all(verdict.value is None for verdict in verdicts):
        return None
    device = next((verdict.device for verdict in verdicts if verdict.device), "")
    made, now = provenance(rootdir, device), datetime.now(timezone.utc)
    text = format_record(
        run=run,
        date=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        commit=made.commit,
        branch=branch(rootdir),
        hardware=made.hardware,
        versions=made.versions,
        stopped=stopped,
        problems=list(map(encodable, problems)),
        gates=[record_of(verdict, xfail=verdict.id in expected_to_fail) for verdict in verdicts],
    )
    name = f"{now:%Y%m%dT%H%M%SZ}-{made.commit.rstrip('+') or 'nocommit'}-{run[:12]}.json"
    if isinstance(history, Address):
        history.write(PurePosixPath(name), text)
    else:
        write_durably(history / name, text)
    return parse_record(text, name)


def read_history(history: History) -> list[RunRecord]:
    """Return all records by date.

    Raises:
        RecordError: The history or a record cannot be read, or there is none.
    """
    found = [parse_record(text, where) for where, text in _texts(history)]
    if not found:
        raise RecordError(f"{history}: expected records that pytest --lmgate-history {history} wrote, found none")
    return sorted(found, key=lambda record: (record.date, record.run))


def _texts(history: History) -> list[tuple[str, bytes]]:
    """Return every record's place and text."""
    try:
        if isinstance(history, Address):
            return [(f"{history}/{name}", text) for name, text in history.read_all(".json").items()]
        paths = (path for path in history.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
        return [(str(path), path.read_bytes()) for path in sorted(paths)]
    except AddressError as error:
        raise RecordError(f"{history}: cannot be read: {error}") from None
    except OSError as error:
        raise RecordError(f"{error.filename or history}: cannot be read: {error.strerror}") from None
