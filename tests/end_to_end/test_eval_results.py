"""``--lmgate-report eval-results:DIR``: huggingface_hub reads it, and its values are those of the JSON report."""

import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from tests.end_to_end.projects import Project, environment, marked
from tests.warm import run_warm, warm_python

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
    lines = [
        {"q": f"w{i}", "options": ["w1", "w2"], "answer": i % 2, "text": f"w{i} w{i + 1} w3"} for i in range(1, 40)
    ]
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
    assert [line.partition("eval-results:out: ")[2][:20] for line in left_out] == [
        "1 value left out: th", "1 value left out: li", "2 values left out: n", "1 value left out: a ",
    ]  # fmt: skip
