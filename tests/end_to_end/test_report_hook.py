"""The hook ``pytest_lmgate_report``: a conftest or a plugin receives the records of the run."""

import pytest

from tests.end_to_end.projects import BROKEN_GATE, GATE, Project

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
    assert [gate["verdict"] for gate in heard["gates"]] == ["pass", "fail"]
    assert len(heard["measurements"]) == 1


def test_it_needs_no_report_and_hears_of_a_session_that_was_stopped(measured: Project) -> None:
    measured.write(test_a=BROKEN_GATE, test_b=GATE, conftest=KEEP)
    measured.run("-x").expect(1, failed=1)
    heard = measured.report("heard.json")
    assert heard["run"]["stopped"]
    assert [gate["verdict"] for gate in heard["gates"]] == ["fail"]


@pytest.mark.parametrize(
    ("test", "arguments"),
    [("def test_plain(): pass", ()), (GATE, ("--no-lmgate",)), (GATE, ("--co",)), (GATE, ("--lmgate-plan",))],
)  # fmt: skip
def test_a_session_that_measures_nothing_does_not_call_it(
    measured: Project, test: str, arguments: tuple[str, ...]
) -> None:
    measured.write(test_it=test, conftest=KEEP)
    measured.run(*arguments)
    assert not (measured.folder / "heard.json").exists()


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
