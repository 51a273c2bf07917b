"""Faults in real processes: kills, damaged entries, caches that cannot be written, two processes at once."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from pytest_lmgate.cache.files import write_sealed
from tests.end_to_end.projects import COUNT_MEASUREMENTS, FACES, GATE, Project, finished, wait_for

# 25 windows, 4 at a time; what each batch gave is kept at once, and a file says how many targets were known before.
IN_SMALL_BATCHES = """
    import functools, os, pathlib, signal
    import pytest

    def pytest_collection_finish():
        from pytest_lmgate.cache.store import Store
        from pytest_lmgate.engine import loop, scoring
        import numpy

        loop.SAVE_SECONDS = 0.0
        plain_score = scoring.score

        def score(runner, requests, job):
            known = None if job.partial is None else job.partial.arrays["measured"]
            with pathlib.Path(__file__).with_name("resumed.txt").open("a") as file:
                file.write(f"{0 if known is None else int(numpy.isfinite(known).sum())}\\n")
            return plain_score(runner, requests, job)

        import pytest_lmgate.evaluate.measurements.perplexity as perplexity
        perplexity.score = score
        plain, saved = Store.put_partial, []

        def put_partial(self, *args):
            plain(self, *args)
            saved.append(1)
            if len(saved) == int(os.environ.get("KILL_AFTER_BATCHES", 0)):
                os.kill(os.getpid(), signal.SIGKILL)

        Store.put_partial = put_partial
"""

# Kills its own process at the fsync of a file of measurements, or of the folder that it was renamed into.
KILL_AT_FSYNC = """
    import os, pathlib, signal

    plain_fsync = os.fsync

    def fsync(descriptor):
        target = pathlib.Path(f"/proc/self/fd/{descriptor}").resolve()
        wanted = {"file": target.suffix == ".tmp", "folder": target.is_dir()}
        if "token-nll" in target.parts and wanted.get(os.environ.get("KILL_AT_FSYNC")):
            os.kill(os.getpid(), signal.SIGKILL)
        plain_fsync(descriptor)

    os.fsync = fsync
"""


def _batches_of_four(project: Project, models: Path) -> Project:
    return project.write(
        lmgate_yaml=f"""
            models:
              die: {{path: {models}/die, batch_size: 4}}
              sure: {{path: {models}/sure, batch_size: 4}}
            datasets:
              words: {{path: {models}/words.txt}}
        """
    )


def _value(project: Project, *options: str) -> float:
    project.run("--lmgate-report", "json:report.json", *options).expect(0, passed=1)
    return float(project.report()["gates"][0]["value"])


def test_a_run_killed_while_measuring_is_resumed_and_the_next_is_right(project: Project, models: Path) -> None:
    _batches_of_four(project, models).write(conftest=IN_SMALL_BATCHES, test_gate=GATE)
    killed = project.run(env={"KILL_AFTER_BATCHES": "3"})
    assert killed.code == -signal.SIGKILL
    assert len(project.partials) == 1
    assert not project.entries
    assert _value(project) == pytest.approx(FACES, rel=1e-6)
    first, second = map(int, (project.folder / "resumed.txt").read_text().split())
    assert first == 0
    assert 0 < second < 399, "the second run goes on where the first was killed"
    assert len(project.entries) == 1
    assert not project.partials


@pytest.mark.skipif(sys.platform != "linux", reason="looks up in /proc which file is being written")
def test_a_run_killed_while_writing_leaves_nothing_that_is_read(project: Project) -> None:
    project.write(conftest=KILL_AT_FSYNC + COUNT_MEASUREMENTS, test_gate=GATE)
    before_rename = project.run(env={"KILL_AT_FSYNC": "file"})
    assert before_rename.code == -signal.SIGKILL
    assert not project.entries
    debris = [path for path in project.cache.rglob("*.tmp") if path.is_file()]
    assert len(debris) == 1

    after_rename = project.run(env={"KILL_AT_FSYNC": "folder"})
    assert after_rename.code == -signal.SIGKILL
    assert len(project.entries) == 1

    assert _value(project, "-W", "error") == pytest.approx(FACES, rel=1e-6)
    assert project.measured == ["die", "die"], "the third run finds what the second had written"


def test_entries_that_cannot_be_trusted_are_set_aside_warned_of_and_measured_again(measured: Project) -> None:
    measured.write(
        conftest=COUNT_MEASUREMENTS,
        test_gate="""
            import pytest

            @pytest.mark.parametrize("model, limit", [
                pytest.param(model, limit, marks=pytest.mark.ppl_max(model, "words", limit))
                for model, limit in [("die", 60.5), ("sure", 1e9)]
            ])
            def test_gate(model, limit): pass

            def test_third(ppl_of):
                assert ppl_of("hopeless", "words") == float("inf")
        """,
    )
    before = {path.name: path.read_bytes() for path in measured.entries}
    truncated, flipped, foreign = measured.entries
    truncated.write_bytes(truncated.read_bytes()[:-1])
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 4
    flipped.write_bytes(data)
    foreign.write_bytes(before[truncated.name])  # whole and sealed, but another measurement's
    foreign.with_suffix(".partial").write_bytes(b"LMGATE1\nnot an entry")

    outcome = measured.run().expect(0, passed=3)
    for sentence in ("its checksum does not match", "it holds another measurement"):
        outcome.says(sentence)
    assert outcome.out.count("a cache entry cannot be trusted") >= 3
    assert sorted(measured.measured) == ["die", "hopeless", "sure"]
    aside = {path.name for path in measured.cache.glob("set-aside/*")}
    assert {truncated.name, flipped.name, foreign.name} <= aside
    # The second run is as if nothing had happened.
    measured.run("-W", "error").expect(0, passed=3).is_silent_on("trusted")
    assert len(measured.measured) == 3


def test_a_pipe_a_device_a_folder_or_deep_json_in_the_place_of_an_entry_is_set_aside(measured: Project) -> None:
    measured.write(
        test_gate="""
            def test_scores(ppl_of):
                assert ppl_of("die", "words") < ppl_of("sure", "words") < ppl_of("hopeless", "words")
        """
    )
    for replace in (_pipe, _device, _folder, _deep):
        for entry in measured.entries:
            entry.unlink()
            replace(entry)
        outcome = measured.run().expect(0, passed=1).is_silent_on("INTERNALERROR", "cannot be set aside")
        assert outcome.out.count("a cache entry cannot be trusted") >= 3
        assert all(entry.is_file() for entry in measured.entries)
        shutil.rmtree(measured.cache / "set-aside")
    measured.run("-W", "error").expect(0, passed=1)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _deep(path: Path) -> None:
    header = b'{"__metadata__": ' + b"[" * 100_000
    write_sealed(path, len(header).to_bytes(8, "little") + header)


def test_under_w_error_a_damaged_entry_is_an_error_once_and_the_measurement_is_kept(measured: Project) -> None:
    measured.write(test_gate=GATE)
    for entry in measured.entries:
        entry.write_bytes(b"")
    measured.run("-W", "error").expect(1, error=1).says("CacheWarning", "1 gate: 1 pass")
    measured.run("-W", "error").expect(0, passed=1)


def test_a_cache_that_cannot_be_made_still_judges_and_warns(project: Project) -> None:
    project.write(
        file_txt="a regular file",
        test_both="""
            import pytest

            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_above(): pass

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_within(): pass
        """,
    )
    outcome = project.run("--lmgate-cache", "file.txt/cache").expect(1, passed=1, failed=1)
    outcome.says("FAILED test_both.py::test_above", "CacheWarning", "cannot be written")
    assert (project.folder / "file.txt").read_text() == "a regular file"


def test_a_cache_on_a_full_disk_still_judges_and_warns_and_leaves_no_debris(project: Project) -> None:
    project.write(
        test_gate=GATE,
        conftest="""
            import resource

            def pytest_collection_finish():
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        """,
    )
    outcome = project.run("-p", "no:cacheprovider").expect(0, passed=1)
    outcome.says("CacheWarning", "cannot be written", "File too large", "1 gate: 1 pass")
    assert not project.entries
    assert not list(project.cache.rglob("*.tmp"))


def test_a_read_only_cache_that_has_the_measurement_serves_it_in_silence(measured: Project) -> None:
    measured.write(
        test_gate=GATE,
        conftest="""
            import errno, os, pathlib, sys

            # Root may write anywhere: what a read-only file system says is said here, of every file in the cache.
            def refuse(event, args):
                writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
                changes = writes or event in ("os.mkdir", "os.rename", "os.remove")
                if changes and ".lmgate_cache" in str(args[0]):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]))

            sys.addaudithook(refuse)
        """,
    )
    before = sorted(measured.cache.rglob("*"))
    measured.run("-W", "error").expect(0, passed=1).says("cached")
    assert sorted(measured.cache.rglob("*")) == before


def test_two_processes_at_once_measure_once(project: Project) -> None:
    project.write(conftest=COUNT_MEASUREMENTS, test_gate=GATE)
    outcomes = [finished(process) for process in [project.start(fresh=False), project.start(fresh=False)]]
    for outcome in outcomes:
        outcome.expect(0, passed=1)
    assert project.measured == ["die"]


def test_a_process_that_waits_takes_over_from_one_that_is_killed(project: Project) -> None:
    project.write(
        conftest=COUNT_MEASUREMENTS
        + """
    import os, time

    if "SLEEP" in os.environ:
        def counted_and_asleep(*args, **kwargs):
            counted(*args, **kwargs)
            time.sleep(600)

        Measurements.runner = counted_and_asleep
""",
        test_gate=GATE,
    )
    holder = project.start(env={"SLEEP": "1"}, fresh=False)
    wait_for(lambda: project.measured == ["die"], "the first process takes the model")
    waiter = project.start("-s", fresh=False)
    assert waiter.stdout is not None
    wait_for(lambda: "waiting for it" in waiter.stdout.readline(), "the second process waits for the first")
    os.killpg(holder.pid, signal.SIGKILL)
    assert finished(holder).code == -signal.SIGKILL
    finished(waiter).expect(0, passed=1)
    assert project.measured == ["die", "die"]


def test_fail_fast_stops_early_and_what_it_leaves_is_never_taken_for_whole(
    project: Project, models: Path, seed: Path
) -> None:
    _batches_of_four(project, models).write(
        conftest=IN_SMALL_BATCHES,
        test_gate="""
            import pytest

            @pytest.mark.bpb_max("sure", "words", 0.01)
            def test_hopeless(): pass

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_within(): pass
        """,
    )
    options = ("--lmgate-fail-fast", "--lmgate-report", "json:report.json")
    outcome = project.run(*options).expect(1, passed=1, failed=1)
    outcome.says("bits per byte at least", "stopped early by --lmgate-fail-fast")
    stopped, whole = project.report()["gates"]
    assert (stopped["verdict"], stopped["unit"], whole["verdict"]) == ("fail", "byte", "pass")
    assert stopped["value"] > stopped["limit"]
    assert len(project.entries) == 1, "only the measurement that was not stopped"
    bound = stopped["value"]
    project.run("--lmgate-report", "json:report.json").expect(1, passed=1, failed=1).is_silent_on("at least")
    assert project.report()["gates"][0]["value"] > bound
    assert len(project.entries) == 2
    # The same as was measured in one go.
    whole_run, resumed = project.folder / "whole", project.report()["gates"][0]
    shutil.copytree(seed, whole_run)
    project.run("--lmgate-cache", str(whole_run), "--lmgate-report", "json:report.json").expect(1)
    once = project.report()["gates"][0]
    assert once["fingerprint"] == resumed["fingerprint"]
    assert once["value"] == pytest.approx(resumed["value"], rel=1e-6)


def test_offline_says_what_is_missing_and_asks_no_network(project: Project) -> None:
    project.write(
        conftest="""
            import pathlib, socket

            def noted(*args, **kwargs):
                pathlib.Path(__file__).with_name("network.txt").write_text(repr(args))
                raise OSError("no network in this test")

            socket.socket.connect = socket.create_connection = socket.getaddrinfo = noted
        """,
        test_hub="""
            import pytest

            @pytest.mark.ppl_max("hub:no-such-org/no-such-model@v1", "words", 60)
            def test_model(): pass

            @pytest.mark.ppl_max("die", "hub:no-such-org/no-such-data", 60)
            def test_dataset(): pass

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_local(): pass
        """,
    )
    empty = {"HF_HOME": str(project.folder / "hub")}
    outcome = project.run("--lmgate-offline", env=empty).expect(1, error=2, passed=1)
    outcome.says(
        "model 'hub:no-such-org/no-such-model@v1': hub:no-such-org/no-such-model@v1 is not in the local hub cache",
        "dataset 'hub:no-such-org/no-such-data': hub:no-such-org/no-such-data is not in the local hub cache",
        "--lmgate-offline forbids fetching it",
    )
    outcome.is_silent_on("Traceback")
    network = project.folder / "network.txt"
    assert not network.exists(), network.read_text()
