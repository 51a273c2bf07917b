"""``--lmgate-history``: each run that measured something leaves one record, whoever ran it and however it ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.projects import BROKEN_GATE, GATE, Project, environment

TWO_GATES = """
    import pytest

    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_one(): pass

    @pytest.mark.bpb_max("sure", "words", 0.5)
    def test_two(): pass
"""


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
    assert record["commit"] == commit[:12]
    assert record["branch"] == "main"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record["date"])
    assert record["stopped"] is False
    assert record["problems"] == []
    assert record["versions"]["torch"]
    kept = ("id", "metric", "model", "dataset", "verdict", "value", "limit", "stderr", "interval", "n", "unit")
    reported = measured.report()["gates"]
    for gate, one in zip(record["gates"], reported, strict=True):
        for key in (*kept, "signature", "direction", "device", "identity"):
            assert gate[key] == one[key], key
    assert [gate["verdict"] for gate in record["gates"]] == ["pass", "fail"]
    assert {gate["direction"] for gate in record["gates"]} == {"lower"}
    assert {len(gate["identity"]["data"]) for gate in record["gates"]} == {64}


def test_each_run_has_a_file_of_its_own_and_with_workers_the_controller_writes_it(measured: Project) -> None:
    measured.write(test_gate=TWO_GATES, pytest_ini="[pytest]\nlmgate_history = runs\n")
    for arguments in ((), ("-n", "2"), ("--lmgate-holm",)):
        measured.run(*arguments).expect(1, passed=1, failed=1)
    one, two, three = records(measured)
    assert len({one["run"], two["run"], three["run"]}) == 3
    assert one["gates"] == two["gates"] == three["gates"]


def test_the_folder_is_named_by_the_environment_too_and_is_relative_to_rootdir(measured: Project) -> None:
    measured.write(test_gate=GATE)
    inner = measured.folder / "inner"
    inner.mkdir()
    measured.run("../test_gate.py", "--rootdir=..", env={"LMGATE_HISTORY": "runs"}, cwd=inner).expect(0)
    (record,) = records(measured)
    assert record["commit"] == record["branch"] == ""
    assert len(record["gates"]) == 1


def test_a_run_that_was_stopped_is_recorded_as_such(measured: Project) -> None:
    measured.write(test_a=BROKEN_GATE, test_b=GATE)
    measured.run("-x", "--lmgate-history=runs").expect(1, failed=1)
    (record,) = records(measured)
    assert record["stopped"] is True
    assert [gate["verdict"] for gate in record["gates"]] == ["fail"]


def test_ctrl_c_leaves_what_was_judged_before_it(measured: Project) -> None:
    measured.write(test_a=GATE, test_b="def test_b(): raise KeyboardInterrupt")
    measured.run("--lmgate-history=runs").expect(2)
    (record,) = records(measured)
    assert record["stopped"] is True
    assert [gate["verdict"] for gate in record["gates"]] == ["pass"]


def test_a_lost_verdict_is_recorded_as_a_problem(measured: Project) -> None:
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item):
            report = yield
            if "test_two" in report.nodeid:
                report.user_properties = []
            return report
    """
    measured.write(test_gate=TWO_GATES.replace("0.5)", "50)"), conftest=conftest)
    measured.run("--lmgate-history=runs").expect(1, passed=2)
    (record,) = records(measured)
    assert [gate["id"] for gate in record["gates"]] == ["test_gate.py::test_one::ppl_max[die-words]"]
    assert "the verdict of test_gate.py::test_two never arrived" in record["problems"][0]


def test_a_run_that_measured_nothing_leaves_no_record(measured: Project) -> None:
    measured.write(test_gate="import pytest\n@pytest.mark.ppl_max('./gone', 'words', 1)\ndef test_gate(): pass\n")
    measured.run("--lmgate-history=runs").expect(1, error=1)
    measured.write(test_gate=GATE)
    measured.run("--lmgate-history=runs", "--no-lmgate").expect(0, skipped=1)
    measured.run("--lmgate-history=runs", "--collect-only").expect(0)
    measured.write(test_gate="def test_plain(): pass\n")
    measured.run("--lmgate-history=runs").expect(0, passed=1)
    assert not (measured.folder / "runs").exists()


def test_a_record_that_cannot_be_written_fails_the_session(measured: Project) -> None:
    measured.write(test_gate=GATE)
    (measured.folder / "file").write_text("")
    measured.run("--lmgate-history=file/runs").expect(1, passed=1).says("--lmgate-history", "cannot be written")


def test_a_history_at_a_uri_is_written_and_read_there(measured: Project, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/elsewhere/runs"
    measured.write(test_gate=GATE, pytest_ini=f"[pytest]\nlmgate_history = {uri}\n")
    for arguments in ((), ("-n", "2")):
        measured.run(*arguments).expect(0, passed=1)
    assert len(list((tmp_path / "elsewhere/runs").glob("*.json"))) == 2
    (gate,) = lmgate_json(measured.folder, "history", uri)["gates"]
    assert [run["verdict"] for run in gate["runs"]] == ["pass", "pass"]
    lmgate(measured.folder, "history", f"{uri}/none", code=3).says(f"{uri}/none: expected records", "found none")


def test_a_uri_of_no_known_store_is_refused_before_anything_is_measured(measured: Project) -> None:
    measured.write(test_gate=GATE)
    for arguments in ((), ("-n", "2")):
        done = measured.run("--lmgate-history=nosuch://me:secret@bucket/runs", *arguments).expect(4)
        done.says(
            "--lmgate-history: expected a usable address such as s3://bucket/folder, got 'nosuch://***@bucket/runs'"
        )
        done.is_silent_on("secret", "Traceback")
    offline = measured.run("--lmgate-history=memory://runs", "--lmgate-offline").expect(4)
    offline.says("--lmgate-history memory://runs needs the network, which --lmgate-offline forbids")


def test_a_pull_request_from_a_fork_records_nothing_at_a_uri(measured: Project, tmp_path: Path) -> None:
    measured.write(test_gate=GATE)
    fork = {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "7", "CI_MERGE_REQUEST_PROJECT_ID": "1"}
    done = measured.run(f"--lmgate-history=file://{tmp_path}/runs", env=fork).expect(0, passed=1)
    done.says(f"--lmgate-history file://{tmp_path}/runs: this run is not recorded, as its code comes from a fork")
    assert not (tmp_path / "runs").exists()


def test_reports_have_the_runs_of_each_gate_with_this_one_last(measured: Project) -> None:
    measured.write(test_gate=GATE, pytest_ini="[pytest]\nlmgate_history = runs\n")
    measured.run().expect(0)
    yaml = measured.folder / "lmgate.yaml"
    yaml.write_text(yaml.read_text().replace("/die}", "/sure}"))
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
    done.says("the reports have no history: ", "expected a record of the history")


def test_lmgate_history_reads_what_runs_recorded_and_names_the_one_that_got_worse(measured: Project) -> None:
    measured.write(test_gate=GATE, pytest_ini="[pytest]\nlmgate_history = runs\n")
    measured.run().expect(0)
    yaml = measured.folder / "lmgate.yaml"
    yaml.write_text(yaml.read_text().replace("/die}", "/sure}"))
    measured.run().expect(1)
    command = [sys.executable, "-m", "pytest_lmgate.cli", "history", "runs", "--json"]
    done = subprocess.run(command, cwd=measured.folder, env=environment(), capture_output=True, text=True, check=True)
    (gate,) = json.loads(done.stdout)["gates"]
    assert [run["verdict"] for run in gate["runs"]] == ["pass", "fail"]
    assert gate["first_change"] == gate["runs"][1]
    assert gate["first_change"]["finding"]["kind"] == "worse"


def test_a_gate_that_is_expected_to_fail_is_recorded_as_such(measured: Project) -> None:
    measured.write(test_gate=BROKEN_GATE.replace("def test", "@pytest.mark.xfail(reason='known')\ndef test"))
    measured.run("--lmgate-history=runs").expect(0)
    (gate,) = records(measured)[0]["gates"]
    assert (gate["verdict"], gate["xfail"]) == ("fail", True)


def test_a_paired_gate_shows_its_own_verdict_in_comparisons_and_histories(noisy: Project) -> None:
    """A copy of `warm` is a little worse on every word: paired a clear change, unpaired far within noise."""
    import safetensors.torch

    folder = noisy.model("worse", noisy.folder / "warm")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 1.2
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    gate = """
        import pytest
        import pytest_lmgate as lmgate

        @pytest.fixture(scope="session")
        def rows(): return [" ".join(f"w{(7 * i * j) % 57}" for j in range(1, 12)) for i in range(1, 50)]

        @pytest.mark.no_regression("ppl", "new", lmgate.fixture("rows"), "0.5%", against="warm", protocol="document")
        def test_gate(): pass
    """
    noisy.write(test_gate=gate, pytest_ini="[pytest]\nlmgate_history = runs\n")
    yaml = noisy.folder / "lmgate.yaml"
    written = yaml.read_text(encoding="utf-8")
    for code, name in enumerate(("warm", "worse")):
        yaml.write_text(written.replace("models:\n", f"models:\n  new: {{path: {name}}}\n"), encoding="utf-8")
        noisy.run(f"--lmgate-report=json:{name}.json").expect(code)
    compared = lmgate(noisy.folder, "compare", "warm.json", "worse.json", code=1)
    compared.says("PASS -> FAIL", "65.033 -> 67.3436  +3.55% [+2.96, +4.12]  fails now, beyond the tolerance of 0.5%")
    comment = lmgate(noisy.folder, "compare", "warm.json", "worse.json", "--markdown", code=1)
    comment.says("| +3.55% [+2.96, +4.12] | fails now, beyond the tolerance of 0.5% |")
    said = "FAIL at +3.55% [+2.96, +4.12] against the model 'warm', tolerance 0.5%"
    lmgate(noisy.folder, "history", "runs").says("degraded [one-sided]", f": worse, {said}")
    for done in (compared, comment):
        done.is_silent_on("within noise")
    assert noisy.report("worse.json")["gates"][0]["history"][1]["words"] == said
