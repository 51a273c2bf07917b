"""Gates of lmgate.yaml that pytest was led past are named in the summary; what is deselected on purpose is not."""

import pytest

from tests.end_to_end.projects import Project

PATHS = "2 gates of lmgate.yaml were not collected"


@pytest.fixture
def gated(measured: Project) -> Project:
    """A project with two gates in lmgate.yaml, and a test without a gate in a folder."""
    (measured.folder / "tests").mkdir()
    (measured.folder / "tests" / "test_plain.py").write_text("def test_plain(): pass\n")
    gate = "ppl_max: {{model: die, dataset: words, limit: {}}}"
    return measured.add_gates(gate.format(60.5), gate.format(59.5))


def test_gates_beside_the_paths_that_were_given_are_named_once(gated: Project) -> None:
    outcome = gated.run("tests", "-n", "2", "-m", "not slow").expect(0, passed=1)
    assert outcome.text.count(PATHS) == 1, outcome.text


def test_gates_above_the_folder_that_pytest_is_called_in_are_named(gated: Project) -> None:
    (gated.folder / "pytest.ini").unlink()  # then rootdir is the folder
    gated.run(cwd=gated.folder / "tests").expect(0, passed=1).says(PATHS, "add ../lmgate.yaml")


def test_gates_that_are_left_out_on_purpose_are_not_named(gated: Project) -> None:
    for options in ("-k plain", "--ignore lmgate.yaml", "tests/test_plain.py::test_plain", "tests --no-lmgate"):
        gated.run(*options.split(), "--lmgate-require-all").expect(0, passed=1).is_silent_on("not collected")


def test_a_session_may_be_refused_that_leaves_gates_out(gated: Project) -> None:
    outcome = gated.run("tests", env={"LMGATE_REQUIRE_ALL": "1"}).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count(f"--lmgate-require-all: {PATHS}") == 1, outcome.text


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
    workers = ("-n", "2")
    unmeasured.write(
        test_it=NOT_RUN,
        test_module="import pytest\npytest.importorskip('nosuch')\n@pytest.mark.ppl_max\ndef test_gate(): pass",
        test_plain="import pytest\npytest.importorskip('nosuch')",
    )
    outcome = unmeasured.run(*workers).expect(0, skipped=7)
    outcome.says(
        "gates of 2 tests did not run (no GPU): test_it.py::test_skipped, test_it.py::test_skipped_too\n",
        "a gate did not run (got empty parameter set",
        "test_it.py::test_marked_by_parameters[NOTSET]: its parameters are none, so its gates did not run",
        "test_module.py was skipped with its gates (could not import 'nosuch'",
    ).is_silent_on("test_plain.py was", "lost", "test_empty[NOTSET]: its")
    refused = unmeasured.run("--lmgate-require-all", *workers).expect(4)
    for test in ("empty", "marked_by_parameters", "measuring"):
        refused.says(f"--lmgate-require-all: test_it.py::test_{test}[NOTSET]: its parameters are none")
    unmeasured.run("--no-lmgate", *workers).expect(0, skipped=7).is_silent_on("did not run (")
