"""``--lmgate-report json:FILE`` and the terminal's table: the verdicts of the exit code, in numbers that are JSON."""

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
