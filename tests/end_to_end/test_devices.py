"""A number measured on one GPU is no other GPU's, unless lmgate.yaml says so; nor is a baseline.

The GPU is made up: an engine of the test's own says that it runs on one, of the name in the variable CARD.
"""

import json
from pathlib import Path

import pytest

from tests.end_to_end.projects import Project

CONFTEST = f"""
    import dataclasses
    import os
    import sys

    sys.path.insert(0, {str(Path(__file__).parents[1] / "engines")!r})
    from fair_die import Dice as Plain
    from pytest_lmgate.engines import devices

    devices.cards = lambda: tuple(devices.Card(name, "9.0") for name in [os.environ["CARD"]] if name)
    devices._torch_build = lambda: ("cuda", "13.0")

    class Dice(Plain):
        def describe(self, entry):
            return dataclasses.replace(super().describe(entry), device="cuda")

    def pytest_lmgate_backends():
        return [Dice()]
"""
YAML = """
models: {six: {path: six.die}}
datasets: {letters: {path: letters.txt}}
gates:
  - ppl_max: {model: six, dataset: letters, limit: 6.01}
"""


@pytest.fixture
def measured(project: Project) -> Project:
    """A project with one gate that an H100 has measured."""
    project.write(conftest=CONFTEST, pytest_ini="[pytest]\n")
    (project.folder / "six.die").write_text('{"sides": 6}')
    (project.folder / "letters.txt").write_text("abcd" * 200)
    (project.folder / "lmgate.yaml").write_text(YAML)
    assert is_cached(project, "NVIDIA H100") == (False, "NVIDIA H100")
    return project


def is_cached(project: Project, card: str) -> tuple[bool, str]:
    """Run the gate on a card; return whether the cache had the number, and which card the report says made it."""
    file = project.folder / "report.json"
    project.run("--lmgate-report", f"json:{file}", env={"CARD": card}).expect(0)
    report = json.loads(file.read_text())
    gate = report["gates"][0]
    assert report["run"].get("hardware", "") == gate.get("hardware", "")
    return gate["cached"], gate.get("hardware", "")


def test_another_card_measures_for_itself(measured: Project) -> None:
    assert is_cached(measured, "NVIDIA A100-SXM4-40GB") == (False, "NVIDIA A100-SXM4-40GB")
    assert is_cached(measured, "") == (False, "")
    assert is_cached(measured, "NVIDIA H100") == (True, "NVIDIA H100")


@pytest.mark.parametrize("alike", ["equal", "[NVIDIA H100, NVIDIA H200]"])
def test_cards_that_count_as_one_share_a_number_which_keeps_the_name_of_the_card_that_made_it(
    measured: Project, alike: str
) -> None:
    (measured.folder / "lmgate.yaml").write_text(f"devices: {alike}\n{YAML}")
    assert is_cached(measured, "NVIDIA H100") == (False, "NVIDIA H100")  # another address than that of one card
    assert is_cached(measured, "NVIDIA H200") == (True, "NVIDIA H100")
    assert is_cached(measured, "") == (True, "NVIDIA H100")  # a machine without a GPU judges what one with it measured
    assert is_cached(measured, "NVIDIA A100-SXM4-40GB")[0] == (alike == "equal")


BY_BASELINE = YAML.replace("ppl_max: {model: six, dataset: letters, limit: 6.01}", "no_regression: {REST}").replace(
    "REST", "metric: ppl, model: six, dataset: letters, tolerance: 1%"
)
GATE = "lmgate.yaml::no_regression:ppl[six-letters]"


@pytest.fixture
def accepted(measured: Project) -> Project:
    """The same project with a baseline of an H100."""
    (measured.folder / "lmgate.yaml").write_text(BY_BASELINE)
    measured.run("--lmgate-update-new-only", env={"CARD": "NVIDIA H100"}).expect(0)
    measured.run(env={"CARD": "NVIDIA H100"}).expect(0, passed=1)
    return measured


def names(project: Project) -> list[str]:
    return sorted(json.loads((project.folder / "lmgate-baseline.json").read_text())["gates"])


def test_each_card_has_a_baseline_of_its_own(accepted: Project) -> None:
    a100 = {"CARD": "NVIDIA A100"}
    accepted.run(env=a100).expect(1, error=1).says(
        "no baseline for NVIDIA A100", "of NVIDIA H100, 6, and", "--lmgate-update-new-only"
    )
    accepted.run("--lmgate-update-new-only", env=a100).expect(0).says("1 new")
    assert names(accepted) == [GATE, f"{GATE} @ NVIDIA A100"]
    for card in ("NVIDIA H100", "NVIDIA A100"):
        assert "no gate uses" not in accepted.run(env={"CARD": card}).expect(0, passed=1).text
        accepted.run("--lmgate-update", env={"CARD": card}).expect(0).says("1 unchanged")
    (accepted.folder / "six.die").write_text('{"sides": 7}')
    for card in ("NVIDIA H100", "NVIDIA A100"):
        accepted.run(env={"CARD": card}).expect(1).says("+16.67%")
    accepted.run("--lmgate-update", env=a100).expect(0).says("1 changed")
    accepted.run(env=a100).expect(0, passed=1)
    accepted.run(env={"CARD": "NVIDIA H100"}).expect(1)
    accepted.run("--lmgate-prune", env={"CARD": "NVIDIA H100"})
    assert names(accepted) == [GATE, f"{GATE} @ NVIDIA A100"]


def test_a_value_better_by_more_than_the_tolerance_passes_and_says_that_the_baseline_no_longer_guards_it(
    accepted: Project,
) -> None:
    (accepted.folder / "six.die").write_text('{"sides": 5.5}')
    done = accepted.run(env={"CARD": "NVIDIA H100"}).expect(0, passed=1)
    done.says("baseline outgrown: 1 gate better by more than the tolerance (no_regression:ppl[six-letters])")


@pytest.mark.parametrize("alike", ["equal", "[NVIDIA H100, NVIDIA A100]"])
def test_cards_that_count_as_one_share_a_baseline(accepted: Project, alike: str) -> None:
    (accepted.folder / "lmgate.yaml").write_text(f"devices: {alike}\n{BY_BASELINE}")
    for card in ("NVIDIA H100", "NVIDIA A100"):
        accepted.run(env={"CARD": card}).expect(0, passed=1)
    accepted.run(env={"CARD": "NVIDIA L4"}).expect(0 if alike == "equal" else 1)


def test_a_label_tells_machines_apart(accepted: Project) -> None:
    (accepted.folder / "lmgate.yaml").write_text(f"label: ${{RUNNER_CLASS}}\n{BY_BASELINE}")
    card = {"CARD": "NVIDIA H100"}
    accepted.run(env=card).expect(1).says("label: ${RUNNER_CLASS}: the environment variable RUNNER_CLASS is not set")
    large = card | {"RUNNER_CLASS": "large"}
    accepted.run(env=large).expect(1).says("no baseline for large", "of NVIDIA H100, 6, and").is_silent_on(
        "under devices:"
    )
    accepted.run("--lmgate-update", env=large).expect(0)
    assert names(accepted) == [GATE, f"{GATE} @ large"]
    accepted.run(env=large | {"CARD": "NVIDIA A100"}).expect(0, passed=1)
    accepted.run(env=large | {"RUNNER_CLASS": "small"}).expect(1).says(
        "no baseline for small", "of NVIDIA H100, 6; large, 6"
    )
