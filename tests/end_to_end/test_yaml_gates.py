"""The gates: list of lmgate.yaml is collected as tests: named, selected, judged, reported, refused like any other."""

import re
from xml.etree import ElementTree

import pytest

from tests.end_to_end.projects import GATE, Outcome, Project

GATES = (
    "ppl_max: {model: die, dataset: words, limit: 60.5}",
    "bpb_max: {model: sure, dataset: words, limit: 99}",
    "ppl_max:\n      model: die\n      dataset: words\n      limit: 59.5",
)
DIE, SURE, BROKEN = (
    f"lmgate.yaml::{name}" for name in ("ppl_max[die-words]", "bpb_max[sure-words]", "ppl_max[die-words#2]")
)


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
    options = ("-v", "-W", "error", "--strict-markers", "-n", "2")
    reports = ("--lmgate-report=json:report.json", "--junitxml=junit.xml", "-o", "junit_family=xunit1")
    outcome = measured.add_gates(*GATES).run(*options, *reports).expect(1, passed=2, failed=1)
    outcome.is_silent_on("Traceback", "yaml_items.py", "Warning")
    assert ran(outcome) == {DIE: "PASSED", SURE: "PASSED", BROKEN: "FAILED"}
    outcome.says(f"reproduce  pytest '{BROKEN}'\n", "accept     set another limit in lmgate.yaml:")
    outcome.says(f"FAILED {BROKEN} - GateFailed: ppl_max: ", "3 gates: 2 pass, 1 fail")
    gates = {gate["id"]: (gate["test"], gate["verdict"]) for gate in measured.report()["gates"]}
    assert gates == {DIE: (DIE, "pass"), SURE: (SURE, "pass"), BROKEN: (BROKEN, "fail")}
    cases = {case.get("name"): case for case in ElementTree.parse(measured.folder / "junit.xml").iter("testcase")}
    case = cases["ppl_max[die-words#2]"]
    assert (case.get("file"), int(case.get("line", -1))) == ("lmgate.yaml", line_of(measured, "bpb_max"))


SELECTIONS = [
    (("-m", "ppl_max"), {DIE, BROKEN, "test_gate.py::test_gate"}),
    ((BROKEN, SURE), {BROKEN, SURE}),
    (("--deselect", BROKEN), {DIE, SURE, "test_gate.py::test_gate"}),
]
if pytest.version_tuple >= (9,):  # older versions collect a test twice
    SELECTIONS.append(((".", "lmgate.yaml", DIE), {DIE, SURE, BROKEN, "test_gate.py::test_gate"}))


def test_gates_are_selected_as_other_tests_are(measured: Project) -> None:
    measured.add_gates(*GATES).write(test_gate=GATE)
    for options, tests in SELECTIONS:
        outcome = measured.run("--collect-only", "-q", *options)
        assert sorted(re.findall(r"^\S+::\S+$", outcome.out, flags=re.MULTILINE)) == sorted(tests), options


def test_a_wrong_gate_is_named_by_line_and_key_also_where_no_gate_is_judged(unmeasured: Project) -> None:
    wrong = [gate.replace("59.5", "many").replace("sure", "shure") for gate in GATES]
    outcome = unmeasured.add_gates(*wrong).run("--no-lmgate", "-p", "no:terminal").expect(4)
    begin, file = line_of(unmeasured, "gates:"), f"{unmeasured.folder}/lmgate.yaml"
    outcome.says(f"{file}:{begin + 2}: gates[1].bpb_max.model: ", f"{file}:{begin + 6}: gates[2].ppl_max.limit: ")
    assert not unmeasured.cache.exists()


def with_tests(project: Project, pytest_ini: str = "[pytest]\ntestpaths = tests\n") -> Project:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_plain.py").write_text("def test_plain(): pass\n")
    return project.add_gates(*GATES).write(pytest_ini=pytest_ini)


def test_gates_run_once_wherever_testpaths_lead(measured: Project) -> None:
    with_tests(measured)
    for testpaths in ("tests", "tests lmgate.yaml"):
        measured.write(pytest_ini=f"[pytest]\ntestpaths = {testpaths}\n")
        measured.run("-n", "2").expect(1, passed=3, failed=1).says("3 gates: 2 pass, 1 fail")


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


def test_a_project_file_whose_gates_would_silently_not_run_is_refused(unmeasured: Project) -> None:
    with_tests(unmeasured, "[pytest]\n").change("gates:\n", "gates\uff1a\n")
    for paths in (("tests",), ("-n", "2")):
        unmeasured.run(*paths).expect(4).says(f"{unmeasured.folder}/lmgate.yaml:", ": not valid YAML: ")
    unmeasured.write(lmgate_yaml="models:\n  die: {path: x}\n  gates:\n    - ppl_max: {model: die}\n")
    sentence = "lmgate.yaml:3: models.gates: "
    outcome = unmeasured.run("tests").expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count(sentence) == 1, outcome.text
    unmeasured.run("tests", "--ignore", "lmgate.yaml").expect(0, passed=1)
    (unmeasured.folder / "below").mkdir()
    (unmeasured.folder / "lmgate.yaml").rename(unmeasured.folder / "below" / "lmgate.yaml")
    unmeasured.write(pytest_ini="[pytest]\n").run().expect(4).says(sentence, f"{unmeasured.folder}/below/lmgate.yaml")


PATHS = "3 gates of lmgate.yaml were not collected"


@pytest.fixture
def gated(measured: Project) -> Project:
    return with_tests(measured, "[pytest]\n")


def test_gates_beside_the_paths_that_were_given_are_named_once_and_may_be_required(gated: Project) -> None:
    outcome = gated.run("tests", "-n", "2", "-m", "not slow").expect(0, passed=1)
    assert outcome.text.count(PATHS) == 1, outcome.text
    refused = gated.run("tests", env={"LMGATE_REQUIRE_ALL": "1"}).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert refused.text.count(f"--lmgate-require-all: {PATHS}") == 1, refused.text


def test_gates_above_the_folder_that_pytest_is_called_in_are_named(gated: Project) -> None:
    (gated.folder / "pytest.ini").unlink()  # then rootdir is the folder
    gated.run(cwd=gated.folder / "tests").expect(0, passed=1).says(PATHS, "add ../lmgate.yaml")


def test_gates_that_are_left_out_on_purpose_are_not_named(gated: Project) -> None:
    for options in ("-k plain", "--ignore lmgate.yaml", "tests/test_plain.py::test_plain", "tests --no-lmgate"):
        gated.run(*options.split(), "--lmgate-require-all").expect(0, passed=1).is_silent_on("not collected")


def test_a_session_may_be_refused_that_has_lost_its_gates(measured: Project) -> None:
    measured.write(test_plain="def test_plain(): pass\n").run("--lmgate-require-all", "-n", "2").expect(0, passed=1)
    (measured.folder / "lmgate.yaml").unlink()
    outcome = measured.run("--lmgate-require-all", "-n", "2").expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count("--lmgate-require-all: no test has a gate, and there is no") == 1, outcome.text


def test_a_variable_that_is_mistyped_is_an_error_where_there_are_gates_alone(gated: Project) -> None:
    mistyped = {"LMGATE_REQURE_ALL": "1", "LMGATE_CACHE_KEY": 16 * "k", "LMGATE_TEAM": "blue", "LMGATE_STRICT": "1"}
    outcome = gated.run("tests", "-n", "2", env=mistyped).expect(4).is_silent_on("LMGATE_CACHE_KEY", "Traceback")
    outcome.says("LMGATE_REQURE_ALL", "'LMGATE_REQUIRE_ALL'", "LMGATE_STRICT", "--lmgate-strict")
    assert outcome.text.count("LMGATE_TEAM") == 1
    (gated.folder / "lmgate.yaml").unlink()
    gated.run("tests", "-n", "2", env=mistyped).expect(0, passed=1).is_silent_on("LMGATE")


NOT_RUN = """
    import pytest

    @pytest.fixture
    def absent(): pytest.skip("no GPU")

    @pytest.fixture(params=[])
    def model(request): return request.param

    @pytest.mark.ppl_max("die", "words", 60.5)
    @pytest.mark.bpb_max("die", "words", 60.5)
    def test_skipped(absent): pass

    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_skipped_too(absent): pass

    @pytest.mark.parametrize("n", [])
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_empty(n): pass

    @pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.ppl_max("die", "words", n)) for n in ()])
    def test_marked_by_parameters(n): pass

    def test_measuring(ppl_of, model): pass
"""


def test_gates_that_did_not_run_are_named_with_the_reason(unmeasured: Project) -> None:
    unmeasured.write(
        test_it=NOT_RUN,
        test_module="import pytest\npytest.importorskip('nosuch')\n@pytest.mark.ppl_max\ndef test_gate(): pass",
        test_plain="import pytest\npytest.importorskip('nosuch')",
    )
    outcome = unmeasured.run("-n", "2").expect(0, skipped=7)
    outcome.says(
        "gates of 2 tests did not run (no GPU): test_it.py::test_skipped, test_it.py::test_skipped_too\n",
        "a gate did not run (got empty parameter set",
        "test_module.py was skipped with its gates (could not import 'nosuch'",
    ).is_silent_on("test_plain.py was", "lost")
    (without,) = re.findall(r"test_it\.py::(\w+)\[\w+\]: its parameters are none", outcome.out)
    assert without == "test_marked_by_parameters"  # NOTSET or n0 is its parameter, by pytest's version
    refused = unmeasured.run("--lmgate-require-all", "-n", "2").expect(4)
    found = re.findall(r"--lmgate-require-all: test_it\.py::test_(\w+)\[\w+\]: its parameters are none", refused.text)
    assert {*found} == {"empty", "marked_by_parameters", "measuring"}
    unmeasured.run("--no-lmgate", "-n", "2").expect(0, skipped=7).is_silent_on("did not run (")


MARKED = """
defaults: {dataset: words, model: die}
gates:
  - ppl_max: {limit: 60.5, marks: [nightly]}
  - ppl_max: {model: sure, limit: 60.5, marks: [nightly, slow], advisory: true}
  - ppl_max: {limit: 59.5, marks: xfail}
"""


def test_marks_are_pytests_own(measured: Project) -> None:
    measured.write(lmgate_yaml=measured.settings + MARKED)
    strict = ("--strict-markers", "-W", "error")
    measured.run(*strict, "-n", "2").expect(0, passed=2, xfailed=1)
    measured.run("-m", "nightly and not slow", *strict).expect(0, passed=1)
    measured.run("-m", "slow", *strict).expect(0, passed=1).says("FAIL (advisory)")


def test_an_advisory_gate_that_cannot_be_measured_fails_the_build(measured: Project) -> None:
    measured.add_gates("ppl_max: {model: nan, dataset: words, limit: 60, advisory: true}")
    measured.with_torch.run().expect(1, error=1).says("ERROR ", "1 gate: 1 error").is_silent_on("(advisory)")


ADVISORY = """
defaults: {dataset: words, advisory: true}
gates:
  - ppl_max: {model: die, limit: 59.5}
  - ppl_max: {model: die, limit: 60.5}
  - ppl_max: {model: die, limit: 60.5, stride: 32, advisory: false}
  - no_regression: {metric: ppl, model: warm, tolerance: 6%, against: die}
  - no_regression: {metric: ppl, model: warm, tolerance: 0.01%, against: die}
"""


def test_an_advisory_gate_is_shown_in_every_report_and_fails_nothing(noisy: Project) -> None:
    noisy.write(lmgate_yaml=noisy.settings + ADVISORY)
    reports = [f"--lmgate-report={each}" for each in ("json:report.json", "markdown:r.md", "html:r.html", "github")]
    outcome = noisy.run("--lmgate-strict", "-n", "2", *reports, "--junitxml", "junit.xml").expect(0, passed=5)
    counts = "5 gates: 2 pass, 1 advisory fail, 2 advisory inconclusive"
    outcome.says(counts, "FAIL (advisory)", "INCONCLUSIVE (advisory)", "is above the limit 59.5 (advisory)")
    outcome.is_silent_on("INCONCLUSIVE!", "GateFailed", "::error")
    assert outcome.out.count("::warning") == 3
    gates = noisy.report()["gates"]
    assert [gate.get("advisory", False) for gate in gates].count(True) == 4
    assert not any(gate["blocking"] for gate in gates)
    junit = '[die-words].advisory" value="true"'
    for file, text in {"r.md": f"**{counts}**", "r.html": 'id="counts" class="good"', "junit.xml": junit}.items():
        assert text in (noisy.folder / file).read_text(encoding="utf-8"), file


def test_an_advisory_marker_in_python_leaves_the_tests_other_gates_and_its_body_to_judge(measured: Project) -> None:
    advised = "ppl_max('die', 'words', 59.5, advisory=True)"
    measured.write(
        test_gate=f"""
        import pytest

        @pytest.mark.{advised}
        def test_passes(): pass

        @pytest.mark.{advised}
        def test_body(): assert False

        @pytest.mark.ppl_max('sure', 'words', 60)
        @pytest.mark.{advised}
        def test_other(): pass

        @pytest.mark.xfail(strict=True)
        @pytest.mark.{advised}
        def test_xfail(): assert False
        """
    )
    outcome = measured.run().expect(1, failed=2, passed=1, xfailed=1)
    outcome.says("5 gates: 1 fail, 4 advisory fail", "FAILED test_gate.py::test_body - assert False", "GateFailed")


WITHIN = """
gates:
  - no_regression: {metric: ppl, model: sure, dataset: words, within: 10%, against: die}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 10%, against: sure}
  - no_regression: {metric: ppl, model: die, dataset: words, tolerance: 10%, against: sure}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 60%, against: warm}
  - no_regression: {metric: ppl, model: die, dataset: words, within: 7%, against: warm}
"""


def test_a_gain_beyond_within_fails_as_a_loss_does(noisy: Project) -> None:
    noisy.write(lmgate_yaml=noisy.settings + WITHIN)
    done = noisy.run("--lmgate-report=html:page.html", "--lmgate-report=json:report.json").expect(1)
    done.says("worse than", "better than", "FAIL at a tolerance of ±10%", "set another within in", "±60%", "±7%")
    assert done.out.count("parts of the text that cost most") == 1, "of the loss alone"
    gates = noisy.report()["gates"]
    assert [gate["verdict"] for gate in gates] == ["fail", "fail", "pass", "pass", "inconclusive"]
    assert [gate["comparison"]["tolerance"]["two_sided"] for gate in gates] == [True, True, False, True, True]
    assert 'class="beyond" d="M0 4H' in (noisy.folder / "page.html").read_text(encoding="utf-8")


def test_a_value_pinned_by_the_baseline_fails_if_it_gets_better(noisy: Project) -> None:
    gate = "no_regression: {metric: ppl, model: sure, dataset: words, within: 5%}"
    noisy.add_gates(gate).run("--lmgate-update").expect(0, passed=1)
    noisy.run().expect(0, passed=1).says("±5%")
    noisy.change("/sure}", "/die}").run().expect(1, failed=1).says("better than", "of the baseline of", "FAIL")
