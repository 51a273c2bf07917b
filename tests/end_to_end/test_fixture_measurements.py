"""What fixtures measured is in the JSON report, and in the summary of those who want to know."""

import pytest

from tests.end_to_end.projects import Project

TESTS = """
    import pytest

    @pytest.fixture(scope="module")
    def base(ppl_of):
        return ppl_of("die", "words")

    def test_passes(base, bpb_of):
        assert base < 61 and bpb_of("die", "words") < 99

    def test_fails(ppl_of):
        assert ppl_of("sure", "words") < 61

    def test_texts(exact_of):
        assert exact_of(predictions=["a", "b"], references=[["a"], ["b"]]) == 1
"""
FAILED = "measured in test_it.py::test_fails: ppl_of "


def test_measurements_are_in_the_report_under_the_test_that_asked(measured: Project) -> None:
    marked = TESTS.replace("    def test_passes", '    @pytest.mark.xdist_group("one")\n    def test_passes')
    measured.write(test_it=marked)
    options = ("--lmgate-report", "json:report.json", "-n", "2", "--dist", "loadgroup")
    outcome = measured.run(*options).expect(1, passed=2, failed=1)
    outcome.says(FAILED).is_silent_on("measured in test_it.py::test_passes")
    report = measured.report()
    assert report["gates"] == []
    found = {(each["test"], each["fixture"]): each for each in report["measurements"]}
    assert set(found) == {
        ("test_it.py::test_passes", "ppl_of"),
        ("test_it.py::test_passes", "bpb_of"),
        ("test_it.py::test_fails", "ppl_of"),
        ("test_it.py::test_texts", "exact_of"),
    }
    ppl = found["test_it.py::test_passes", "ppl_of"]
    assert (ppl["value"], ppl["n"], ppl["unit"]) == (pytest.approx(60), 399, "token")
    assert (ppl["model"], ppl["dataset"], ppl["cached"]) == ("die", "words", True)
    assert ppl["signature"].startswith("protocol:sliding")
    assert found["test_it.py::test_texts", "exact_of"]["value"] == 1.0
