"""Records of the history, the hook ``pytest_lmgate_report``, and entries of ``.eval_results``."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from tests.end_to_end.projects import BROKEN_GATE, GATE, Project, environment, git, lmgate, lmgate_json, marked
from tests.warm import run_warm, warm_python

TWO_GATES = marked(one='ppl_max("die", "words", 60.5)', two='bpb_max("sure", "words", 0.5)')


def records(project: Project) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((project.folder / "runs").iterdir())]


def test_each_run_leaves_a_record_of_the_commit_that_was_measured_and_of_what_each_gate_found(
    measured: Project,
) -> None:
    uri = f"file://{measured.folder}/runs"
    measured.write(test_gate=TWO_GATES, pytest_ini=f"[pytest]\nlmgate_history = {uri}\n")
    (measured.folder / ".gitignore").write_text(".lmgate_cache\nruns\nreport.json\n__pycache__\n.pytest_cache\n")
    for command in ("init -q", "add .", "commit -qm first"):
        git(measured.folder, *command.split())
    commit = git(measured.folder, "rev-parse", "HEAD")
    for arguments in ((), ("-n", "2")):
        measured.run(*arguments, "--lmgate-report=json:report.json").expect(1, passed=1, failed=1)
        name = max((measured.folder / "runs").iterdir()).name
        assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z-{commit[:12]}-[0-9a-f]{{12}}\.json", name)
        record = records(measured)[-1]
        run = record["run"]
        assert (run["commit"], run["branch"], run["stopped"], record["problems"]) == (commit[:12], "main", False, [])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", run["date"])
        assert record["environment"]["packages"]["torch"]
        for gate, one in zip(record["gates"], measured.report()["gates"], strict=True):
            for key in ("id", "verdict", "value", "limit", "interval", "signature", "direction", "device", "identity"):
                assert gate[key] == one[key], key
    assert len({record["run"]["id"] for record in records(measured)}) == 2
    passing, _ = lmgate_json(measured.folder, "history", uri)["gates"]
    assert [run["verdict"] for run in passing["runs"]] == ["pass"] * 2
    lmgate(measured.folder, "history", f"{uri}/none", code=3).says(f"{uri}/none: expected records", "found none")


def test_reports_have_the_runs_of_each_gate_with_this_one_last(measured: Project) -> None:
    measured.write(test_gate=GATE, pytest_ini="[pytest]\nlmgate_history = runs\n")
    measured.run().expect(0)
    measured.change("/die}", "/sure}")
    measured.run("-n", "2", "--lmgate-report=json:report.json", "--lmgate-report=html:report.html").expect(1)
    (gate,) = measured.report()["gates"]
    assert [(run["verdict"], run["kind"]) for run in gate["history"]] == [("pass", "first"), ("fail", "worse")]
    assert gate["history"][1]["words"].startswith("60 -> ")
    page = (measured.folder / "report.html").read_text(encoding="utf-8")
    assert '<figure class="past drawn">' in page
    lmgate(measured.folder, "report", "report.json", "--html", "again.html")
    assert (measured.folder / "again.html").read_text(encoding="utf-8") == page
    next((measured.folder / "runs").iterdir()).write_text("{")
    done = measured.run("--lmgate-report=html:report.html").expect(1, failed=1)
    done.says("the reports have no history: ", "no JSON report, or record of --lmgate-history")


KEEP = """
    import os
    from pytest_lmgate.judge.result import to_json

    def pytest_lmgate_report(config, run):
        assert not hasattr(config, "workerinput")
        with open(config.rootpath / "heard.json", "x", encoding="utf-8") as file:
            file.write(to_json(run))
"""
BOTH = f"{GATE}\n{BROKEN_GATE.replace('test_gate', 'test_broken')}\ndef test_fixture(ppl_of): ppl_of('die', 'words')\n"


def test_it_receives_once_what_the_json_report_has(measured: Project) -> None:
    measured.write(test_both=BOTH, conftest=KEEP)
    measured.run("--lmgate-report=json:report.json", "--lmgate-history=r", "-n", "2").expect(1, passed=2, failed=1)
    heard = measured.report("heard.json")
    assert heard == measured.report()
    assert (len(heard["gates"]), len(heard["measurements"])) == (2, 1)


def test_it_needs_no_report_and_hears_of_a_session_that_was_stopped(measured: Project) -> None:
    measured.write(test_a=BROKEN_GATE, test_b=GATE, conftest=KEEP).run("-x").expect(1, failed=1)
    heard = measured.report("heard.json")
    assert (heard["run"]["stopped"], [gate["verdict"] for gate in heard["gates"]]) == (True, ["fail"])


def test_a_session_that_measures_nothing_does_not_call_it_and_leaves_no_record(measured: Project) -> None:
    measured.write(test_it=GATE, test_plain="def test_plain(): pass\n", conftest=KEEP)
    for argument in ("test_plain.py", "--no-lmgate", "--co", "--lmgate-plan"):
        measured.run(argument, "--lmgate-history=runs").expect(0)
    assert not (measured.folder / "heard.json").exists()
    measured.write(test_it=marked(gate="ppl_max('./gone', 'words', 1)"))
    measured.run("--lmgate-history=runs").expect(1, passed=1, error=1)
    assert not (measured.folder / "runs").exists()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("run.verdicts = ()", "AttributeError: "),
        ("sys.exit(0)", "SystemExit: 0"),
        ("pytest.exit('done', returncode=0)", "Exit: done"),
    ],
)
def test_an_exception_names_its_place_and_fails_the_session_alone(measured: Project, statement: str, says: str) -> None:
    broken = f"""
        import pytest, sys

        def pytest_lmgate_report(run):
            {statement}
    """
    measured.write(test_it=GATE, conftest=KEEP, plugin=broken, other=broken.replace(statement, f"{statement}  # 2"))
    done = measured.run("-p", "plugin", "-p", "other", "--lmgate-report=json:report.json", env={"PYTHONPATH": "."})
    done.expect(1, passed=1).says("1 gate: 1 pass")
    for name in ("plugin", "other"):
        assert f"ERROR: {measured.folder / name}.py:4: pytest_lmgate_report: {says}" in done.out
    assert measured.report("heard.json") == measured.report()


COMMIT = "0123456789abcdef0123456789abcdef01234567"
# As the library caches a dataset that it read on the hub; a process of its own, since HF_HOME is read at import.
CACHE_DATASET = """
import json, pathlib, shutil, sys
import datasets
rows, home, commit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
datasets.load_dataset("json", data_files={"test": str(rows)})
(made,) = (home / "datasets" / "json").glob("*/0.0.0/*/")
kept = home / "datasets" / "org___quiz" / "main" / "0.0.0" / commit
shutil.copytree(made, kept)
(kept / "json-test.arrow").rename(kept / "quiz-test.arrow")
info = json.loads((kept / "dataset_info.json").read_text())
(kept / "dataset_info.json").write_text(json.dumps({**info, "dataset_name": "quiz", "config_name": "main"}))
shutil.rmtree(home / "datasets" / "json")
"""
EVAL_YAML = "name: Quiz\ntasks:\n- {id: org-quiz, config: main}\n- {id: other, config: side, split: dev}\n"
HUB = f"hub: org/quiz, name: main, split: test, revision: {COMMIT}"
QUIZ = "question: q, choices: options, answer: answer"
TESTS = (
    marked(
        passes="accuracy_min('die', 'quiz', 0.1)",
        again="accuracy_min('die', 'quiz', 0.1, confidence=0.9)",
        fails="accuracy_min('sure', 'quiz', 1.0)",
        local="ppl_max('die', 'words', 60.5)",
        part="accuracy_min('die', 'few', 0.1)",
        broken="ppl_max('nan', 'words', 60.5)",
        pinned="accuracy_min('die', 'pinned', 0.1)",
        kl="kl_max('sure', 'die', 'words', 1e9)",
    )
    + """
def test_fixture(ppl_of):
    assert ppl_of("die", "texts", protocol="document") > 1
"""
)


@pytest.fixture
def env(project: Project) -> dict[str, str]:
    """Environment of a local hub cache that holds the dataset ``org/quiz`` and its eval.yaml."""
    home, rows = project.folder / "hf", project.folder / "rows.jsonl"
    asked = {"options": ["w1", "w2"]}
    lines = [{"q": f"w{i}", **asked, "answer": i % 2, "text": f"w{i} w{i + 1} w3"} for i in range(1, 40)]
    rows.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    env = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    repository = home / "hub" / "datasets--org--quiz"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (snapshot / "eval.yaml").write_text(EVAL_YAML)
    python, command = warm_python(environment(), "torch"), ("-c", CACHE_DATASET, str(rows), str(home), COMMIT)
    made = run_warm(python, *command, folder=project.folder, environment={"PATH": "", **env})
    assert made.returncode == 0, made.stderr
    project.add("datasets", quiz=f"{HUB}, {QUIZ}", few=f"{HUB}, {QUIZ}, limit: 9", texts=HUB)
    return env


def read(file: Path) -> list[EvalResultEntry]:
    return parse_eval_result_entries(yaml.safe_load(file.read_text(encoding="utf-8")))


def test_files_have_the_values_of_the_json_report_and_the_rest_is_told(project: Project, env: dict[str, str]) -> None:
    project.write(test_hub=TESTS)
    # The library's cache of another commit is not taken for the pinned one.
    project.add("datasets", pinned=f"{HUB.replace(COMMIT, 'f' * 40)}, {QUIZ}")
    (project.folder / "out").mkdir()
    (project.folder / "out" / "die.yaml").write_text("of an earlier run")
    reports = ("--lmgate-report=json:report.json", "--lmgate-report=eval-results:out")
    outcome = project.run(*reports, "-n", "1", env=env).expect(1, passed=6, failed=1, error=2)

    outcome.says(f"expected the revision {'f' * 40}, got {COMMIT}, which the local cache has")
    report = project.report()
    gates = {gate["id"].partition("::")[2].partition(":")[0]: gate for gate in report["gates"]}
    (measured,) = report["measurements"]
    assert {file.name for file in (project.folder / "out").iterdir()} == {"die.yaml", "sure.yaml"}
    (accuracy, perplexity), (other,) = (read(project.folder / "out" / f"{name}.yaml") for name in ("die", "sure"))
    for entry, gate in ((accuracy, gates["test_passes"]), (perplexity, measured), (other, gates["test_fails"])):
        assert (entry.dataset_id, entry.task_id, entry.dataset_revision) == ("org/quiz", "org-quiz", COMMIT)
        assert (entry.value, entry.date) == (gate["value"], report["run"]["date"])
        facts = dict(part.partition(":")[::2] for part in entry.notes.split("|"))
        assert json.loads(facts["interval95"]) == gate["interval"]
        assert (float(facts["stderr"]), int(facts["n"])) == (gate["stderr"], gate["n"])
        assert entry.notes.endswith(f"|{gate['signature']}")
    assert gates["test_part"]["hub"] == {**gates["test_passes"]["hub"], "is_part": True}
    left_out = [line for line in outcome.out.splitlines() if "eval-results:out: " in line]
    assert [line.partition("eval-results:out: ")[2][:7] for line in left_out] == [
        "1 value",
        "1 value",
        "2 value",
        "1 value",
    ]
