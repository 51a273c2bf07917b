"""A full disk: gates are judged, old files stay whole, and each loss is said.

No write is faked: the system itself refuses it, by a limit on the size of files.
"""

from pathlib import Path

from tests.end_to_end.projects import Project, marked

GATES = marked(regression='no_regression("ppl", "die", "words", "1%")', sure='ppl_max("sure", "words", 1e9)')
# After collection no file can grow beyond this: the system refuses the write itself, as on a full disk.
LIMITED = """
    import os, resource, sys

    def pytest_collection_finish():
        if "MOST_BYTES" in os.environ:
            sys.dont_write_bytecode = True  # Python would take half of a file for the whole
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["MOST_BYTES"]), resource.RLIM_INFINITY))
"""
REPORTS = ("json:report.json", "html:report.html", "markdown:r.md", "markdown-append:notes.md", "openmetrics:m.txt")
OPTIONS = (*(f"--lmgate-report={each}" for each in REPORTS), "--lmgate-history=runs", "-p", "no:cacheprovider")


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but locks, by its path."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_a_full_disk_loses_no_verdict_and_no_old_file_and_each_loss_is_one_sentence(project: Project) -> None:
    project.write(conftest=LIMITED, test_gate=GATES)
    project.run("--lmgate-update", *OPTIONS).expect(0, passed=2)
    project.write(test_more=GATES.replace("def test_", "def test_more_"))  # so that every file is to change
    before = files(project.folder)
    outcome = project.run("--lmgate-update", "--lmgate-refresh", *OPTIONS, env={"MOST_BYTES": "400"}).expect(
        1, passed=4
    )
    lost = [f"--lmgate-history {project.folder / 'runs'}", *(f"--lmgate-report {each}" for each in REPORTS)]
    outcome.says("4 gates: 4 pass", *(f"ERROR: {each}: " for each in lost))
    outcome.says("ERROR: the baseline was not written: ")
    assert outcome.out.count("cannot be written (File too large); the result is not kept") == 1
    outcome.is_silent_on("Traceback", "INTERNALERROR")
    assert files(project.folder) == before
    project.run("--lmgate-update", *OPTIONS, "-W", "error").expect(0, passed=4).says("1 new, 1 unchanged")
