"""The digest of a file is remembered only where its times and its inode prove that it is the same."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_lmgate.cache.digest import _key
from pytest_lmgate.cache.files import write_sealed
from tests.end_to_end.projects import GATE, Outcome, Project, environment
from tests.file_systems import notes_writes_by_mapping

OF_COPY = GATE.replace("'die'", "'./copy'")


def _remember_wrongly(project: Project, path: Path, of: Path) -> None:
    """Write a digest memory that says of one file what is true of another."""
    key = _key(path, path.stat())
    digest = hashlib.sha256(of.read_bytes()).hexdigest()
    write_sealed(project.cache / "digests" / key[:2] / key[2:40], f"{key} {digest}".encode())


def _in_a_namespace(project: Project, *mount: str) -> Outcome:
    """Run pytest where the folder `copy` is mounted over itself; only that process sees it."""
    mounts = f'mount --bind copy copy && {" ".join(mount)} && exec "$0" -m pytest -p no:cacheprovider'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounts, sys.executable],
        cwd=project.folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    if "rootdir" not in done.stdout:
        pytest.skip(f"folders cannot be mounted here: {done.stderr.strip()}; read-only file systems are NOT checked")
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_no_memory_is_believed_of_a_file_on_a_read_only_file_system(measured: Project, models: Path) -> None:
    weights = measured.model("copy", models / "sure") / "model.safetensors"
    measured.write(test_gate=OF_COPY)
    if shutil.which("unshare") is None:
        pytest.skip("folders cannot be mounted here: no unshare; read-only file systems are NOT checked")
    # As another image would leave it that was mounted in this place, with the same times.
    _remember_wrongly(measured, weights, models / "die" / "model.safetensors")
    _in_a_namespace(measured, "true").expect(0, passed=1)
    _in_a_namespace(measured, "mount -o remount,ro,bind copy").expect(1, failed=1)


def test_a_write_through_a_mapping_made_before_the_file_was_remembered_is_seen(measured: Project, models: Path) -> None:
    if not notes_writes_by_mapping(measured.folder):
        pytest.skip("this file system (tmpfs) notes no change by a mapping; docs/cache.md says so")
    weights = measured.model("copy", models / "die") / "model.safetensors"
    measured.write(test_gate=OF_COPY)
    with weights.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        begin = 8 + int.from_bytes(mapped[:8], "little")  # of the first tensor, behind the header
        mapped[begin] = mapped[begin]  # the page counts as changed, and is not written back
        time.sleep(2.5)
        measured.run().expect(0, passed=1)
        assert list(measured.cache.glob("digests/*/*")), "nothing was remembered, so nothing is tested"
        mapped[begin : begin + 4] = struct.pack("<f", 30.0)
    measured.run().expect(1, failed=1)


def test_a_blob_that_is_not_what_its_name_says_is_hashed(project: Project, models: Path) -> None:
    home = project.folder / "hf"
    repository, commit = home / "hub" / "models--org--die", "0123456789abcdef0123456789abcdef01234567"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots" / commit).mkdir(parents=True)
    for file in (models / "die").iterdir():
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (repository / "snapshots" / commit / file.name).symlink_to(blob)
    project.write(test_gate=GATE.replace("'die'", f"'hub:org/die@{commit}'"))
    offline = {"HF_HOME": str(home)}
    project.run("--lmgate-offline", env=offline).expect(0, passed=1)
    shutil.copy(
        models / "sure" / "model.safetensors", (repository / "snapshots" / commit / "model.safetensors").resolve()
    )
    project.run("--lmgate-offline", env=offline).expect(1, failed=1)
