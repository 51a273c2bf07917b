"""Annotations of GitHub Actions, read back as its runner reads them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.github import github_annotations
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.explanation import explain
from tests.report.hostile import HOSTILE


def _read(report: str) -> list[tuple[str, dict[str, str], str]]:
    """As the runner does: a command a line; ``%3A`` and ``%2C`` are escapes in properties only, ``%25`` comes last."""
    commands = []
    assert report == "" or report.endswith("\n")
    for line in re.split(r"\r\n|\r|\n", report)[:-1]:
        match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert match, line
        properties = {}
        for pair in match[2].split(","):
            key, _, value = pair.partition("=")
            for escape, meant in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
                value = value.replace(escape, meant)
            properties[key] = value
        commands.append((match[1], properties, match[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")))
    return commands


def test_failures_are_errors_and_what_lets_the_build_go_on_a_warning(
    passed: Verdict, failed: Verdict, unmeasured: Verdict, compared: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    open_ = replace(compared, verdict="inconclusive")
    blocking = replace(open_, blocking=True, file="/repo/lmgate.yaml", line=7)
    found = _read(github_annotations(Results([passed, open_, failed, unmeasured, blocking])))
    assert [(level, message) for level, _, message in found] == [
        ("error", explain(failed)),
        ("error", explain(unmeasured)),
        ("error", explain(blocking)),
        ("warning", explain(open_)),
    ]
    assert found[0][1] == {"title": "FAIL ppl_max[int8-wikitext2]"}
    assert found[2][1] == {"file": "/repo/lmgate.yaml", "line": "7", "title": "INCONCLUSIVE ppl_max[int8-wikitext2]"}


def test_a_file_is_named_as_in_the_repository(failed: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/repo")
    verdicts = [replace(failed, file=file, line=3) for file in ("/repo/a/test_a, b:c.py", "/repository/test_x.py")]
    found = _read(github_annotations(Results(verdicts, folder=Path("/repo"))))
    assert [properties["file"] for _, properties, _ in found] == ["a/test_a, b:c.py", "/repository/test_x.py"]


def test_passes_and_expected_failures_say_nothing(passed: Verdict, failed: Verdict) -> None:
    assert github_annotations(Results([passed, failed], expected_to_fail=frozenset({failed.id}))) == ""


def test_what_fails_the_session_beside_gates_is_an_error(passed: Verdict) -> None:
    report = github_annotations(Results([passed], problems=("100 % lost\n::error::x",)))
    assert report == "::error title=lmgate::100 %25 lost%0A\\::error::x\n"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_part_of_one_command(failed: Verdict, text: str) -> None:
    test = f"t.py::test_x[{text}]"
    one = replace(failed, id=f"{test}::{text}", test=test, model=text, dataset=text, file=f"/repo/{text}", line=3)
    worst = replace(one, worst=((0, 0.5, text, text, text),), signature=text)
    report = github_annotations(Results([one, worst], problems=(text,)))
    report.encode("utf-8")
    found = _read(report)
    assert [level for level, _, _ in found] == ["error"] * 3
    assert [sorted(properties) for _, properties, _ in found[1:]] == [["file", "line", "title"]] * 2
    assert report.replace("\n", "").isprintable()
