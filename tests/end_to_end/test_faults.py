"""Faults in real processes: kills, damaged entries, caches that cannot be written, two processes at once."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, FACES, GATE, Project, finished, marked, wait_for

# 25 windows, 4 at a time; what each batch gave is kept at once, and a file says how many targets were known before.
IN_SMALL_BATCHES = """
    import functools, os, pathlib, signal
    import pytest

    def pytest_collection_finish():
        from pytest_lmgate.cache.store import Store
        from pytest_lmgate.measure import loop, scoring
        import numpy

        loop.SAVE_SECONDS = 0.0
        plain_score = scoring.score

        def score(runner, requests, job):
            known = None if job.partial is None else job.partial.arrays["measured"]
            with pathlib.Path(__file__).with_name("resumed.txt").open("a") as file:
                file.write(f"{0 if known is None else int(numpy.isfinite(known).sum())}\\n")
            return plain_score(runner, requests, job)

        import pytest_lmgate.measure.likelihoods as perplexity
        perplexity.score = score
        plain, saved = Store.put_partial, []

        def put_partial(self, *args):
            plain(self, *args)
            saved.append(1)
            if len(saved) == int(os.environ.get("KILL_AFTER_BATCHES", 0)):
                os.kill(os.getpid(), signal.SIGKILL)

        Store.put_partial = put_partial
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


ALL_THREE = """
    def test_scores(ppl_of):
        assert ppl_of("die", "words") < ppl_of("sure", "words") < ppl_of("hopeless", "words")
"""


def test_entries_that_cannot_be_trusted_are_set_aside_warned_of_and_measured_again(measured: Project) -> None:
    measured.write(conftest=COUNT_MEASUREMENTS, test_scores=ALL_THREE)
    before = {path.name: path.read_bytes() for path in measured.entries}
    truncated, flipped, foreign = measured.entries
    truncated.write_bytes(truncated.read_bytes()[:-1])
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 4
    flipped.write_bytes(data)
    foreign.write_bytes(before[truncated.name])  # whole and sealed, but another measurement's
    foreign.with_suffix(".partial").write_bytes(b"LMGATE1\nnot an entry")

    outcome = measured.with_torch.run().expect(0, passed=1).says("checksum", "another measurement")
    assert outcome.out.count("a cache entry cannot be trusted") >= 3
    assert sorted(measured.measured) == ["die", "hopeless", "sure"]
    aside = {path.name for path in measured.cache.glob("set-aside/*")}
    assert {truncated.name, flipped.name, foreign.name} <= aside
    # The second run is as if nothing had happened.
    measured.run("-W", "error").expect(0, passed=1).is_silent_on("trusted")
    assert len(measured.measured) == 3


def test_under_w_error_a_damaged_entry_is_an_error_once_and_the_measurement_is_kept(measured: Project) -> None:
    measured.write(test_gate=GATE)
    for entry in measured.entries:
        entry.write_bytes(b"")
    measured.with_torch.run("-W", "error").expect(1, error=1).says("CacheWarning", "1 gate: 1 pass")
    measured.run("-W", "error").expect(0, passed=1)


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
        test_gate=marked(hopeless='bpb_max("sure", "words", 0.01)', within='ppl_max("die", "words", 60.5)'),
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
        test_hub=marked(
            model='ppl_max("hub:no-such-org/no-such-model@v1", "words", 60)',
            dataset='ppl_max("die", "hub:no-such-org/no-such-data", 60)',
            local='ppl_max("die", "words", 60.5)',
        ),
    )
    empty = {"HF_HOME": str(project.folder / "hub")}
    outcome = project.run("--lmgate-offline", env=empty).expect(1, error=2, passed=1)
    outcome.says(
        "model 'hub:no-such-org/no-such-model@v1'", "dataset 'hub:no-such-org/no-such-data'", "--lmgate-offline"
    )
    outcome.is_silent_on("Traceback")
    network = project.folder / "network.txt"
    assert not network.exists(), network.read_text()
