"""A measurement that the user interrupts says what is kept, and the next run says where it goes on."""

import os
import re
import signal
import time
from typing import Any

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import finished, wait_for

# Ctrl-C at a terminal goes to every process there; one in the background starts without Python's handler.
FROM_TERMINAL = """
    import os, pathlib, signal

    signal.signal(signal.SIGINT, signal.default_int_handler)

    def pytest_runtest_logreport(report):
        if report.when == "teardown" and "PYTEST_XDIST_WORKER" not in os.environ:
            pathlib.Path("reported.txt").touch()
"""
SLOW_TO_END = """
    import pathlib, time
    import pytest

    @pytest.fixture(scope="session", autouse=True)
    def slow():
        yield
        pathlib.Path("ending.txt").touch()
        time.sleep(600)

    @pytest.mark.ppl_max("a", "one", 6.01)
    def test_gate(): pass
"""


def _measuring(dice: DiceProject, *options: str) -> Any:
    """Start a run of two gates, and return it when one is judged and the measurement of the other waits half way."""
    dice.models(a={}, b={"held_after": 2}).gates([("a", "one"), ("b", "two")]).write(from_terminal=FROM_TERMINAL)
    (dice.folder / "hold.txt").touch()
    process = dice.start("-p", "from_terminal", "--lmgate-report=json:report.json", *options)
    wait_for((dice.folder / "reported.txt").exists, "one gate is judged")
    wait_for(lambda: len(dice.entries) == 1 and dice.partials, "one is measured, another half way")
    return process


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_signal_from_the_terminal_ends_with_a_summary_and_keeps_the_rest(
    dice: DiceProject, workers: tuple[str, ...]
) -> None:
    process = _measuring(dice, *workers)
    os.killpg(process.pid, signal.SIGINT)
    begun = time.monotonic()
    outcome = finished(process, timeout=60).expect(2)
    assert time.monotonic() - begun < 30
    outcome.says("KeyboardInterrupt", "1 gate: 1 pass").is_silent_on("INTERNALERROR", "CacheWarning")
    at = re.search(r"lmgate: b on two: interrupted at (\d+%); this part is kept", outcome.text)
    assert at is not None, outcome.text
    assert [gate["verdict"] for gate in dice.report()["gates"]] == ["pass"]
    assert (len(dice.entries), len(dice.partials)) == (1, 1)
    (dice.folder / "hold.txt").unlink()
    resumed = dice.run("-W", "error", "--lmgate-explain-cache").expect(0, passed=2)
    resumed.says("cached", f"lmgate: b on two: resumed at {at[1]}", "miss, partial: ")


def test_a_second_signal_ends_at_once_and_what_was_kept_stays(dice: DiceProject) -> None:
    dice.write(test_slow=SLOW_TO_END)
    process = _measuring(dice, "test_slow.py", "lmgate.yaml")
    os.killpg(process.pid, signal.SIGINT)
    wait_for((dice.folder / "ending.txt").exists, "the session ends, slowly")
    os.killpg(process.pid, signal.SIGINT)
    begun = time.monotonic()
    finished(process, timeout=60)
    assert process.returncode not in (0, 1)
    assert time.monotonic() - begun < 30
    assert (len(dice.entries), len(dice.partials)) == (1, 1)
    (dice.folder / "hold.txt").unlink()
    dice.run("lmgate.yaml", "-W", "error").expect(0, passed=2).says("lmgate: b on two: resumed at ")
