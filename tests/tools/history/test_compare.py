"""``lmgate compare`` on reports and on histories."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import RecordError
from pytest_lmgate.judge.result import Run, Verdict, to_json
from tests.end_to_end.projects import git
from tests.judge.records import compared, record, results_of
from tests.report.hostile import HOSTILE
from tests.tools.history.test_history import COMMITS, keep


def lmgate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def report(path: Path, *gates: Verdict, **others: Any) -> Path:
    path.write_text(to_json(results_of(gates, **others)))
    return path


def gate(name: str, value: float | None, verdict: str = "pass", **others: Any) -> Verdict:
    return record(value, 0.1, id=f"tests/test_quality.py::test_int8::{name}", verdict=verdict, **others)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two reports: one gate fails now, one is worse beyond noise, one moved within it, one stands on other data."""
    values = {"news": 16.5, "code": 8.0, "chat": 12.0, "math": 20.0, "old": 9.0}
    before = report(tmp_path / "main.json", *(gate(f"ppl_max[int8-{name}]", value) for name, value in values.items()))
    after = report(
        tmp_path / "branch.json",
        gate("ppl_max[int8-news]", 18.2, "fail"),
        gate("ppl_max[int8-code]", 9.0),
        gate("ppl_max[int8-chat]", 12.1),
        gate("ppl_max[int8-math]", 25.0, identity={"data": "b" * 64, "protocol": "sliding"}),
        gate("ppl_max[int8-new]", 9.0),
    )
    return before, after


def test_a_gate_of_the_later_run_alone_that_fails_is_worse(tmp_path: Path):
    before, gates = report(tmp_path / "before.json", gate("a", 9.0)), [gate("a", 9.0), gate("b", 9.0), gate("c", 9.0)]
    done = lmgate(before, report(tmp_path / "after.json", *gates))
    assert (done.exit_code, "test_int8::c, which fails" in done.output) == (0, False)
    done = lmgate(before, report(tmp_path / "after.json", *gates[:2], gate("c", 20.0, "fail")), "--markdown")
    assert (done.exit_code, done.output[0], "test_int8::c, which fails" in done.output) == (1, "❌", True)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"run": Run(stopped=True)}, "the run was stopped"),
        ({"problems": ("no gate of lmgate.yaml ran",)}, "no gate of lmgate.yaml ran"),
    ],
)
def test_a_later_run_that_is_not_whole_is_worse_an_earlier_one_named(tmp_path: Path, faults: Any, words: str):
    whole = report(tmp_path / "whole.json", gate("a", 9.0))
    broken = report(tmp_path / "broken.json", gate("a", 9.0), **faults)
    done = lmgate(whole, broken, "--markdown")
    assert (done.exit_code, done.output[0], f"broken.json: {words}" in done.output) == (1, "❌", True)
    done = lmgate(broken, whole)
    assert (done.exit_code, f"broken.json: {words}" in done.output) == (0, True)
    assert json.loads(lmgate(whole, broken, "--json").stdout)["problems"] == {"before": [], "after": [words]}


def test_what_fails_now_or_is_worse_beyond_noise_stands_first_and_fails(both: tuple[Path, Path]):
    done = lmgate(*both)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[1].startswith("PASS -> FAIL")
    assert [line.rpartition("  ")[2].strip() for line in lines[1:5]] == [
        "fails now, worse", "worse", "within noise", "not compared",
    ]  # fmt: skip
    assert "16.5 -> 18.2  +10.30%" in lines[1]


def test_markdown_has_the_news_in_a_table_and_the_rest_behind_it(both: tuple[Path, Path]):
    done = lmgate(*both, "--markdown")
    assert done.exit_code == 1
    news, _, rest = done.stdout.partition("<details>")
    assert "❌ **4 gates in both: 1 fails now, 1 worse, 1 within noise, 1 not compared**" in news
    assert "test_int8::ppl_max[int8-news]` | 16.5 -> 18.2 | +10.30% |" in news
    assert "int8-chat" in rest
    html = MarkdownIt("commonmark").enable("table").render(done.stdout)
    assert html.count("<table>") == 2


def test_a_gate_with_a_reference_of_its_own_is_judged_by_its_verdict_alone(tmp_path: Path):
    sides = [
        ("fail", 0.05, "pass", 0.002, "FAIL -> PASS", "within the tolerance of 1%"),
        ("pass", 0.002, "fail", 0.05, "PASS -> FAIL", "fails now, beyond the tolerance of 1%"),
        ("fail", 0.04, "fail", 0.05, "FAIL", "beyond the tolerance of 1%"),
        ("pass", 0.002, "inconclusive", 0.0095, "PASS -> INCONCLUSIVE", "inconclusive at the tolerance of 1%"),
        ("pass", 0.002, "pass", 0.002, "PASS", "same"),
    ]

    def side(name: str, facts: list[tuple[str, float]]) -> Path:
        # Far apart by their values: the unpaired rule would call each of them worse.
        gates = (gate(f"g{at}", 10 + by * 100, is_, comparison=compared(by)) for at, (is_, by) in enumerate(facts))
        return report(tmp_path / name, *gates)

    before, after = side("0", [each[:2] for each in sides]), side("1", [each[2:4] for each in sides])
    done = lmgate(before, after)
    assert done.exit_code == 1
    for *_, verdicts, words in sides:
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{verdicts} ") and words in line)
        assert "%" in line
    assert "PASS -> FAIL" in done.stdout.splitlines()[1]
    assert "+5.00% [+4.90, +5.10]" in done.stdout
    assert "not compared" not in done.stdout
    assert lmgate(after, before).exit_code == 1
    assert lmgate(after, after).exit_code == 0
    found = json.loads(lmgate(before, after, "--json").stdout)["gates"][0]
    assert found["after"]["comparison"]["degradation"] == 0.05
    assert (found["judged"], found["p_value"]) == ("beyond the tolerance", None)


def test_two_commits_of_a_history_are_compared_by_digits_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    git(tmp_path, "init", "-q")
    commits = []
    for day in "12":
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", day)
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    runs = tmp_path / "runs"
    keep(runs, 1, [gate("a", 9.0)], commit=commits[0][:12])
    keep(runs, 2, [gate("a", 30.0)], commit=f"{commits[0][:12]}+")
    keep(runs, 3, [gate("a", 12.0)], commit=commits[1][:12])
    keep(runs, 4, [gate("b", 9.0)], commit=commits[1][:12])
    monkeypatch.chdir(tmp_path)
    for sides in (commits, ["HEAD~1", "HEAD"], [commit[:7] for commit in commits]):
        done = lmgate(*sides, "--history", "runs", "--json")
        assert done.exit_code == 1
        found = json.loads(done.stdout)
        assert [(each["before"]["value"], each["after"]["value"]) for each in found["gates"]] == [(9.0, 12.0)]
        assert found["only_after"] == ["tests/test_quality.py::test_int8::b"]
    for with_changes in (f"{commits[0][:12]}+", "HEAD~1+"):
        changed = lmgate(with_changes, "HEAD", "--history", "runs", "--json")
        assert json.loads(changed.stdout)["gates"][0]["before"]["value"] == 30.0


def test_a_shard_of_a_commit_that_was_stopped_is_worse_until_it_ran_again(tmp_path: Path):
    old, new = COMMITS[:2]
    keep(tmp_path, 1, [gate("a", 9.0), gate("b", 9.0)])
    keep(tmp_path, 2, [gate("a", 9.0)], commit=new, stopped=True)
    keep(tmp_path, 3, [gate("b", 9.0)], commit=new)
    done = lmgate(old, new, "--history", tmp_path)
    assert (done.exit_code, f"{new}: the run was stopped" in done.output) == (1, True)
    keep(tmp_path, 4, [gate("a", 9.0)], commit=new)
    done = lmgate(old, new, "--history", tmp_path)
    assert (done.exit_code, "stopped" in done.output) == (0, False)


def test_what_cannot_be_compared_is_an_error(both: tuple[Path, Path], tmp_path: Path):
    keep(tmp_path / "runs", 1, [gate("a", 9.0)], commit=f"{COMMITS[0]}+")
    keep(tmp_path / "runs", 2, [gate("a", 9.0)])
    keep(tmp_path / "runs", 3, [gate("a", 9.0)], commit="2222bbbb2222")
    bad, twice = tmp_path / "bad.json", report(tmp_path / "twice.json", *[gate("a", 9.0)] * 2)
    bad.write_text('{"schema": 1, "gates": [{"id": "a"}]}')
    (tmp_path / "plan.json").write_text('{"schema": "plan-1", "gates": ["a"]}')
    other = report(tmp_path / "other.json", gate("other", 9.0))
    for arguments, words in (
        ((both[0], tmp_path / "gone.json"), "--history"),
        ((both[0], bad), "bad.json: "),
        ((bad, both[0]), "bad.json: "),
        ((tmp_path / "plan.json", both[0]), "a plan"),
        ((both[0], twice), "::a appears twice"),
        ((both[0], other), "in both"),
        ((COMMITS[1], "beef", "--history", tmp_path / "runs"), "commit beef"),
        ((COMMITS[1], COMMITS[0], "--history", tmp_path / "runs"), f"{COMMITS[0]}+"),
        (("2", "2badcafe", "--history", tmp_path / "runs"), f"2222bbbb2222, {COMMITS[1]}"),
    ):
        failed = lmgate(*arguments)
        assert isinstance(failed.exception, RecordError), arguments
        assert words in str(failed.exception)


def test_a_gate_that_turns_into_an_error_or_blocks_fails_now(tmp_path: Path):
    before = report(tmp_path / "a.json", gate("a", 9.0))
    for now in (gate("a", None, "error"), gate("a", 9.0, "inconclusive", blocking=True)):
        assert lmgate(before, report(tmp_path / "b.json", now)).exit_code == 1
    for now in (gate("a", 9.0, "inconclusive"), gate("a", 9.0, "fail", blocking=True, xfail=True)):
        assert lmgate(before, report(tmp_path / "b.json", now)).exit_code == 0


def test_a_comment_has_at_most_what_github_takes_and_hostile_names_are_code(tmp_path: Path):
    names = [text.encode("utf-8", "backslashreplace").decode()[:3000] for text in HOSTILE.values()]
    gates = [gate(name, 9.0) for name in dict.fromkeys(names)] + [gate(f"{'g' * 250}{i}", 9.0) for i in range(400)]
    worse = [msgspec.structs.replace(each, value=99.0, interval=(98.0, 100.0), verdict="fail") for each in gates]
    done = lmgate(report(tmp_path / "a", *gates), report(tmp_path / "b", *worse), "--markdown")
    assert done.exit_code == 1
    assert len(done.stdout) < 65_536
    assert "more omitted to limit the size" in done.stdout
    html = MarkdownIt("commonmark").enable("table").render(done.stdout)
    assert "<script" not in html
    assert "<img" not in html


def test_a_failure_by_a_change_within_noise_says_so_and_equal_runs_have_no_table_of_news(tmp_path: Path) -> None:
    before = report(tmp_path / "a", gate("ppl_max[m-d]", 10.0))
    after = report(tmp_path / "b", gate("ppl_max[m-d]", 10.01, "fail"))
    assert "fails now, by a change within noise" in lmgate(before, after).stdout
    same = lmgate(before, before, "--markdown").stdout
    assert "\n\n<details><summary>1 gate without a change beyond noise</summary>\n\n| verdict |" in same
    assert same.count("| verdict |") == 1


def test_an_advisory_gate_that_does_not_pass_any_more_is_news_and_no_green_sign(tmp_path: Path):
    before = report(tmp_path / "a", gate("old", 9.0), gate("new", 9.0), gate("other", 9.0, "fail", advisory=True))
    new = gate("new", 9.01, "fail", advisory=True, comparison=compared(0.05))
    after = report(tmp_path / "b", gate("old", 9.0), new, gate("other", 9.0, "fail", advisory=True))
    done = lmgate(before, after, "--markdown")
    assert done.exit_code == 0
    news, _, rest = done.stdout.partition("<details>")
    assert news.startswith("⚠️ **3 gates in both")
    assert "| ⚠️ PASS -> FAIL (advisory) |" in news
    assert "2 gates without a change" in rest
    assert "| ✅ PASS |" in rest
    assert "| ⚠️ FAIL (advisory) |" in rest
