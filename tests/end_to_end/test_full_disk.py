"""A full disk, and a cache that is lost half way: gates are judged, old files stay whole, and each loss is said.

No write is faked: the system itself refuses it, by a limit on the size of files, by a tmpfs that is full or mounted
read-only, or since a file lies where the folder was.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import Project, marked

GATES = marked(regression='no_regression("ppl", "die", "words", "1%")', sure='ppl_max("sure", "words", 1e9)')
# After collection no file can grow beyond this: the system refuses the write itself, as on a full disk.
LIMITED = """
    import os, resource

    def pytest_collection_finish():
        if "MOST_BYTES" in os.environ:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["MOST_BYTES"]), resource.RLIM_INFINITY))
"""
REPORTS = (
    "json:report.json",
    "html:report.html",
    "markdown:report.md",
    "markdown-append:notes.md",
    "openmetrics:m.txt",
)
OPTIONS = (*(f"--lmgate-report={each}" for each in REPORTS), "--lmgate-history=runs", "-p", "no:cacheprovider")


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but locks, by its path."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("most", ["0", "400"], ids=["nothing", "the beginning"])
def test_a_full_disk_loses_no_verdict_and_no_old_file_and_each_loss_is_one_sentence(
    project: Project, most: str
) -> None:
    project.write(conftest=LIMITED, test_gate=GATES)
    project.run("--lmgate-update", *OPTIONS).expect(0, passed=2)
    project.write(test_more=GATES.replace("def test_", "def test_more_"))  # so that every file is to change
    before = files(project.folder)
    outcome = project.run("--lmgate-update", "--lmgate-refresh", *OPTIONS, env={"MOST_BYTES": most}).expect(1, passed=4)
    lost = [f"--lmgate-history {project.folder / 'runs'}", *(f"--lmgate-report {each}" for each in REPORTS)]
    outcome.says("4 gates: 4 pass", *(f"ERROR: {each}: " for each in lost))
    outcome.says("ERROR: the baseline was not written: ")
    assert outcome.out.count("cannot be written (File too large); the result is not kept") == 1
    outcome.is_silent_on("Traceback", "INTERNALERROR")
    assert files(project.folder) == before
    project.run("--lmgate-update", *OPTIONS, "-W", "error").expect(0, passed=4).says("1 new, 1 unchanged")


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB in memory, which only root may make."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: a disk that is really full is NOT checked ({made.stderr!r})")
    yield folder
    subprocess.run(["umount", "--recursive", "--lazy", folder], check=True)


# Two dice, measured in many batches, each kept at once; what goes wrong does after some of them.
SABOTAGE = """
    import os, pathlib, subprocess
    from pytest_lmgate.cache.store import Store

    HERE, plain, saved = pathlib.Path(__file__).parent, Store.put_partial, []

    def fill(folder):
        with open(folder / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                assert error.errno == 28, error

    def make_read_only(folder):
        for command in (["--bind", folder, folder], ["-o", "remount,bind,ro", folder]):
            subprocess.run(["mount", *command], check=True)

    def replace_by_a_file(folder):
        folder.rename(folder.with_name("gone"))
        folder.write_text("a file")

    def put_partial(self, *args):
        plain(self, *args)
        saved.append(1)
        if len(saved) == 3 and "SABOTAGE" in os.environ:
            globals()[os.environ["SABOTAGE"]](self.folder)

    Store.put_partial = put_partial
"""


def _judged_half_way(dice: DiceProject, how: str, cache: Path, why: str) -> None:
    dice.models(a={}, b={}).gates([("a", "one"), ("b", "two")]).write(sabotage=SABOTAGE)
    options = ("-p", "sabotage", "--lmgate-cache", str(cache), "--lmgate-report=json:report.json")
    outcome = dice.run(*options, env={"SABOTAGE": how}).expect(0, passed=2)
    outcome.says("2 gates: 2 pass", "CacheWarning", why).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.out.count("the result is not kept") == 1
    assert [gate["value"] for gate in dice.report()["gates"]] == pytest.approx([6, 6])


def test_a_cache_folder_that_becomes_a_file_during_a_run_is_warned_of_and_gates_are_judged(dice: DiceProject) -> None:
    cache = dice.folder / "cache"
    _judged_half_way(dice, "replace_by_a_file", cache, "cannot be written (")
    assert cache.read_text() == "a file"


def test_a_cache_that_becomes_read_only_or_full_during_a_run_is_warned_of_and_what_it_holds_stays_whole(
    dice: DiceProject, tmpfs: Path
) -> None:
    full, read_only = tmpfs / "full", tmpfs / "read_only"
    _judged_half_way(dice, "fill", full, "No space left on device")
    assert not list(full.rglob("*.tmp"))
    (full / "filler").unlink()
    resumed = dice.run("--lmgate-cache", str(full), "-W", "error", "--lmgate-report=json:report.json")
    resumed.expect(0, passed=2).says("resumed at").is_silent_on("trusted")
    assert [gate["value"] for gate in dice.report()["gates"]] == pytest.approx([6, 6])
    assert len(list(full.glob("token-nll/*/*.lmgate"))) == 2

    _judged_half_way(dice, "make_read_only", read_only, "Read-only file system")
    dice.run("--lmgate-cache", str(read_only)).expect(0, passed=2).says("resumed at", "cannot be written")
