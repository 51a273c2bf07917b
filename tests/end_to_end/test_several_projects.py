"""Several lmgate.yaml in one session, as in a repository of several projects: a test goes by the nearest one."""

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project

YAML = """\
models: {{die: {{path: {models}/{model}}}}}
datasets: {{words: {{path: {models}/words.txt}}}}
gates:
  - ppl_max: {{model: die, dataset: words, limit: 60.5}}
"""
SCORE = """
import pytest

@pytest.fixture(scope='module')
def value(ppl_of): return ppl_of('die', 'words')

def test_score(value): assert value < 60.5
"""
NOT_WORSE = "  - no_regression: {metric: ppl, model: die, dataset: words, tolerance: 1%}\n"


@pytest.fixture
def several(measured: Project, models: Path) -> Project:
    """Two projects below rootdir, which has no lmgate.yaml; the `die` of `b` is another model, and bad."""
    (measured.folder / "lmgate.yaml").unlink()
    for name, model in (("a", "die"), ("b", "sure")):
        tests = measured.folder / name / "tests"
        tests.mkdir(parents=True)
        (tests.parent / "lmgate.yaml").write_text(YAML.format(models=models, model=model))
        (tests / f"test_{name}.py").write_text(GATE)
        (tests / f"test_score_{name}.py").write_text(SCORE)
        (tests / f"test_plain_{name}.py").write_text("def test_plain(): pass\n")
    return measured


def compare(project: Project, names: str) -> None:
    for name in names:
        with (project.folder / name / "lmgate.yaml").open("a") as file:
            file.write(NOT_WORSE)


def test_markers_fixtures_and_gates_go_by_the_nearest_lmgate_yaml(several: Project) -> None:
    several.write(conftest=COUNT_MEASUREMENTS)
    shutil.rmtree(several.cache)
    outcome = several.with_torch.run("-n", "2").expect(1, passed=5, failed=3)
    outcome.says("b/lmgate.yaml::ppl_max[die-words]", "test_score_b.py::test_score", "b/tests/test_b.py::test_gate")
    assert len(several.measured) == 2, "one measurement of each model, in the session's one cache"
    assert not (several.folder / "a" / ".lmgate_cache").exists()
    several.run("a").expect(0, passed=4)


def test_what_is_wrong_with_one_lmgate_yaml_is_said_once_and_leaves_other_projects_alone(several: Project) -> None:
    (several.folder / "b" / "lmgate.yaml").write_text("modells: {}\n")
    (several.folder / "b" / "tests" / "test_other.py").write_text(GATE)
    assert several.run().expect(4).text.count("modells: ") == 1
    several.run("a").expect(0, passed=4)


def test_a_baseline_lies_beside_its_lmgate_yaml_and_is_the_same_from_either_rootdir(several: Project) -> None:
    compare(several, "ab")
    missing = several.run("-k", "lmgate.yaml and no_regression").expect(1, error=2)
    missing.says(
        f"{several.folder}/a/lmgate-baseline.json", "'a/lmgate.yaml::no_regression:ppl[die-words]' --lmgate-update"
    )
    several.run("--lmgate-update", "-k", "no_regression").expect(0, passed=2).says("a/lmgate-baseline.json: 1 new")
    for name in "ab":
        entries = several.report(f"{name}/lmgate-baseline.json")["gates"]
        assert list(entries) == ["lmgate.yaml::no_regression:ppl[die-words]"]
    assert not (several.folder / "lmgate-baseline.json").exists()
    several.run("-k", "no_regression").expect(0, passed=2)
    # The project by itself, with a rootdir of its own.
    several.run("--rootdir", "a", "a", "--lmgate-cache", str(several.cache)).expect(0, passed=5)


def test_gates_of_a_project_that_pytest_was_led_past_are_named(several: Project) -> None:
    said = "add a/lmgate.yaml"
    outcome = several.run("a/tests/test_plain_a.py").expect(0, passed=1).says(said)
    outcome.is_silent_on("b/lmgate.yaml")
    several.run("a/tests", "b/tests/test_plain_b.py", "--lmgate-require-all").expect(4).says(said, "b/lmgate.yaml")


def test_projects_with_a_rootdir_each_are_refused_where_ids_or_baselines_would_be_mixed_up(several: Project) -> None:
    (several.folder / "pytest.ini").unlink()
    for name in "ab":
        (several.folder / name / "pytest.ini").write_text("[pytest]\n")
    cache = ("--lmgate-cache", str(several.cache))
    several.run("a", "b", *cache).expect(4).says("lmgate.yaml::ppl_max[die-words]", "--rootdir")
    several.run("--rootdir", ".", "a", "b", *cache).expect(1, passed=5, failed=3)
    compare(several, "b")
    several.run("--rootdir", "a", "b/lmgate.yaml", *cache).expect(4).says("b/lmgate.yaml", "rootdir")


def test_a_baseline_beside_a_named_lmgate_yaml_is_not_passed_over(several: Project) -> None:
    compare(several, "a")
    several.run("a/tests", "b/tests", "--lmgate-config", "a/lmgate.yaml").expect(0, passed=6)
    named = ("--lmgate-config", "a/lmgate.yaml", "a/lmgate.yaml", "-k", "no_regression")
    several.run(*named, "--lmgate-update").expect(0, passed=1)
    assert (several.folder / "lmgate-baseline.json").exists()
    (several.folder / "a" / "lmgate-baseline.json").write_text("{}")
    several.run(*named).expect(4).says("a/lmgate-baseline.json", "--lmgate-config")
    several.run(*named, "--lmgate-baseline", "lmgate-baseline.json").expect(0, passed=1)


def test_a_fixture_that_measures_once_for_two_projects_is_refused(several: Project) -> None:
    fixture = "@pytest.fixture(scope='session')\ndef "
    shared = f"{fixture}scores(ppl_of): return ppl_of\n{fixture}shared(scores): return scores('die', 'words')\n"
    several.write(conftest=f"import pytest\n{shared}")
    for name in "ab":
        test = several.folder / name / "tests" / f"test_shared_{name}.py"
        test.write_text("def test_shared(shared): assert shared < 60.5\n")
    several.run().expect(4).says("'shared'", f"{several.folder}/a/lmgate.yaml")
    several.run("a").expect(0, passed=5)
