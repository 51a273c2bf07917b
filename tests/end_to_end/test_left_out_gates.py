"""Gates of lmgate.yaml that pytest was led past are named in the summary; what is deselected on purpose is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.projects import Project

GATES = """\
gates:
  - ppl_max: {model: die, dataset: words, limit: 60.5}
  - ppl_max: {model: die, dataset: words, limit: 59.5}
"""
PATHS = (
    "2 gates of lmgate.yaml were not collected (pytest was given other paths): add lmgate.yaml to pytest's arguments"
)


@pytest.fixture
def gated(project: Project) -> Project:
    """A project with two gates in lmgate.yaml, and a test without a gate in a folder."""
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_plain.py").write_text("def test_plain(): pass\n")
    with (project.folder / "lmgate.yaml").open("a") as file:
        file.write(GATES)
    return project


@pytest.mark.parametrize(
    "options",
    [("tests",), ("tests/test_plain.py",), ("tests", "-n", "2"), ("tests", "-m", "not slow"), ("tests", "-q")],
)
def test_gates_beside_the_paths_that_were_given_are_named_once(gated: Project, options: tuple[str, ...]) -> None:
    outcome = gated.run(*options).expect(0, passed=1)
    assert outcome.text.count(PATHS) == 1, outcome.text


@pytest.mark.parametrize("settings", ["pytest_ini", ""])
def test_gates_above_the_folder_that_pytest_is_called_in_are_named(gated: Project, settings: str) -> None:
    if not settings:
        (gated.folder / "pytest.ini").unlink()  # then rootdir is the folder
    said = "2 gates of lmgate.yaml were not collected (pytest was called in tests): add ../lmgate.yaml"
    gated.run(cwd=gated.folder / "tests").expect(0, passed=1).says(said)


def test_gates_of_a_file_in_a_folder_that_pytest_passes_over_are_named(gated: Project) -> None:
    (gated.folder / ".ci").mkdir()
    (gated.folder / "lmgate.yaml").rename(gated.folder / ".ci" / "lmgate.yaml")
    said = "not collected (pytest does not walk into .ci): add .ci/lmgate.yaml"
    gated.run("--lmgate-config", ".ci/lmgate.yaml").expect(0, passed=1).says(said)


@pytest.mark.parametrize(
    "options",
    [
        ("-k", "plain"),
        ("-m", "not ppl_max"),
        ("--deselect", "lmgate.yaml"),
        ("--ignore", "lmgate.yaml"),
        ("--ignore", "lmgate.yaml", "-n", "2"),
        ("tests/test_plain.py::test_plain",),
        ("tests", "--lf"),
        ("tests", "--no-lmgate"),
    ],
)
def test_gates_that_are_left_out_on_purpose_are_not_named(gated: Project, options: tuple[str, ...]) -> None:
    gated.run(*options, "--lmgate-require-all").expect(0, passed=1).is_silent_on("not collected")


def test_gates_that_conftest_ignores_are_not_named(gated: Project) -> None:
    gated.write(conftest="collect_ignore = ['lmgate.yaml']")
    gated.run("tests").expect(0, passed=1).is_silent_on("not collected")


@pytest.mark.parametrize(
    ("option", "ini", "environment"),
    [
        ("--lmgate-require-all", "", {}),
        ("-v", "lmgate_require_all = true\n", {}),
        ("-v", "", {"LMGATE_REQUIRE_ALL": "1"}),
    ],
)
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_session_may_be_refused_that_leaves_gates_out(
    gated: Project, option: str, ini: str, environment: dict[str, str], workers: tuple[str, ...]
) -> None:
    gated.write(pytest_ini=f"[pytest]\n{ini}")
    outcome = gated.run("tests", option, *workers, env=environment).expect(4).is_silent_on("Traceback", "INTERNALERROR")
    assert outcome.text.count(f"--lmgate-require-all: {PATHS}") == 1, outcome.text


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_variable_that_is_mistyped_is_an_error_where_there_are_gates_alone(
    gated: Project, workers: tuple[str, ...]
) -> None:
    mistyped = {"LMGATE_REQURE_ALL": "1", "LMGATE_CACHE_KEY": 16 * "k", "LMGATE_TEAM": "blue"}
    outcome = gated.run("tests", *workers, env=mistyped).expect(4).is_silent_on("LMGATE_CACHE_KEY", "Traceback")
    outcome.says("LMGATE_REQURE_ALL is none of this plugin's (did you mean 'LMGATE_REQUIRE_ALL'?): correct it or")
    assert outcome.text.count("LMGATE_TEAM is none of this plugin's: correct it or unset it; one of your own") == 1
    (gated.folder / "lmgate.yaml").unlink()
    gated.run("tests", *workers, env=mistyped).expect(0, passed=1).is_silent_on("LMGATE")


def test_a_variable_that_hides_the_gates_of_the_project_is_named_where_all_are_required(gated: Project) -> None:
    (gated.folder / "other.yaml").write_text("models: {}\n")
    hiding = {"LMGATE_CONFIG": "other.yaml"}
    says = (
        f"--lmgate-require-all: the environment variable LMGATE_CONFIG=other.yaml hides the gates of {gated.folder}/lm"
    )
    for paths in ((), ("tests",), ("tests", "-n", "2")):
        gated.run(*paths, "--lmgate-require-all", env=hiding).expect(4).says(says)
    gated.run(env=hiding).expect(0, passed=1)
    gated.run("--lmgate-require-all", "--lmgate-config=other.yaml", env=hiding).expect(0, passed=1)
    gated.run("--lmgate-require-all", env={"LMGATE_CONFIG": "lmgate.yaml"}).expect(1, passed=2, failed=1)


def test_a_broken_gate_counts_and_a_file_that_cannot_be_read_is_an_error(gated: Project) -> None:
    text = (gated.folder / "lmgate.yaml").read_text()
    (gated.folder / "lmgate.yaml").write_text(text.replace("ppl_max", "ppl_mx", 1))
    gated.run("tests").expect(0, passed=1).says(PATHS)
    (gated.folder / "lmgate.yaml").write_text("gates: [\n")
    gated.run("tests").expect(4).says("lmgate.yaml:2: not valid YAML")


def test_no_gate_no_word(project: Project) -> None:
    Path(project.folder, "tests").mkdir()
    (project.folder / "tests" / "test_plain.py").write_text("def test_plain(): pass\n")
    project.run("tests", "--lmgate-require-all").expect(0, passed=1).is_silent_on("lmgate.yaml", "= lmgate =")
