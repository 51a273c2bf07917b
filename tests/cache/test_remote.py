"""A second level of the cache: what one machine measured another one reads, and a store that fails changes nothing."""

import json
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pytest_lmgate.cache.remote import Address, AddressError, Remote, is_from_fork
from pytest_lmgate.cache.store import Store
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.session import CacheKey
from tests.cache.test_store import ENTRY, FINGERPRINT, OTHER

NAME = PurePosixPath("token-nll/ab/abc.lmgate")


class Machine:
    """A cache folder beside a remote cache, and what was said."""

    def __init__(self, folder: Path, url: str, key: bytes | None = None, **settings: Any) -> None:
        self.said: list[str] = []
        self.warnings: list[str] = []
        self.remote = Remote(url, remark=self.said.append, **{"readonly": False, **settings})
        signed = None if key is None else CacheKey(key)
        self.store = Store(folder, self.warnings.append, signed, self.said.append, self.remote)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    MemoryFileSystem.store.clear()
    return "memory://shared/cache"


def test_what_one_machine_keeps_another_one_reads_and_then_holds_itself(tmp_path: Path, url: str):
    one, two = (Machine(tmp_path / name, url) for name in ("one", "two"))
    one.store.put(FINGERPRINT, ENTRY)
    found = two.store.get(FINGERPRINT)
    assert found.arrays["nll"].tolist() == ENTRY.arrays["nll"].tolist()
    assert two.store.get(OTHER) is None
    fsspec.filesystem(url.partition(":")[0]).rm(url.partition("://")[2], recursive=True)
    assert two.store.get(FINGERPRINT) is not None
    assert one.warnings == two.warnings == one.said == two.said == []


def test_an_unfinished_measurement_goes_on_on_another_machine_and_is_removed_when_it_is_whole(tmp_path: Path, url: str):
    one, two = (Machine(tmp_path / name, url) for name in ("one", "two"))
    one.store.put_partial(FINGERPRINT, ENTRY)
    assert two.store.get_partial(FINGERPRINT) is not None
    two.store.put(FINGERPRINT, ENTRY)
    (one.store.path(FINGERPRINT).with_suffix(".partial")).unlink()
    assert one.store.get_partial(FINGERPRINT) is None
    assert one.store.get(FINGERPRINT) is not None


def test_nothing_is_written_where_only_reading_is_allowed(tmp_path: Path, url: str) -> None:
    reader = Machine(tmp_path / "fork", url, readonly=True)
    reader.store.put(FINGERPRINT, ENTRY)
    reader.store.put_partial(OTHER, ENTRY)
    assert Machine(tmp_path / "two", url).store.get(FINGERPRINT) is None
    assert Machine(tmp_path / "two", url).store.get_partial(OTHER) is None


def test_an_entry_that_was_damaged_there_is_set_aside_and_measured_again(tmp_path: Path):
    url = f"file://{tmp_path}/shared"
    one, two = (Machine(tmp_path / name, url) for name in ("one", "two"))
    one.store.put(FINGERPRINT, ENTRY)
    (file,) = (tmp_path / "shared").rglob("*.lmgate")
    file.write_bytes(file.read_bytes()[:-1])
    assert two.store.get(FINGERPRINT) is None
    assert "a cache entry cannot be trusted" in two.warnings[0]
    two.store.put(FINGERPRINT, ENTRY)
    assert Machine(tmp_path / "three", url).store.get(FINGERPRINT) is not None


class Failing(MemoryFileSystem):
    """A store whose `problem` is an error or that it is slow."""

    protocol = "failing"
    problem = Mock()

    def cat_file(self, *_: Any, **__: Any) -> bytes:
        self.problem()
        raise FileNotFoundError

    def pipe_file(self, *_: Any, **__: Any) -> None:
        self.problem()


fsspec.register_implementation("failing", Failing, clobber=True)


def test_a_store_that_is_down_is_said_once_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answer = "refused by https://me:secret@host/x?t=1\n<html>::error::\x1b[2J secret-of-the-body</html>"
    monkeypatch.setattr(Failing, "problem", Mock(side_effect=ConnectionError(answer)))
    machine = Machine(tmp_path / "one", "failing://bucket")
    assert machine.store.get(FINGERPRINT) is None
    machine.store.put(FINGERPRINT, ENTRY)
    assert machine.store.get(FINGERPRINT) is not None
    assert machine.store.get(OTHER) is None
    assert Failing.problem.call_count == 1
    assert machine.said == [
        "the remote cache failing://bucket cannot be used (ConnectionError: refused by https://***@host/x?***); this "
        "session continues without it"
    ]


def test_a_store_that_does_not_answer_is_given_up_after_one_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Failing, "problem", lambda _: time.sleep(5))
    machine = Machine(tmp_path / "one", "failing://bucket", seconds=0.2)
    started = time.monotonic()
    assert machine.store.get(FINGERPRINT) is None
    assert machine.store.get(OTHER) is None
    assert time.monotonic() - started < 3
    assert "no answer in 0.2 s" in machine.said[0]


def test_without_fsspec_or_the_library_of_an_address_what_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("lacking", "no_such_library.Files", clobber=True, errtxt="install no_such_library")
    with pytest.raises(ConfigError, match="--lmgate-history lacking://host/x: install no_such_library"):
        Address("lacking://host/x", "--lmgate-history")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"--lmgate-history s3://\*\*\*@b: .* pip install 'pytest-lmgate\[remote\]'"):
        Address("s3://me:secret@b", "--lmgate-history")


def test_files_of_a_folder_are_read_together_and_leftovers_are_no_files(url: str) -> None:
    folder = Address(url, "--lmgate-history")
    assert folder.read_all(".json") == {}
    for name in ("b.json", "a.json", ".c.json", "d.txt", "inner/e.json"):
        folder.write(PurePosixPath(name), name.encode())
    assert list(folder.read_all(".json").items()) == [("a.json", b"a.json"), ("b.json", b"b.json")]
    folder.remove(PurePosixPath("a.json"))
    assert list(folder.read_all(".json")) == ["b.json"]


def test_pull_requests_from_forks_are_told_by_what_the_service_says(tmp_path: Path):
    event = tmp_path / "event.json"
    # None: the fork was deleted
    for head, is_fork in (({"full_name": "stranger/b"}, True), (None, True), ({"full_name": "a/b"}, False)):
        event.write_text(json.dumps({"pull_request": {"head": {"repo": head}, "base": {"repo": {"full_name": "a/b"}}}}))
        assert is_from_fork({"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(event)}) == is_fork
    assert is_from_fork({"GITHUB_EVENT_NAME": "pull_request_target"}), "nothing says whose it is"
    assert not is_from_fork({"GITHUB_EVENT_NAME": "push"})
    assert is_from_fork({"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "7", "CI_MERGE_REQUEST_PROJECT_ID": "1"})
    assert not is_from_fork({"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "1", "CI_MERGE_REQUEST_PROJECT_ID": "1"})
    assert not is_from_fork({})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("failing://u:p@ss@host/x", "failing://***@host/x"),
        ("failing://k:a/b@bucket/x", "failing://***@bucket/x"),
        ("failing://me:two words@bucket", "failing://***@bucket"),
        ("failing://bucket/x?sig=a b", "failing://bucket/x?***"),
        ("failing://bucket/model@v1/x", "failing://bucket/model@v1/x"),
    ],
)
def test_what_is_secret_in_an_address_is_never_shown(url: str, shown: str) -> None:
    assert str(Address(url, "--lmgate-history")) == shown


def test_a_secret_that_the_store_repeats_is_not_shown_either(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Failing, "problem", Mock(side_effect=ConnectionError("user u with p@ss was refused")))
    with pytest.raises(AddressError, match=r"^ConnectionError: user u with \*\*\* was refused$"):
        Address("failing://u:p@ss@host/x", "--lmgate-history").read(NAME)
