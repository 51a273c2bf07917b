"""The gates: list of lmgate.yaml is collected as tests: named, selected, judged, reported, refused like any other."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Outcome, Project
from tests.end_to_end.writers import writing_project

GATES = """
    gates:
      - ppl_max: {model: die, dataset: words, limit: 60.5}
      - bpb_max: {model: sure, dataset: words, limit: 99}
      - ppl_max:
          model: die
          dataset: words
          limit: 59.5
"""
# `counter` writes 9 rows of `chains` as they are; 2 and 1 words are missing of the longest two under max_new_tokens=4.
METRICS = """
    import pytest_lmgate as lmgate

    def absent(predictions, references, rows):
        return [[len(texts[0].split()) - len(text.split())] for text, texts in zip(predictions, references)]

    def pytest_lmgate_metrics(config):
        yield lmgate.TextMetric(
            name="absent", direction="lower", signature="absent|v:1", statistics=absent,
            value=lambda sums: float(sums[0]),
        )
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


@pytest.mark.parametrize("options", [(), ("-n", "2"), ("-W", "error", "--strict-markers", "-p", "no:cacheprovider")])
def test_every_gate_is_a_test_whose_id_is_the_gates(measured: Project, options: tuple[str, ...]) -> None:
    add_gates(measured)
    outcome = measured.run(
        "-v", "--lmgate-report", "json:report.json", "--junitxml", "junit.xml", "-o", "junit_family=xunit1", *options
    )
    outcome.expect(1, passed=2, failed=1).is_silent_on("Traceback", "yaml_items.py", "Warning")
    assert ran(outcome) == {DIE: "PASSED", SURE: "PASSED", BROKEN: "FAILED"}
    outcome.says(
        "ppl_max: perplexity 60 [60, 60] of 'die' on 'words' is above the limit 59.5",
        f"reproduce  pytest '{BROKEN}'\n",
        "accept     set another limit in lmgate.yaml:",
        "FAILED lmgate.yaml::ppl_max[die-words#2] - GateFailed: ppl_max: ",
        "\nPASS     ppl_max[die-words]  ",
        "\nFAIL     ppl_max[die-words#2]  ",
        "3 gates: 2 pass, 1 fail",
    )
    gates = {gate["id"]: gate for gate in measured.report()["gates"]}
    assert {name: (gate["test"], gate["verdict"], gate["limit"]) for name, gate in gates.items()} == {
        DIE: (DIE, "pass", 60.5),
        SURE: (SURE, "pass", 99),
        BROKEN: (BROKEN, "fail", 59.5),
    }
    cases = {case.get("name"): case for case in ElementTree.parse(measured.folder / "junit.xml").iter("testcase")}
    case = cases["ppl_max[die-words#2]"]
    assert case.get("file") == "lmgate.yaml"
    assert int(case.get("line", -1)) + 1 == line_of(measured, "bpb_max") + 1
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert properties["lmgate.ppl_max[die-words#2].verdict"] == "fail"


@pytest.mark.parametrize(
    ("options", "tests"),
    [
        (("-k", "sure"), {SURE}),
        (("-k", "die and not 2"), {DIE}),
        (("-m", "ppl_max"), {DIE, BROKEN, "test_gate.py::test_gate"}),
        (("-m", "bpb_max"), {SURE}),
        ((DIE,), {DIE}),
        ((BROKEN, SURE), {BROKEN, SURE}),
        (("lmgate.yaml::ppl_max",), {DIE, BROKEN}),
        (("lmgate.yaml",), {DIE, SURE, BROKEN}),
        (("test_gate.py",), {"test_gate.py::test_gate"}),
        (("--deselect", BROKEN), {DIE, SURE, "test_gate.py::test_gate"}),
        (("--ignore", "lmgate.yaml"), {"test_gate.py::test_gate"}),
        pytest.param(
            (".", "lmgate.yaml", DIE),
            {DIE, SURE, BROKEN, "test_gate.py::test_gate"},
            marks=pytest.mark.skipif(pytest.version_tuple < (9,), reason="older versions collect a test twice"),
        ),
    ],
)
def test_gates_are_selected_as_other_tests_are(measured: Project, options: tuple[str, ...], tests: set[str]) -> None:
    add_gates(measured).write(test_gate=GATE)
    outcome = measured.run("--collect-only", "-q", *options)
    assert sorted(re.findall(r"^\S+::\S+$", outcome.out, flags=re.MULTILINE)) == sorted(tests)


def test_collecting_loads_no_model_and_writes_nothing(project: Project) -> None:
    add_gates(project).write(
        conftest="""
            import sys

            def pytest_unconfigure():
                assert not {"torch", "transformers", "datasets"} & set(sys.modules)
        """
    )
    before = set(project.folder.iterdir())
    project.run("--collect-only", "-p", "no:cacheprovider", fresh=True).expect(0).says(
        "<GateItem ppl_max[die-words#2]>"
    )
    assert set(project.folder.iterdir()) == before


def test_no_lmgate_skips_gates(project: Project) -> None:
    add_gates(project)
    project.run("--no-lmgate", "-rs").expect(0, skipped=3).says("--no-lmgate: gates are not judged")
    assert not project.cache.exists()


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_last_failed_runs_the_failed_gates_again(measured: Project, options: tuple[str, ...]) -> None:
    add_gates(measured).write(test_gate=GATE)
    measured.run(*options).expect(1, passed=3, failed=1)
    outcome = measured.run("--lf", "-v", *options).expect(1, failed=1)
    assert ran(outcome) == {BROKEN: "FAILED"}


def test_what_cannot_be_measured_is_an_error_in_setup(measured: Project) -> None:
    add_gates(measured, "gates:\n  - ppl_max: {model: nan, dataset: words, limit: 60}")
    outcome = measured.run().expect(1, error=1).says("ERROR lmgate.yaml::ppl_max[nan-words]")
    outcome.is_silent_on("Traceback", "/pluggy/")


def test_a_users_metric_is_gated(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    project = writing_project(tmp_path, tmp_path_factory.getbasetemp()).write(conftest=METRICS)
    add_gates(
        project,
        """
        gates:
          - metric_max: {metric: absent, model: counter, dataset: chains, limit: 0}
          - metric_max: {metric: absent, model: counter, dataset: chains, limit: 2, max_new_tokens: 4}
          - rouge_min: {model: counter, dataset: chains, limit: 0.9, variant: rouge2, stop: [four]}
        """,
    )
    outcome = project.run("-W", "error", "-v")
    outcome.expect(1, passed=1, failed=2).says(
        "metric_max: absent 3 [", "of 'counter' on 'chains' is above the limit 2"
    )
    assert ran(outcome) == {
        "lmgate.yaml::metric_max:absent[counter-chains]": "PASSED",
        "lmgate.yaml::metric_max:absent[counter-chains-max_new_tokens:4]": "FAILED",
        "lmgate.yaml::rouge_min:rouge2[counter-chains-stop:four]": "FAILED",
    }


def test_a_conftest_may_add_a_marker_to_a_gate(measured: Project) -> None:
    add_gates(measured, "gates:\n  - ppl_max: {model: die, dataset: words, limit: 60.5}").write(
        conftest="""
            import pytest

            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(pytest.mark.bpb_max("sure", "words", 1))
        """
    )
    measured.run("--lmgate-report", "json:report.json").expect(1, failed=1)
    verdicts = {gate["id"]: gate["verdict"] for gate in measured.report()["gates"]}
    assert verdicts == {DIE: "pass", f"{DIE}::bpb_max[sure-words]": "fail"}


WRONG = """
    gates:
      - ppl_max: {model: dye, dataset: words, limit: 60}
      - ppl_mx: {model: die, dataset: words, limit: 60}
      - bpb_max:
          model: die
          dataset: wards
          limit: 60
      - ppl_max: {model: die, dataset: words, strid: 8, limit: 60}
      - ppl_max:
          model: die
          dataset: words
          limit: sixty
      - metric_min: {metric: tact, model: die, dataset: words, limit: 1}
"""


@pytest.mark.parametrize("options", [(), ("--collect-only",), ("--no-lmgate",), ("-p", "no:terminal")])
def test_every_wrong_gate_is_named_by_line_and_key(project: Project, options: tuple[str, ...]) -> None:
    add_gates(project, WRONG).write(test_wrong=GATE.replace("die", "dei"))
    outcome = project.run(*options).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    begin = line_of(project, "gates:")
    for line, sentence in {
        begin + 1: "gates[0].ppl_max.model: model 'dye' is not known (did you mean 'die'?); ",
        begin + 2: "gates[1].ppl_mx: unknown marker (did you mean 'ppl_max'?); expected one of accuracy_min, ",
        begin + 5: "gates[2].bpb_max.dataset: dataset 'wards' is not known (did you mean 'words'?); ",
        begin + 7: "gates[3].ppl_max.strid: unknown argument (did you mean 'stride'?); expected ppl_max(model, ",
        begin + 11: "gates[4].ppl_max.limit: expected a number, got 'sixty'",
        begin + 12: "gates[5].metric_min.metric: expected a registered metric, got 'tact'",
    }.items():
        outcome.says(f"{project.folder}/lmgate.yaml:{line}: {sentence}")
    outcome.says("test_wrong.py::test_gate: @pytest.mark.ppl_max: model 'dei' is not known")
    assert not project.cache.exists()


@pytest.mark.parametrize("options", [(), ("--lmgate-config", "lmgate.yaml"), (DIE,)])
def test_a_list_that_is_none_is_one_usage_error(project: Project, options: tuple[str, ...]) -> None:
    add_gates(project, "gates:").write(test_gate=GATE)
    outcome = project.run(*options).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count(f"lmgate.yaml:{line_of(project, 'gates:')}: gates: expected a list of gates") == 1


def test_gates_in_a_file_that_is_not_yaml_are_one_usage_error(project: Project) -> None:
    project.write(lmgate_yaml="models: [\ngates:\n", test_gate=GATE)
    outcome = project.run().expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count("lmgate.yaml:3: not valid YAML") == 1


@pytest.mark.parametrize("key", ["gate", "Gates", "GATES", "gatse", "checks", '"gats"'])
def test_a_mistyped_list_is_refused_and_does_not_silently_run_nothing(project: Project, key: str) -> None:
    add_gates(project, GATES.replace("gates", key)).write(test_plain="def test_plain(): pass")
    project.run().expect(4).says("lmgate.yaml:8: " + key.strip('"') + ": unknown key")


TESTPATHS = "[pytest]\ntestpaths = tests\n"


def with_tests(project: Project, pytest_ini: str = TESTPATHS) -> Project:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_plain.py").write_text("def test_plain(): pass\n")
    return add_gates(project).write(pytest_ini=pytest_ini)


@pytest.mark.parametrize(
    ("testpaths", "options"),
    [
        ("tests", ()),
        ("tests", ("-n", "2")),
        ("tests", ("--pyargs",)),
        ("tests", ("--lmgate-config", "lmgate.yaml")),
        (".", ()),
        ("tests lmgate.yaml", ("-n", "2")),
    ],
)
def test_gates_run_once_wherever_testpaths_lead(measured: Project, testpaths: str, options: tuple[str, ...]) -> None:
    with_tests(measured, f"[pytest]\ntestpaths = {testpaths}\n")
    outcome = measured.run("-v", *options).expect(1, passed=3, failed=1)
    assert ran(outcome) == {
        DIE: "PASSED",
        SURE: "PASSED",
        BROKEN: "FAILED",
        "tests/test_plain.py::test_plain": "PASSED",
    }


@pytest.mark.parametrize("options", [("tests",), ("--ignore", "lmgate.yaml"), ("-p", "no:lmgate")])
def test_gates_that_were_not_asked_for_do_not_run(project: Project, options: tuple[str, ...]) -> None:
    with_tests(project)
    project.run(*options).expect(0, passed=1)


def test_gates_do_not_run_from_a_subfolder_of_theirs(project: Project) -> None:
    with_tests(project)
    project.run(cwd=project.folder / "tests").expect(0, passed=1)
    project.run("..", "--no-lmgate", cwd=project.folder / "tests").expect(0, passed=1, skipped=3)


def test_gates_in_a_file_that_conftest_ignores_do_not_run(project: Project) -> None:
    with_tests(project).write(conftest="collect_ignore = ['lmgate.yaml']")
    project.run().expect(0, passed=1)


def test_the_gates_are_those_of_the_file_that_was_named(measured: Project) -> None:
    with_tests(measured)
    text = (measured.folder / "lmgate.yaml").read_text()
    measured.write(nightly_yaml=text.replace("60.5", "59"))
    for options, env in ((("--lmgate-config", "nightly.yaml"), {}), ((), {"LMGATE_CONFIG": "nightly.yaml"})):
        outcome = measured.run("-v", *options, env=env).expect(1, passed=2, failed=2)
        outcome.says("nightly.yaml::ppl_max[die-words] FAILED", "nightly.yaml::bpb_max[sure-words] PASSED")
        outcome.is_silent_on("lmgate.yaml::")
    measured.run("nightly.yaml").expect(4).says("not found: ")


def test_a_named_file_that_is_missing_is_an_error_even_where_no_test_has_a_gate(project: Project) -> None:
    project.write(test_plain="def test_plain(): pass")
    project.run("--lmgate-config", "nigthly.yaml").expect(4).says("nigthly.yaml: cannot be read", "--lmgate-config")


def test_gates_of_a_project_below_are_judged_by_its_own_file_unless_one_is_named(measured: Project) -> None:
    folder = measured.folder / "packages" / "one"
    folder.mkdir(parents=True)
    (folder / "lmgate.yaml").write_text((measured.folder / "lmgate.yaml").read_text() + textwrap.dedent(GATES))
    measured.run().expect(1, passed=2, failed=1).says("packages/one/lmgate.yaml::")
    measured.run("--ignore", "packages").expect(5)
    measured.run("--lmgate-config", "packages/one/lmgate.yaml").expect(1, passed=2, failed=1)


def test_a_file_where_pytest_does_not_walk_is_given_as_an_argument(project: Project) -> None:
    with_tests(project)
    (project.folder / ".ci").mkdir()
    (project.folder / "lmgate.yaml").rename(project.folder / ".ci" / "lmgate.yaml")
    options = ("--no-lmgate", "--lmgate-config", ".ci/lmgate.yaml")
    project.run(*options, "tests", ".ci/lmgate.yaml").expect(0, passed=1, skipped=3)
    project.run(*options).expect(0, passed=1, skipped=3)


def test_a_commented_list_of_gates_costs_nothing(project: Project) -> None:
    commented = "\n".join(f"# {line}" for line in textwrap.dedent(GATES).strip().splitlines())
    add_gates(project, commented).write(
        test_plain="def test_plain(): pass",
        conftest="""
            import sys

            def pytest_unconfigure():
                assert not {"yaml", "msgspec"} & set(sys.modules)
        """,
    )
    project.run(fresh=True).expect(0, passed=1)


def test_gates_in_flow_style_are_found(measured: Project) -> None:
    import yaml

    data = yaml.safe_load((add_gates(measured).folder / "lmgate.yaml").read_text())
    (measured.folder / "lmgate.yaml").write_text(json.dumps(data))
    measured.run().expect(1, passed=2, failed=1)


def test_one_gates_measurement_serves_another(project: Project) -> None:
    add_gates(project).write(conftest=COUNT_MEASUREMENTS)
    project.run("-n", "2").expect(1, passed=2, failed=1)
    assert sorted(project.measured) == ["die", "sure"]


@pytest.mark.parametrize("name", ["lmgate.yml", "Lmgate.yaml", "lmgate.YAML"])
@pytest.mark.parametrize("options", [(), ("tests", "--lmgate-require-all"), ("tests/test_plain.py", "-n", "2")])
def test_a_file_with_a_misspelt_name_is_refused(project: Project, name: str, options: tuple[str, ...]) -> None:
    with_tests(project)
    (project.folder / "lmgate.yaml").rename(project.folder / name)
    outcome = project.run(*options).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    outcome.says(f"{project.folder}/{name} is not read, since only a file named lmgate.yaml is: rename it")
    project.run("tests", "--ignore", name).expect(0, passed=1)
    project.run("--no-lmgate", "--lmgate-config", name).expect(0, passed=1, skipped=3)


def _empty(file: Path) -> None:
    file.write_text("---\n# gates:\n#  - ppl_max: {}\n\n...\n")


def _conflict(file: Path) -> None:
    file.write_text("models:\n<<<<<<< HEAD\n  die: {path: x}\n=======\n  die: {path: y}\n>>>>>>> other\n")


def _indented(above: str, indent: str) -> Callable[[Path], object]:
    gate = f"{indent}gates:\n{indent}  - ppl_max: {{model: die, dataset: words, limit: 60}}\n"
    return lambda file: file.write_text(f"{above}\n{gate}")


# What stands in the place of lmgate.yaml, and what is said of it.
NO_GATES = {
    "an empty file": (Path.touch, "got an empty file; write them, or remove it"),
    "a file of comments": (_empty, "got an empty file; write them, or remove it"),
    "a link to nothing": (lambda file: file.symlink_to("gone.yaml"), "expected a file, got a link to nothing"),
    "a folder": (Path.mkdir, "expected a file, got a folder"),
    "a pipe": (os.mkfifo, "expected a file, got a pipe or a device"),
    "a merge conflict": (_conflict, "lmgate.yaml:2: an unresolved merge conflict; mend it"),
    "gates below models": (
        _indented("models:\n  die: {path: x}", "  "),
        "lmgate.yaml:3: models.gates: expected keys with values, got a list; ",
    ),
    "gates in a dataset": (
        _indented("datasets:\n  words:\n    path: x.txt", "    "),
        "lmgate.yaml:4: datasets.words.gates: unknown key",
    ),
}


@pytest.mark.parametrize("kind", NO_GATES)
def test_a_project_file_whose_gates_would_silently_not_run_is_refused(project: Project, kind: str) -> None:
    make, sentence = NO_GATES[kind]
    with_tests(project, "[pytest]\n")
    (project.folder / "lmgate.yaml").unlink()
    make(project.folder / "lmgate.yaml")
    ways = [(), ("tests", "--lmgate-require-all"), ("-n", "2"), ("--co",)]
    for options in ways[: 4 if kind in ("a pipe", "gates below models") else 2]:
        outcome = project.run(*options).expect(4).is_silent_on("Traceback", "INTERNALERROR")
        assert outcome.text.count(sentence) == 1, outcome.text
    if kind.startswith("gates"):
        outcome.says("; gates: goes at the start of a line")
    project.write(pytest_ini=TESTPATHS).run().expect(4).says(sentence)
    project.run("tests", "--ignore", "lmgate.yaml").expect(0, passed=1)
    (project.folder / "below").mkdir()
    (project.folder / "lmgate.yaml").rename(project.folder / "below" / "lmgate.yaml")
    project.write(pytest_ini="[pytest]\n").run().expect(4).says(sentence, f"{project.folder}/below/lmgate.yaml")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_gates_in_another_encoding_are_refused(project: Project, encoding: str) -> None:
    text = (add_gates(project).folder / "lmgate.yaml").read_text(encoding="utf-8")
    (project.folder / "lmgate.yaml").write_text(text, encoding=encoding)
    project.run().expect(4).says(f"{project.folder}/lmgate.yaml: ").is_silent_on("Traceback")
