"""The gates: list of lmgate.yaml is collected as tests: named, selected, judged, reported, refused like any other."""

import re
import textwrap
from xml.etree import ElementTree

import pytest

from tests.end_to_end.projects import GATE, Outcome, Project

GATES = """
    gates:
      - ppl_max: {model: die, dataset: words, limit: 60.5}
      - bpb_max: {model: sure, dataset: words, limit: 99}
      - ppl_max:
          model: die
          dataset: words
          limit: 59.5
"""
DIE, SURE, BROKEN = (
    f"lmgate.yaml::{name}" for name in ("ppl_max[die-words]", "bpb_max[sure-words]", "ppl_max[die-words#2]")
)


def add_gates(project: Project, gates: str = GATES, file: str = "lmgate.yaml") -> Project:
    path = project.folder / file
    path.write_text(path.read_text() + textwrap.dedent(gates).lstrip("\n"))
    return project


def line_of(project: Project, text: str) -> int:
    lines = (project.folder / "lmgate.yaml").read_text().splitlines()
    [line] = [number for number, line in enumerate(lines, 1) if text in line]
    return line


def ran(outcome: Outcome) -> dict[str, str]:
    """Outcomes by id, as ``-v`` shows them, with xdist and without."""
    pattern = (
        r"^(?:\[gw\d\] \[ *\d+%\] )?(?:(PASSED|FAILED|SKIPPED|ERROR) )?(lmgate\.yaml::\S+|\S+\.py::\S+)(?: (\w+))?"
    )
    found = re.findall(pattern, outcome.out.partition("= short test summary")[0], flags=re.MULTILINE)
    return {test: before or after for before, test, after in found if before or after}


def test_every_gate_is_a_test_whose_id_is_the_gates(measured: Project) -> None:
    options = ("-W", "error", "--strict-markers", "-n", "2")
    add_gates(measured)
    reports = ("--lmgate-report=json:report.json", "--junitxml=junit.xml", "-o", "junit_family=xunit1")
    outcome = measured.run("-v", *reports, *options)
    outcome.expect(1, passed=2, failed=1).is_silent_on("Traceback", "yaml_items.py", "Warning")
    assert ran(outcome) == {DIE: "PASSED", SURE: "PASSED", BROKEN: "FAILED"}
    outcome.says(f"reproduce  pytest '{BROKEN}'\n", "accept     set another limit in lmgate.yaml:")
    outcome.says(f"FAILED {BROKEN} - GateFailed: ppl_max: ", "3 gates: 2 pass, 1 fail")
    gates = measured.report()["gates"]
    assert sorted((gate["id"], gate["test"], gate["verdict"]) for gate in gates) == sorted(
        [(DIE, DIE, "pass"), (SURE, SURE, "pass"), (BROKEN, BROKEN, "fail")]
    )
    cases = {case.get("name"): case for case in ElementTree.parse(measured.folder / "junit.xml").iter("testcase")}
    case = cases["ppl_max[die-words#2]"]
    assert case.get("file") == "lmgate.yaml"
    assert int(case.get("line", -1)) + 1 == line_of(measured, "bpb_max") + 1


SELECTIONS = [
    (("-m", "ppl_max"), {DIE, BROKEN, "test_gate.py::test_gate"}),
    ((BROKEN, SURE), {BROKEN, SURE}),
    (("--deselect", BROKEN), {DIE, SURE, "test_gate.py::test_gate"}),
]
if pytest.version_tuple >= (9,):  # older versions collect a test twice
    SELECTIONS.append(((".", "lmgate.yaml", DIE), {DIE, SURE, BROKEN, "test_gate.py::test_gate"}))


def test_gates_are_selected_as_other_tests_are(measured: Project) -> None:
    add_gates(measured).write(test_gate=GATE)
    for options, tests in SELECTIONS:
        outcome = measured.run("--collect-only", "-q", *options)
        assert sorted(re.findall(r"^\S+::\S+$", outcome.out, flags=re.MULTILINE)) == sorted(tests), options


WRONG = """
    gates:
      - ppl_max: {model: dye, dataset: words, limit: 60}
      - bpb_max:
          model: die
          dataset: wards
          limit: 60
"""


def test_a_wrong_gate_is_named_by_line_and_key_also_where_no_gate_is_judged(unmeasured: Project) -> None:
    outcome = add_gates(unmeasured, WRONG).run("--no-lmgate", "-p", "no:terminal").expect(4)
    begin, file = line_of(unmeasured, "gates:"), f"{unmeasured.folder}/lmgate.yaml"
    outcome.says(f"{file}:{begin + 1}: gates[0].ppl_max.model: ", f"{file}:{begin + 4}: gates[1].bpb_max.dataset: ")
    assert not unmeasured.cache.exists()


TESTPATHS = "[pytest]\ntestpaths = tests\n"


def with_tests(project: Project, pytest_ini: str = TESTPATHS) -> Project:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_plain.py").write_text("def test_plain(): pass\n")
    return add_gates(project).write(pytest_ini=pytest_ini)


@pytest.mark.parametrize("testpaths", ["tests", "tests lmgate.yaml"])
def test_gates_run_once_wherever_testpaths_lead(measured: Project, testpaths: str) -> None:
    with_tests(measured, f"[pytest]\ntestpaths = {testpaths}\n")
    outcome = measured.run("-v", "-n", "2").expect(1, passed=3, failed=1)
    plain = "tests/test_plain.py::test_plain"
    assert ran(outcome) == {DIE: "PASSED", SURE: "PASSED", BROKEN: "FAILED", plain: "PASSED"}


def test_the_gates_are_those_of_the_file_that_was_named(measured: Project) -> None:
    with_tests(measured)
    text = (measured.folder / "lmgate.yaml").read_text()
    measured.write(nightly_yaml=text.replace("60.5", "59"))
    outcome = measured.run("-v", "--lmgate-config", "nightly.yaml").expect(1, passed=2, failed=2)
    outcome.says("nightly.yaml::ppl_max[die-words] FAILED", "nightly.yaml::bpb_max[sure-words] PASSED")
    outcome.is_silent_on("lmgate.yaml::")
    measured.run("nightly.yaml").expect(4).says("not found: ")


def test_a_file_with_a_misspelt_name_is_refused_unless_it_is_left_out_or_named(unmeasured: Project) -> None:
    with_tests(unmeasured)
    (unmeasured.folder / "lmgate.yaml").rename(unmeasured.folder / "Lmgate.yaml")
    outcome = unmeasured.run("tests/test_plain.py").expect(4).is_silent_on("Traceback", "INTERNALERROR")
    outcome.says(f"{unmeasured.folder}/Lmgate.yaml is not read")
    unmeasured.run("tests", "--ignore", "Lmgate.yaml").expect(0, passed=1)
    unmeasured.run("--no-lmgate", "--lmgate-config", "Lmgate.yaml").expect(0, passed=1, skipped=3)


@pytest.mark.parametrize("key", ["gates\uff1a\n", "x: &x [*x]\ngates:\n"])
def test_a_file_that_is_no_yaml_is_refused_since_its_gates_may_be_lost(unmeasured: Project, key: str) -> None:
    with_tests(unmeasured, "[pytest]\n").change("gates:\n", key)
    for paths in (("tests",), ("-n", "2")):
        unmeasured.run(*paths).expect(4).says(f"{unmeasured.folder}/lmgate.yaml:", ": not valid YAML: ")


def test_a_project_file_whose_gates_would_silently_not_run_is_refused(unmeasured: Project) -> None:
    with_tests(unmeasured, "[pytest]\n")
    unmeasured.write(lmgate_yaml="models:\n  die: {path: x}\n  gates:\n    - ppl_max: {model: die}\n")
    sentence = "lmgate.yaml:3: models.gates: "
    outcome = unmeasured.run("tests").expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count(sentence) == 1, outcome.text
    unmeasured.run("tests", "--ignore", "lmgate.yaml").expect(0, passed=1)
    (unmeasured.folder / "below").mkdir()
    (unmeasured.folder / "lmgate.yaml").rename(unmeasured.folder / "below" / "lmgate.yaml")
    unmeasured.write(pytest_ini="[pytest]\n").run().expect(4).says(sentence, f"{unmeasured.folder}/below/lmgate.yaml")
