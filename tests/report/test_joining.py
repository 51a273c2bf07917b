"""Reports of shards become the report of one run, or an error that names the gate and the files."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import RecordError
from pytest_lmgate.judge.result import PlannedGates, Results, join_shards, read_plan, read_results, to_json
from pytest_lmgate.report.formats import FORMATS


@pytest.fixture
def shards(results: Results) -> dict[str, Results]:
    """The gates of a run in two halves, the second one first."""
    half = len(results.verdicts) // 2
    return {
        "a.json": replace(results, verdicts=results.verdicts[half:]),
        "b.json": replace(results, verdicts=results.verdicts[:half], measured=()),
    }


def plan_of(results: Results) -> PlannedGates:
    return PlannedGates(tuple(verdict.id for verdict in results.verdicts))


def test_the_shards_of_a_run_are_the_run_in_every_format(results: Results, shards: dict[str, Results]) -> None:
    assert join_shards(shards, plan_of(results)) == results
    assert {verdict.id for verdict in join_shards(shards).verdicts} == {verdict.id for verdict in results.verdicts}


def test_a_gate_in_two_shards_is_one_if_equal_and_else_an_error(results: Results, shards: dict[str, Results]) -> None:
    again = shards["b.json"].verdicts[0]
    shards["a.json"] = replace(shards["a.json"], verdicts=(*shards["a.json"].verdicts, replace(again, seconds=9.0)))
    assert len(join_shards(shards).verdicts) == len(results.verdicts)
    other = replace(again, value=(again.value or 0) + 0.001)
    shards["a.json"] = replace(shards["a.json"], verdicts=(other,))
    with pytest.raises(RecordError, match=r"^a\.json and b\.json: the gate .* has two results") as error:
        join_shards(shards)
    assert again.id in str(error.value)


def test_a_planned_gate_that_no_shard_has_is_a_problem_and_an_unplanned_one_a_remark(
    results: Results, shards: dict[str, Results]
) -> None:
    del shards["b.json"]
    missing = results.verdicts[0].id
    joined = join_shards(shards, plan_of(results))
    assert f"no shard has a verdict of {missing}, which is planned" in joined.problems
    assert not joined.is_whole
    assert missing in FORMATS["markdown"].render(joined)
    assert f"{shards['a.json'].verdicts[0].id} is not in the plan" in join_shards(shards, PlannedGates(())).remarks


def test_the_run_is_of_all_shards(shards: dict[str, Results]) -> None:
    (a, b) = shards.values()
    shards["b.json"] = replace(
        b,
        run=replace(b.run, date="2027-01-01T00:00:00Z", device="cuda, cpu", command="pytest b", stopped=True),
        problems=("lost",),
        environment=replace(b.environment, python="3.0"),
    )
    joined = join_shards(shards)
    assert joined.run == replace(shards["b.json"].run, command=f"{a.run.command}; pytest b")
    assert "lost" in joined.problems
    assert any("different versions" in remark for remark in joined.remarks)
    shards["b.json"] = replace(b, run=replace(b.run, commit="other"))
    with pytest.raises(RecordError, match="expected shards of one commit"):
        join_shards(shards)


@pytest.mark.parametrize("text", ["", "[]", '{"gates": []}', '{"schema": "plan-1"}', '{"schema": 1, "gates": []}'])
def test_what_is_no_plan_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(RecordError, match=r"^p\.json: expected a plan"):
        read_plan(text.encode(), "p.json")


def test_the_command_writes_the_joined_run_and_fails_if_a_gate_is_missing(
    results: Results, shards: dict[str, Results]
) -> None:
    def report(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["report", *arguments])

    for name, shard in shards.items():
        Path(name).write_text(to_json(shard), encoding="utf-8")
    Path("plan.json").write_text(to_json(plan_of(results)))
    join_ = ("--join", "--plan", "plan.json", "--report", "all.json")
    done = report(*join_, "--markdown", "-", "a.json", "b.json")
    assert (done.exit_code, done.stdout) == (0, FORMATS["markdown"].render(results))
    assert read_results(Path("all.json").read_bytes(), "all.json") == results
    lacking = report(*join_, "a.json")
    assert lacking.exit_code == 1
    assert "no shard has a verdict of" in lacking.stdout
    assert json.loads(Path("all.json").read_text())["problems"]
    assert report("a.json", "b.json", "--github").exit_code == 2
    assert report("a.json", "--plan", "plan.json", "--github").exit_code == 2
    assert isinstance(report("--join", "--plan", "gone.json", "a.json", "--github").exception, RecordError)
