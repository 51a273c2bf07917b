"""Wrong arguments of markers, options and lmgate.yaml: said at collection, with exit code 4, before any measurement."""

import pytest

from tests.end_to_end.projects import GATE, Project, marked

# By test: the marker, what is wrong, and what is right. tests/settings has all wrong arguments.
WRONG = {
    "model": ('ppl_max("dye", "words", 60)', "model 'dye'", "'die'"),
    "swapped": ('ppl_max("words", "die", 60)', "model 'words' is a dataset"),
    "variant": ('no_regression("rouge2", "die", "words", "1%")', "metric: rouge, variant: rouge2"),
    "no_fixture": ('ppl_max(lmgate.fixture("no_such"), "words", 60)', "'no_such'"),
    "name_of_a_fixture": ('ppl_max("pair", "words", 60)', "lmgate.fixture('pair')"),
}
WRONG_MARKS = f"""
import pytest_lmgate as lmgate
{marked(**{test: gate for test, (gate, *_) in WRONG.items()})}
@pytest.fixture
def pair(): return "die"

@pytest.mark.parametrize("model", ["die"])
@pytest.mark.ppl_max(lmgate.fixture("model"), "words", 60.5)
def test_parametrize(model): pass
"""


@pytest.mark.parametrize("options", [("--collect-only", "-p", "no:terminal"), ("--no-lmgate",)])
def test_every_wrong_argument_is_named_at_collection_with_a_hint(unmeasured: Project, options: tuple[str, ...]) -> None:
    unmeasured.write(test_wrong=WRONG_MARKS, test_right=GATE)
    outcome = unmeasured.run(*options).expect(4)
    for test, (_, *facts) in WRONG.items():
        line = next((line for line in outcome.err.splitlines() if f"::test_{test}: @" in line), "")
        assert all(fact in line for fact in facts), f"{test}: expected {facts} in {line!r}\n{outcome.text}"
    outcome.says("::test_parametrize[die]: @pytest.mark.ppl_max: ", "indirect=['model']")
    outcome.is_silent_on("Traceback", "INTERNALERROR", "test_right.py::test_gate: ")
    assert not unmeasured.cache.exists()


def test_a_wrong_lmgate_yaml_is_one_error_under_xdist_and_in_a_fixture_too(unmeasured: Project) -> None:
    unmeasured.write(lmgate_yaml="models: [", test_gate=GATE)
    unmeasured.run("-n", "2").expect(4).says("lmgate.yaml:1: ").is_silent_on("Traceback", "INTERNALERROR")
    wrong = "models: {die: {pth: x}}"  # which is looked at where a fixture or a marker needs it
    unmeasured.write(lmgate_yaml=wrong, test_gate="def test_score(ppl_of): ppl_of('die', 'words')")
    unmeasured.run().expect(1, failed=1).says("lmgate.yaml:1: ").is_silent_on("/pytest_lmgate/", "The above exception")


def test_a_mistyped_marker_is_refused_unless_the_project_registers_it(unmeasured: Project) -> None:
    mistyped = marked(letters='ppl_mx("sure", "words", 60.5)', no_gate="slow_max(3)")
    unmeasured.write(test_gate=mistyped, test_right=GATE)
    outcome = unmeasured.run("-n", "2").expect(4).says("test_gate.py::test_letters: @pytest.mark.ppl_mx: ")
    outcome.is_silent_on("Traceback", "INTERNALERROR", "slow_max: ", "never arrived")
    unmeasured.write(pytest_ini="[pytest]\nmarkers =\n    ppl_mx(all): mine\n")
    unmeasured.run("--no-lmgate").expect(0, passed=2, skipped=1)


WITH_PARAMS = """
    import pytest
    import pytest_lmgate as lmgate

    @pytest.fixture(params=["die", "sure"])
    def either(request): return request.param

    @pytest.fixture
    def of_either(either): return either

    @pytest.mark.ppl_max(lmgate.fixture("either"), "words", 60.5)
    def test_params(FIRST): pass

    @pytest.mark.ppl_max(lmgate.fixture("of_either"), "words", 60.5)
    def test_params_of_another(SECOND): pass

    @pytest.mark.parametrize("either", ["die", "sure"], indirect=["either"])
    @pytest.mark.ppl_max(lmgate.fixture("either"), "words", 60.5)
    def test_indirect(either): pass
"""


def test_a_fixture_with_params_is_refused_unless_the_test_asks_for_it(measured: Project) -> None:
    measured.write(test_gate=WITH_PARAMS.replace("FIRST", "").replace("SECOND", ""))
    outcome = measured.run().expect(4).is_silent_on("Traceback", "test_indirect")
    outcome.says("fixture 'either' has params", "add 'of_either' to the test's arguments")
    measured.write(test_gate=WITH_PARAMS.replace("FIRST", "either").replace("SECOND", "of_either"))
    measured.run().expect(1, passed=3, failed=3)


def test_a_metric_that_cannot_be_made_is_named_with_the_line_that_makes_it(unmeasured: Project) -> None:
    hook = "import pytest_lmgate\n\ndef pytest_lmgate_metrics(): return [pytest_lmgate.TextMetric(nam='x')]\n"
    outcome = unmeasured.write(conftest=hook, test_gate=GATE).run().expect(4)
    outcome.says("pytest_lmgate_metrics: ", "conftest.py:3: ").is_silent_on("Traceback", "INTERNALERROR")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lmgate-device=gpu",), "'cuda'"),
        (("--lmgate-verify=some",), "--lmgate-verify: "),
        (("-n", "2", "--lmgate-executor=ray"), "--lmgate-executor: Ray already distributes the work: remove -n"),
    ],
)
def test_a_wrong_option_is_a_usage_error(unmeasured: Project, options: tuple[str, ...], said: str) -> None:
    unmeasured.write(test_gate=GATE).run(*options).expect(4).says(said).is_silent_on("Traceback", "INTERNALERROR")
