"""Faults in real processes: kills, damaged entries, caches that cannot be written, two processes at once."""

import os
import signal

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, finished, marked, wait_for


def test_a_run_killed_while_measuring_is_resumed_and_the_next_is_right(dice: DiceProject) -> None:
    dice.models(red={"kills_after": 3}).gates([("red", "one")])
    assert dice.run().code == -signal.SIGKILL
    assert (len(dice.partials), len(dice.entries)) == (1, 0)
    dice.run("-s", "--lmgate-report=json:report.json").expect(0, passed=1).says("red on one: resumed at ")
    assert dice.report()["gates"][0]["value"] == pytest.approx(6)
    assert (len(dice.partials), len(dice.entries)) == (0, 1)


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


def test_a_process_that_waits_takes_over_from_one_that_is_killed(dice: DiceProject) -> None:
    dice.models(red={"held_after": 1}).gates([("red", "one")])
    hold = dice.folder / "hold.txt"
    hold.touch()
    holder = dice.start(fresh=False)
    wait_for(lambda: dice.partials, "the first process measures")
    waiter = dice.start("-s", fresh=False)
    assert waiter.stdout is not None
    wait_for(lambda: "waiting for it" in waiter.stdout.readline(), "the second process waits for the first")
    os.killpg(holder.pid, signal.SIGKILL)
    assert finished(holder).code == -signal.SIGKILL
    hold.unlink()
    finished(waiter).expect(0, passed=1)
    assert dice.loaded == ["red", "red"]


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
    outcome.says("model 'hub:no-such-org/no-such-model@v1'", "dataset 'hub:no-such-org/no-such-data'")
    outcome.says("--lmgate-offline").is_silent_on("Traceback")
    assert not (project.folder / "network.txt").exists()
