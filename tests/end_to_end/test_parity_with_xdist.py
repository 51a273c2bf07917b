"""One project in which every outcome occurs says and writes the same with workers of xdist as without."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from tests.end_to_end.projects import Outcome, Project, marked

EVERY_OUTCOME = """
    import pytest

    @pytest.mark.ppl_max("die", "words", 60.5)
    @pytest.mark.bpb_max("sure", "words", 0.5)
    @pytest.mark.ppl_max("die", "words", 59.5)
    def test_pass_and_fail_twice(): pass

    @pytest.mark.skip(reason="not today")
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_skip(): pass

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ppl_max("die", "words", 59.5)
    def test_xfail(): pass

    @pytest.mark.xfail(reason="known", strict=False)
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_xpass(): pass

    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_body_fails(): assert False, "by its body"

    def test_fixture(ppl_of): assert ppl_of("die", "words") < 59.5

    def test_late(request): request.node.add_marker(pytest.mark.ppl_max("die", "words", 60.5))

    @pytest.mark.parametrize("limit", [59.5, 60.5])
    def test_parametrized(limit, request, ppl_of): assert ppl_of("die", "words") < limit
"""
CONFTEST = """
    import pytest

    @pytest.fixture(scope="session")
    def rows():
        return [" ".join(f"w{(7 * i * j) % 57}" for j in range(1, 12)) for i in range(1, 9)]
"""
ROWS = 'no_regression("ppl", "warm", lmgate.fixture("rows"), "15%", against="die", protocol="document")'
PLAIN = "import pytest_lmgate as lmgate\n" + marked(
    **{"pass": 'ppl_max("die", "words", 60.5)'},
    error='ppl_max("nan", "words", 60.5)',
    error_before_measuring='ppl_max("./no_such_folder", "words", 60.5)',
    inconclusive=ROWS,
    no_baseline='no_regression("ppl", "die", "words", "1%")',
)
COUNTS = {"failed": 6, "passed": 4, "skipped": 1, "xfailed": 1, "xpassed": 1, "error": 3}
VARIES = ("cached", "seconds")  # by which gate is measured first


def run(project: Project, *workers: str, code: int = 1) -> Outcome:
    return project.run("--lmgate-report", "json:report.json", "--junitxml", "junit.xml", *workers).expect(code)


def verdicts(project: Project) -> list[dict[str, Any]]:
    """Return the report's gates, in its order."""
    return [{key: gate[key] for key in gate if key not in VARIES} for gate in project.report()["gates"]]


def properties(project: Project) -> dict[str, list[tuple[str, str]]]:
    """Return each test's properties in JUnit's XML, without those that vary."""
    root = ElementTree.parse(project.folder / "junit.xml").getroot()
    return {
        f"{case.get('classname')}.{case.get('name')}": [
            (str(each.get("name")), re.sub(r'\\*"(cached|seconds)\\*": [^,}]*', "", str(each.get("value"))))
            for each in case.iter("property")
            if not str(each.get("name")).endswith(VARIES)
        ]
        for case in root.iter("testcase")
    }


def summary(outcome: Outcome) -> list[str]:
    """Return what the terminal's summary says of the gates, without times, and what pytest says of each test."""
    lines = outcome.out.splitlines()
    own = lines[next(number for number, line in enumerate(lines) if re.match("=+ lmgate: ", line)) :]
    return [re.sub(r"\s+(cached|\d+\.\d)\s*$| in \d+\.\d\ds.*", "", line).strip("= ") for line in own]


def test_every_outcome_is_the_same_with_workers(noisy: Project) -> None:
    gate = "ppl_max: {{model: die, dataset: words, limit: {}}}"
    noisy.add_gates(gate.format(60.5), gate.format(59.5))
    noisy.write(test_all=EVERY_OUTCOME, test_plain=PLAIN, conftest=CONFTEST)
    run(noisy)  # measures: from now on every number is cached, and only the workers differ
    alone = run(noisy).expect(1, **COUNTS)
    expected = verdicts(noisy), properties(noisy), summary(alone)
    assert {gate["verdict"] for gate in verdicts(noisy)} == {"pass", "fail", "error", "inconclusive"}

    shared = run(noisy, "-n", "2").expect(1, **COUNTS)

    assert (verdicts(noisy), properties(noisy)) == expected[:2]
    assert sorted(summary(shared)) == sorted(expected[2])

    noisy.run("-k", "inconclusive", "--lmgate-strict", "-n", "2").expect(1, failed=1)
