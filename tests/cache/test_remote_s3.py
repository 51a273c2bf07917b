"""The remote cache on a real S3-compatible server, which this test starts: moto's."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from pytest_lmgate.cache.remote import Address, Remote
from pytest_lmgate.cache.store import Store
from tests.cache.test_store import ENTRY, FINGERPRINT, OTHER
from tests.end_to_end.projects import wait_for

s3fs = pytest.importorskip("s3fs", reason="make test-remote installs s3fs and moto")
pytest.importorskip("moto", reason="make test-remote installs s3fs and moto")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    given = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    for name, value in {**given, "ENDPOINT_URL": address}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])

    def answers() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(answers, "moto answers")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem(endpoint_url=address).mkdir("bucket")
        yield process
    finally:
        process.kill()
        process.wait()


def test_machines_share_measurements_through_s3_and_go_on_when_it_dies(server: subprocess.Popen[bytes], tmp_path: Path):
    said: list[str] = []

    def machine(name: str) -> Store:
        return Store(
            tmp_path / name, said.append, remote=Remote("s3://bucket/cache", readonly=False, remark=said.append)
        )

    one, two = machine("one"), machine("two")
    assert one.get(FINGERPRINT) is None
    one.put(FINGERPRINT, ENTRY)
    one.put_partial(OTHER, ENTRY)
    found = two.get(FINGERPRINT)
    assert found.arrays["nll"].tolist() == ENTRY.arrays["nll"].tolist()
    assert two.get_partial(OTHER) is not None
    two.put(OTHER, ENTRY)
    assert machine("three").get_partial(OTHER) is None
    assert said == []
    server.kill()
    server.wait()
    three = machine("four")
    assert three.get(FINGERPRINT) is None
    three.put(FINGERPRINT, ENTRY)
    assert three.get(FINGERPRINT) is not None
    assert len(said) == 1
    assert "the remote cache s3://bucket/cache cannot be used" in said[0]


def test_files_of_a_history_are_written_and_read_together(server: subprocess.Popen[bytes]):
    for name in ("b.json", "a.json"):
        Address("s3://bucket/runs", "--lmgate-history").write(PurePosixPath(name), name.encode())
    found = Address("s3://bucket/runs", "--lmgate-history").read_all(".json")
    assert list(found.items()) == [("a.json", b"a.json"), ("b.json", b"b.json")]
    assert Address("s3://bucket/none", "--lmgate-history").read_all(".json") == {}
    with pytest.raises(OSError, match="bucket does not exist"):
        Address("s3://nosuch/runs", "--lmgate-history").write(PurePosixPath("a.json"), b"")
