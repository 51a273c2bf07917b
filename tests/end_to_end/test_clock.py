"""A clock that is set back: the system itself lies, see `tests.cache.faulty_libc`."""

import os

import pytest

from tests.cache.faulty_libc import faulty_libc
from tests.end_to_end.commands import lmgate_json
from tests.end_to_end.dice import DiceProject

TWO_DAYS = str(2 * 86400)
REPORTS = ("--lmgate-report=json:report.json", "--lmgate-report=html:report.html", "--lmgate-history=runs")


def test_a_clock_that_is_set_back_between_runs_gives_no_stale_hit_and_no_negative_time(
    dice: DiceProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice.models(a={}).gates([("a", "one")])
    env = {"LD_PRELOAD": faulty_libc(tmp_path_factory.mktemp("libc"))["LD_PRELOAD"], "CLOCK_SECONDS": TWO_DAYS}
    dice.run(*REPORTS, env=env, fresh=True).expect(0, passed=1)
    dice.run(*REPORTS).expect(0, passed=1).says("cached")
    (dated,) = dice.report()["gates"]
    assert len(list((dice.folder / "runs").iterdir())) == 2
    # The same size and the same time of change as before, and other content.
    file = dice.folder / "a.die"
    status = file.stat()
    file.write_text(file.read_text().replace("6", "8"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    outcome = dice.run(*REPORTS).expect(1, failed=1)
    (gate,) = dice.report()["gates"]
    assert gate["value"] == pytest.approx(8)
    assert gate["seconds"] >= 0 <= dated["seconds"]
    outcome.is_silent_on("-1 day", "Traceback")
    assert dice.loaded == ["a", "a"]
    # By its own clock the first run is of the day after tomorrow: no report calls it earlier, and it comes last.
    assert [run["verdict"] for run in gate["history"]] == ["pass", "fail"]
    (recorded,) = lmgate_json(dice.folder, "history", "runs")["gates"]
    assert [run["verdict"] for run in recorded["runs"]] == ["pass", "fail", "pass"]
    assert recorded["runs"][2]["date"] > recorded["runs"][1]["date"]
