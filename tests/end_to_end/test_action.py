"""The GitHub action: its scripts and conditions run as a runner runs them, with a ``gh`` that keeps what it is told."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.workflows import ACTION, BOT, ROOT, STEPS, GitHub

NO_REGRESSION = "no_regression: {metric: ppl, model: red, dataset: one, tolerance: 1%}"


@pytest.fixture
def github(tmp_path_factory: pytest.TempPathFactory) -> GitHub:
    return GitHub(tmp_path_factory.mktemp("hub") / "github")


@pytest.fixture
def gated(dice: DiceProject) -> DiceProject:
    die(dice, 6)
    return dice


def die(project: DiceProject, sides: int, *more: str) -> None:
    """Write a gate that a die of six sides passes, and more."""
    project.models(red={"sides": sides}).gates([("red", "one")])
    with (project.folder / "lmgate.yaml").open("a") as file:
        file.writelines(f"  - {gate}\n" for gate in more)


def test_only_its_own_comment_is_edited_and_each_name_has_one(gated: DiceProject, github: GitHub) -> None:
    github.run(gated.folder, event="push", name="first").expect(True)
    github.run(gated.folder, name="first")
    marker = github.comments[0].partition("\n")[0]
    bodies = {"someone": f"{marker}\nmine", BOT: f"a quote: {marker}"}
    others = [{"id": at, "user": {"login": who}, "body": body} for at, (who, body) in enumerate(bodies.items())]
    github.change(comments=[*others, *github.state["comments"]])
    die(gated, 7)
    github.run(gated.folder, name="first")
    github.run(gated.folder, name="int8; $(touch gone)", is_same_job=True)
    *kept, first, second = github.comments
    assert kept == list(bodies.values())
    assert "Compared with the default branch" in first
    assert "Compared with" not in second, "the other project of the job is no earlier run of this one"
    assert second.partition("\n")[0] != marker
    assert "### Model gates int8; $(touch gone)" in second
    assert not (gated.folder / "gone").exists()


def test_a_fork_gets_no_comment_and_accepts_no_model(gated: DiceProject, github: GitHub) -> None:
    github.change(labels=["accept"])
    for head in ("stranger/r", None):
        github.run(gated.folder, head=head, update_label="accept").expect(True).says("from a fork", "1 gate: 1 pass")
    assert github.state["calls"] == []
    assert github.state["labels"] == ["accept"]
    github.run(gated.folder, event="pull_request_target", head="stranger/r").expect(False).says("use pull_request")
    assert len(gated.loads) == 1, "the code of strangers gets no token, and does not run"


def test_the_cache_is_saved_after_a_red_run_and_found_by_the_next(gated: DiceProject, github: GitHub) -> None:
    die(gated, 7)
    github.run(gated.folder).expect(False)
    assert len(gated.loads) == 1
    assert github.caches == ["lmgate-Linux--.-gates-1-1"]
    # A new machine has a checkout alone.
    subprocess.run(["rm", "-rf", gated.cache], check=True)
    github.run(gated.folder).expect(False).says("cached")
    assert len(gated.loads) == 1
    github.run(gated.folder, comment="false", variables={"LMGATE_CACHE": str(gated.cache)}).expect(False)
    assert len(github.caches) == 2, "a runner that keeps its cache itself saves none"


def test_a_pull_request_has_one_comment_which_the_next_run_edits_and_is_compared_with_the_default_branch(
    gated: DiceProject, github: GitHub
) -> None:
    github.run(gated.folder, event="push").expect(True)
    assert github.comments == []
    assert github.caches == ["lmgate-Linux--.-gates-1-1", "lmgate.main--.-gates-1-1"]
    run = github.run(gated.folder).expect(True)
    (comment,) = github.comments
    assert comment.startswith("<!-- lmgate: ")
    assert "**1 gate: 1 pass**" in comment
    assert "[The whole run](https://github.com/o/r/actions/runs/2)" in comment
    assert "## lmgate" in run.summary
    assert json.loads(Path(run.outputs["report"]).read_text())["gates"][0]["verdict"] == "pass"
    die(gated, 7)
    github.run(gated.folder).expect(False).says("::error file=lmgate.yaml,line=")
    (edited,) = github.comments
    assert "**1 gate: 1 fail**" in edited
    assert "fails now" in edited
    assert "/runs/3" in edited
    github.change(refuses=True)
    github.run(gated.folder).expect(False).says("::warning title=lmgate::", "pull-requests: write")


def test_a_matrix_has_a_comment_and_a_report_of_main_for_each_of_its_jobs(gated: DiceProject, github: GitHub) -> None:
    small, large = ({"model": "small", "on": [1, 2]}, {"model": "large, new", "on": None})
    for matrix in (small, large):
        github.run(gated.folder, event="push", matrix=matrix).expect(True)
    assert len([name for name in github.caches if name.startswith("lmgate.main")]) == 2
    for matrix in (small, large, small):
        github.run(gated.folder, matrix=matrix).expect(True)
    assert [comment.splitlines()[2] for comment in github.comments] == [
        "### Model gates small [1 2]",
        "### Model gates large new None",
    ]
    assert all("Compared with the default branch" in comment for comment in github.comments)


def test_arguments_with_spaces_and_quotes_are_words_and_run_nothing(gated: DiceProject, github: GitHub) -> None:
    folder = gated.folder / "the folder; touch gone $(touch gone)"
    folder.mkdir()
    for file in [*gated.folder.glob("*.*")]:
        file.rename(folder / file.name)
    given = """-o "junit_suite_name=it's a; touch gone" --junitxml 'a file.xml' -k 'ppl_max and not `touch gone`' """
    wanted = given.replace(" and not `touch gone`", "")
    run = github.run(gated.folder, working_directory=folder.name, arguments=wanted).expect(True)
    assert """name="it's a; touch gone\"""" in (folder / "a file.xml").read_text()
    assert run.outputs["report"]
    github.run(gated.folder, working_directory=folder.name, arguments=given).expect(False)
    run = github.run(gated.folder, working_directory=folder.name, arguments="-k 'ppl").expect(False)
    run.says("::error title=lmgate::arguments: ", "a quote is not closed")
    assert run.outputs["report"] == ""
    assert "no verdict" in github.comments[0]
    assert not list(gated.folder.rglob("gone"))


def test_what_ends_before_a_verdict_says_so_on_the_pull_request(gated: DiceProject, github: GitHub) -> None:
    gated.change("limit: 6.01", "limt: 6.01")
    github.run(gated.folder, arguments="-n 1").expect(False).says("::error title=lmgate::", "did you mean 'limit'?)")
    for text in ("**pytest ended with exit code 4**", "**0 gates; 1 problem**", "ppl_max.limt: unknown argument"):
        assert text in github.comments[0]
    gated.write(test_other="def test_other(): pass")
    github.run(gated.folder, arguments="test_other.py").expect(False)
    github.run(gated.folder, arguments="test_other.py", require_all="false").expect(True)
    (gated.folder / "lmgate.yaml").unlink()
    github.run(gated.folder).expect(False)
    assert "no test has a gate, and there is no" in github.comments[0]
    github.run(gated.folder, working_directory="gone").expect(False).says("working-directory: expected a folder")
    assert "**no verdict**" in github.comments[1]


def test_a_long_report_is_counted_in_the_comment(gated: DiceProject, github: GitHub) -> None:
    die(gated, 6, *(f"ppl_max: {{model: red, dataset: one, limit: 5.{number:03}}}" for number in range(1, 130)))
    github.run(gated.folder).expect(False)
    assert "**130 gates: 1 pass, 129 fail** The table is too long for a comment." in github.comments[0]


def test_a_label_accepts_the_model_once(gated: DiceProject, github: GitHub) -> None:
    die(gated, 7, NO_REGRESSION)
    github.change(labels=["other", "accept it"])
    github.run(gated.folder, update_label="accept it").expect(False)
    assert github.state["files"] == {}, "it fails a limit"
    die(gated, 6, NO_REGRESSION)
    github.run(gated.folder, update_label="accept it").expect(True)
    written = github.state["files"]["lmgate-baseline.json"]
    assert written == (gated.folder / "lmgate-baseline.json").read_text()
    assert github.state["labels"] == ["other"]
    github.run(gated.folder, update_label="accept it").expect(True)
    assert [method for method, path in github.state["calls"] if "contents" in path] == ["GET", "PUT"]
    # A second model: the file that is there is replaced.
    die(gated, 5, NO_REGRESSION)
    github.change(labels=["accept it"])
    github.run(gated.folder, update_label="accept it").expect(True)
    assert github.state["files"]["lmgate-baseline.json"] != written


def test_no_script_holds_an_expression_and_each_file_is_there() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", "")
        for script in re.findall(r"\$GITHUB_ACTION_PATH/([\w/.]+)", step.get("run", "")):
            assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0
            assert os.access(ROOT / script, os.X_OK)
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        for job in yaml.safe_load(workflow.read_text())["jobs"].values():
            for step in job["steps"]:
                expressions = re.findall(r"\$\{\{(.*?)\}\}", step.get("run", ""))
                assert all(each.strip().startswith("matrix.") for each in expressions), step
    assert set(ACTION["inputs"]) == set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
