"""``--lmgate-report json:FILE`` and the terminal's table: the verdicts of the exit code, in numbers that are JSON."""

import re

from tests.end_to_end.commands import lmgate
from tests.end_to_end.projects import Project


def test_a_gate_whose_fixture_fails_is_an_error_in_the_report_and_the_summary(measured: Project) -> None:
    measured.write(
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture
            def broken(): raise OSError("no such bucket")

            @pytest.fixture
            def skips(): pytest.skip("no such machine")

            @pytest.mark.ppl_max(lmgate.fixture("broken"), "words", 60.5)
            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_broken(): pass

            @pytest.mark.ppl_max(lmgate.fixture("skips"), "words", 60.5)
            def test_skips(): pass

            @pytest.mark.xfail(run=False)
            @pytest.mark.ppl_max("sure", "words", 60.5)
            def test_not_run(): pass

            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_whole(): pass
        """
    )
    outcome = measured.run("--lmgate-report", "json:report.json", "-n", "2")
    outcome.expect(1, passed=1, error=1, skipped=1, xfailed=1).says("3 gates: 1 pass, 2 error")
    named, other, whole = measured.report()["gates"]
    assert named["id"] == "test_gate.py::test_broken::ppl_max[broken-words]"
    assert (named["verdict"], other["verdict"], whole["verdict"]) == ("error", "error", "pass")
    assert named["value"] is named["n"] is None
    assert "OSError: no such bucket" in named["message"]


def test_a_gate_that_cannot_be_measured_counts_as_xfail_in_every_report_where_its_test_is_marked_so(
    measured: Project,
) -> None:
    measured.write(
        test_gate="""
            import pytest

            @pytest.mark.xfail(strict=True)
            @pytest.mark.ppl_max("./no_such_folder", "words", 60.5)
            @pytest.mark.ppl_max("die", "words", 59.5)
            def test_gate(): pass
        """
    )
    kinds = ("json", "markdown", "html", "openmetrics", "github")
    outcome = measured.run(*(f"--lmgate-report={kind}:report.{kind}" for kind in kinds), "--lmgate-history=runs")
    outcome.expect(0, xfailed=1).says("\nERROR (xfail)  ppl_max[", "\n2 gates: 2 xfail\n")
    found = [(gate["verdict"], gate["xfail"]) for gate in measured.report()["gates"]]
    assert found == [("error", True), ("fail", True)]
    text = {kind: (measured.folder / f"report.{kind}").read_text(encoding="utf-8") for kind in kinds}
    assert "**2 gates: 2 xfail**" in text["markdown"]
    assert "| ⚠️ ERROR (xfail) |" in text["markdown"]
    assert "2 gates: 2 xfail" in text["html"]
    assert re.findall(r'lmgate_verdict="(\w+)"} 1', text["openmetrics"]) == ["xfail", "xfail"]
    assert text["github"] == ""
    for command in (["report", "report.json", "--markdown", "-"], ["history", "runs"]):
        lmgate(measured.folder, *command).says("FAIL (xfail)")
