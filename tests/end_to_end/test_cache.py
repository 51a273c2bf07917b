"""What changes a measurement's address, and who finds it: no stale hit, also where a session patches a library."""

import os
import shutil
from pathlib import Path

import pytest

from tests.cache.faulty_libc import faulty_libc
from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project, lmgate_json, marked

# Test by test: the gate, and the ingredient in which it differs from what has been measured. The rest: test_keys.py.
CHANGES = {
    "weights": ("'./weights', 'words'", "model/model.safetensors"),
    "dtype": ("'double', 'words'", "dtype"),
    "data": ("'die', './changed.txt'", "data"),
    "stride": ("'die', 'words', stride=8", "protocol"),
}


def test_whatever_can_change_the_number_is_measured_again_and_named(measured: Project, models: Path) -> None:
    weights = measured.model("weights", models / "die") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    (measured.folder / "changed.txt").write_text((models / "words.txt").read_text() + " w1")
    measured.add("models", double=f"path: {models}/die, dtype: float64")
    measured.write(
        conftest=COUNT_MEASUREMENTS,
        test_changed=marked(**{name: f"ppl_max({gate}, limit=1e9)" for name, (gate, _) in CHANGES.items()}),
        test_same=GATE,
    )
    outcome = measured.with_torch.run("--lmgate-explain-cache", "--lmgate-report", "json:report.json")
    outcome.expect(0, passed=len(CHANGES) + 1)
    lines = {line.split("::")[1]: line for line in outcome.out.splitlines() if line.startswith("cache test_")}
    for name, (_, ingredient) in CHANGES.items():
        explanation = lines[f"test_{name}"].partition(": miss, ")[2]
        assert f"{ingredient}: " in explanation, f"{name}: expected {ingredient} in {lines[f'test_{name}']}"
        assert explanation.count(" -> ") == 1 + explanation.count("(none) -> "), "one ingredient differs, and no other"
    assert lines["test_gate"].endswith("]: hit")
    assert [gate["cached"] for gate in measured.report()["gates"]] == [False] * len(CHANGES) + [True]
    assert len(measured.measured) == len(CHANGES)
    measured.run("--lmgate-report", "json:report.json").expect(0, passed=len(CHANGES) + 1)
    assert all(gate["cached"] for gate in measured.report()["gates"]), "all of it is found again"


PATCH = """
    from transformers.models.llama import modeling_llama

    modeling_llama.LlamaRMSNorm.forward = lambda self, states: states * 0.5
"""
IMPORT = """
    from transformers.models.llama import modeling_llama
"""
GATE_OF_SURE = GATE.replace("'die'", "'sure'").replace("60.5", "1e300")
NOT_KEPT = "not kept, measured again in each session: sure (this session patched "
WAY_OUT = 'give the model a revision that you change with its code: lmgate.model(..., revision="1"), or revision:'


def _run(project: Project, conftest: str, *says: str) -> tuple[float, bool]:
    project.write(conftest=COUNT_MEASUREMENTS + conftest, test_gate=GATE_OF_SURE)
    outcome = project.with_torch.run("--lmgate-explain-cache", "--lmgate-report=json:report.json").expect(0, passed=1)
    outcome.says(*says)
    if not says:
        outcome.is_silent_on("not kept")
    (gate,) = project.report()["gates"]
    return gate["value"], gate["cached"]


def test_patched_sessions_measure_for_themselves_and_the_plain_model_is_found_again(measured: Project) -> None:
    entries = measured.entries
    why = (NOT_KEPT, "LlamaRMSNorm.forward is conftest.<lambda>", WAY_OUT, "miss, not kept: this session patched ")
    patched, cached = _run(measured, PATCH, *why)
    assert not cached
    assert measured.measured == ["sure"]
    assert measured.entries == entries
    assert measured.partials == []
    plain, cached = _run(measured, IMPORT)
    assert cached, "importing is no change"
    assert plain != patched
    # A revision keeps them.
    measured.change("/sure}", "/sure, revision: '1'}")
    assert [_run(measured, PATCH) for _ in range(2)] == [(patched, False), (patched, True)]


def test_a_second_machine_measures_nothing(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    project.write(conftest=COUNT_MEASUREMENTS, test_gate=GATE)
    shared = tmp_path_factory.mktemp("shared")
    other = Project(tmp_path_factory.mktemp("elsewhere") / "checkout")
    shutil.copytree(project.folder, other.folder)
    remote = ("--lmgate-remote-cache", f"file://{shared}")
    project.run(*remote).expect(0, passed=1)
    assert project.measured == ["die"]
    other.run(*remote, "-n", "2", torch_free=True).expect(0, passed=1).says("cached")
    assert other.measured == []
    # What was read lies in the machine's own cache then.
    shutil.rmtree(shared)
    other.run(*remote, torch_free=True).expect(0, passed=1)
    assert other.measured == []


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
