"""``--lmgate-history``: each run that measured something leaves one record, whoever ran it and however it ended."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.projects import GATE, Project, marked

TWO_GATES = marked(one='ppl_max("die", "words", 60.5)', two='bpb_max("sure", "words", 0.5)')


def records(project: Project, folder: str = "runs") -> list[dict[str, Any]]:
    found = sorted((project.folder / folder).iterdir())
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_record_says_which_commit_was_measured_and_what_each_gate_found(measured: Project) -> None:
    measured.write(test_gate=TWO_GATES)
    (measured.folder / ".gitignore").write_text(".lmgate_cache\n")
    git(measured.folder, "init", "-q")
    git(measured.folder, "add", ".")
    git(measured.folder, "commit", "-qm", "first")
    commit = git(measured.folder, "rev-parse", "HEAD").strip()
    measured.run("--lmgate-history=runs", "--lmgate-report=json:report.json").expect(1, passed=1, failed=1)
    (path,) = (measured.folder / "runs").iterdir()
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z-{commit[:12]}-[0-9a-f]{{12}}\.json", path.name)
    (record,) = records(measured)
    run = record["run"]
    assert (run["commit"], run["branch"], run["stopped"], record["problems"]) == (commit[:12], "main", False, [])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", run["date"])
    assert record["environment"]["packages"]["torch"]
    for gate, one in zip(record["gates"], measured.report()["gates"], strict=True):
        for key in ("id", "verdict", "value", "limit", "interval", "signature", "direction", "device", "identity"):
            assert gate[key] == one[key], key
    assert [gate["verdict"] for gate in record["gates"]] == ["pass", "fail"]


def test_each_run_has_a_file_of_its_own_also_at_a_uri_and_written_by_the_controller(measured: Project) -> None:
    uri = f"file://{measured.folder}/runs"
    measured.write(test_gate=TWO_GATES, pytest_ini=f"[pytest]\nlmgate_history = {uri}\n")
    for arguments in ((), ("-n", "2")):
        measured.run(*arguments).expect(1, passed=1, failed=1)
    one, two = records(measured)
    assert one["run"]["id"] != two["run"]["id"]
    assert [gate["value"] for gate in one["gates"]] == [gate["value"] for gate in two["gates"]]
    passing, _ = lmgate_json(measured.folder, "history", uri)["gates"]
    assert [run["verdict"] for run in passing["runs"]] == ["pass"] * 2
    lmgate(measured.folder, "history", f"{uri}/none", code=3).says(f"{uri}/none: expected records", "found none")


def test_a_run_that_measured_nothing_leaves_no_record(measured: Project) -> None:
    measured.write(test_gate=marked(gate="ppl_max('./gone', 'words', 1)"))
    measured.run("--lmgate-history=runs").expect(1, error=1)
    measured.write(test_gate=GATE)
    measured.run("--lmgate-history=runs", "--no-lmgate").expect(0, skipped=1)
    measured.run("--lmgate-history=runs", "--collect-only").expect(0)
    measured.write(test_gate="def test_plain(): pass\n")
    measured.run("--lmgate-history=runs").expect(0, passed=1)
    assert not (measured.folder / "runs").exists()


def test_reports_have_the_runs_of_each_gate_with_this_one_last(measured: Project) -> None:
    measured.write(test_gate=GATE, pytest_ini="[pytest]\nlmgate_history = runs\n")
    measured.run().expect(0)
    measured.change("/die}", "/sure}")
    measured.run("-n", "2", "--lmgate-report=json:report.json", "--lmgate-report=html:report.html").expect(1)
    (gate,) = measured.report()["gates"]
    assert [(run["verdict"], run["kind"]) for run in gate["history"]] == [("pass", "first"), ("fail", "worse")]
    assert gate["history"][1]["value"] == gate["value"]
    assert gate["history"][1]["words"].startswith("60 -> ")
    page = (measured.folder / "report.html").read_text(encoding="utf-8")
    assert '<figure class="past drawn">' in page
    lmgate(measured.folder, "report", "report.json", "--html", "again.html")
    assert (measured.folder / "again.html").read_text(encoding="utf-8") == page
    next((measured.folder / "runs").iterdir()).write_text("{")
    done = measured.run("--lmgate-report=html:report.html").expect(1, failed=1)
    done.says("the reports have no history: ", "no JSON report, or record of --lmgate-history")
