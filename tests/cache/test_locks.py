"""Locks where the file system has none: two processes still measure once, and nobody waits for the dead."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import filelock
import pytest

from pytest_lmgate.cache import locks
from pytest_lmgate.cache.locks import hold
from tests.cache.faulty_libc import faulty_libc

_HOLD = """
import sys, time
from pathlib import Path
from pytest_lmgate.cache.locks import hold
with hold(Path(sys.argv[1]), lambda: print("waiting", flush=True), lambda text: print(text, flush=True)):
    print("held", time.time(), flush=True)
    sys.stdin.read()
    print("ends", time.time(), flush=True)
"""
NO_LOCKS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]


@pytest.fixture(scope="module")
def libc(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose system can be told to fail."""
    return faulty_libc(tmp_path_factory.mktemp("libc"))


@pytest.fixture
def unlockable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds no locks; what it does instead is real."""
    monkeypatch.setattr(locks, "_why_no_locks", lambda _: "No locks available")


def start(path: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process that holds a lock until its input ends."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(env))


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", NO_LOCKS, ids=errno.errorcode.get)
def test_where_the_system_has_no_locks_one_process_waits_for_the_other(
    tmp_path: Path, libc: dict[str, str], number: int
) -> None:
    env, path = libc | {"FLOCK_ERRNO": str(number)}, tmp_path / "locks" / "a.lock"
    first = start(path, env)
    said = (
        f"the file system of {path.parent} has no locks ({os.strerror(number)}): lock files stand in for them, and one "
        "that a killed process left is free after 5 minutes"
    )
    assert line(first) == said
    assert line(first).startswith("held")
    second = start(path, env)
    assert [line(second), line(second)] == [said, "waiting"]
    (ends,), (held, _) = (process.communicate(timeout=30)[0].splitlines() for process in (first, second))
    assert float(ends.removeprefix("ends")) <= float(held.removeprefix("held"))
    assert (first.returncode, second.returncode) == (0, 0)
    assert list(path.parent.iterdir()) == []


def test_another_failure_is_an_error_and_not_taken_for_a_missing_lock(tmp_path: Path, libc: dict[str, str]) -> None:
    process = start(tmp_path / "a.lock", libc | {"FLOCK_ERRNO": str(errno.EIO)})
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_the_file_of_a_killed_process_is_free_at_once_where_filelock_sees_that_it_is_dead(
    tmp_path: Path, libc: dict[str, str], unlockable: None
) -> None:
    path = tmp_path / "a.lock"
    holder = start(path, libc | {"FLOCK_ERRNO": str(errno.ENOLCK)})
    assert [line(holder), line(holder)][1].startswith("held")
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    marker = path.with_suffix(".marker")
    if not marker.read_text():
        pytest.skip(f"filelock {filelock.__version__} does not write whose a lock is")
    begun = time.monotonic()
    with hold(path):
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("content", ["", "4711\nanother-host\n"], ids=["of nobody", "of another machine"])
def test_a_file_that_nobody_touches_is_free_after_a_while_whatever_its_time_says(
    tmp_path: Path, unlockable: None, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(locks, "_STALE_SECONDS", 0.5)
    monkeypatch.setattr(locks, "_LOOK_SECONDS", 0.1)
    path, marker, waited = tmp_path / "a.lock", tmp_path / "a.marker", list[str]()
    marker.write_text(content)
    future = time.time() + 86400  # of a machine whose clock is ahead, or before this one's was set back
    os.utime(marker, (future, future))
    begun = time.monotonic()
    with hold(path, lambda: waited.append("waiting")):
        assert waited == ["waiting"]
        assert time.monotonic() - begun >= 0.5
    assert not marker.exists()


def test_a_holder_that_lives_is_waited_for_however_long_it_holds(
    tmp_path: Path, unlockable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_STALE_SECONDS", 1.0)
    monkeypatch.setattr(locks, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(locks, "_TOUCH_SECONDS", 0.1)
    path, order = tmp_path / "a.lock", list[str]()

    def wait() -> None:
        with hold(path):
            order.append("second")

    with hold(path):
        second = threading.Thread(target=wait)
        second.start()
        time.sleep(2.5)
        order.append("first")
    second.join(30)
    assert order == ["first", "second"]


def test_what_waiting_raises_ends_the_attempt_and_frees_nothing(tmp_path: Path, unlockable: None) -> None:
    def refuse() -> None:
        raise InterruptedError("held")

    with hold(tmp_path / "a.lock"):
        with pytest.raises(InterruptedError), hold(tmp_path / "a.lock", refuse):
            raise AssertionError("two hold it")
        assert (tmp_path / "a.marker").exists()
