"""A number measured on one GPU is no other GPU's, unless lmgate.yaml says so; the report names what made each.

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
