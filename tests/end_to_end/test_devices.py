"""A number measured on one GPU is no other GPU's, unless lmgate.yaml says so; nor is a baseline.

The GPU is made up: an engine of the test's own says that it runs on one, of the name in the variable CARD.
"""

from pathlib import Path

import pytest

from tests.end_to_end.projects import Outcome, Project

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


GATE = "lmgate.yaml::no_regression:ppl[six-letters]"
BY_BASELINE = YAML.replace("ppl_max: {", "no_regression: {metric: ppl, ").replace("limit: 6.01", "tolerance: 1%")
H100, A100 = "NVIDIA H100", "NVIDIA A100"


class Cards(Project):
    """A project with one gate, run on a card."""

    def on(self, card: str, *options: str, **env: str) -> Outcome:
        return self.run(*options, "--lmgate-report=json:report.json", env={"CARD": card, **env})

    def is_cached(self, card: str) -> tuple[bool, str]:
        """Return whether the cache had the number, and which card the report says made it."""
        self.on(card).expect(0)
        report = self.report()
        (gate,) = report["gates"]
        assert report["run"].get("hardware", "") == gate.get("hardware", "")
        return gate["cached"], gate.get("hardware", "")

    def yaml(self, text: str) -> None:
        (self.folder / "lmgate.yaml").write_text(text)

    @property
    def names(self) -> list[str]:
        return sorted(self.report("lmgate-baseline.json")["gates"])


@pytest.fixture
def measured(tmp_path: Path) -> Cards:
    """A project whose gate an H100 has measured."""
    project = Cards(tmp_path, "pytest")
    project.write(conftest=CONFTEST, pytest_ini="[pytest]\n", letters_txt="abcd" * 200)
    (tmp_path / "six.die").write_text('{"sides": 6}')
    project.yaml(YAML)
    assert project.is_cached(H100) == (False, H100)
    return project


def test_another_card_measures_for_itself_unless_the_file_counts_them_as_one(measured: Cards) -> None:
    assert measured.is_cached(A100) == (False, A100)
    assert measured.is_cached("") == (False, "")
    assert measured.is_cached(H100) == (True, H100)
    measured.yaml(f"devices: [{H100}, NVIDIA H200]\n{YAML}")
    assert measured.is_cached(H100) == (False, H100)  # another address than that of one card
    assert measured.is_cached("NVIDIA H200") == (True, H100)
    assert measured.is_cached("") == (True, H100)  # a machine without a GPU judges what one with it measured
    assert measured.is_cached("NVIDIA L4")[0] is False


@pytest.fixture
def accepted(measured: Cards) -> Cards:
    """The same project with a baseline of an H100."""
    measured.yaml(BY_BASELINE)
    measured.on(H100, "--lmgate-update-new-only").expect(0)
    return measured


def test_each_card_has_a_baseline_of_its_own(accepted: Cards) -> None:
    accepted.on(A100).expect(1, error=1).says(
        f"no baseline for {A100}", f"of {H100}, 6, and", "--lmgate-update-new-only"
    )
    accepted.on(A100, "--lmgate-update-new-only").expect(0).says("1 new")
    assert accepted.names == [GATE, f"{GATE} @ {A100}"]
    assert "no gate uses" not in accepted.on(H100).expect(0, passed=1).text
    (accepted.folder / "six.die").write_text('{"sides": 7}')
    accepted.on(A100, "--lmgate-update").expect(0).says("1 changed")
    accepted.on(A100).expect(0, passed=1)
    accepted.on(H100, "--lmgate-prune").expect(1).says("+16.67%")
    assert accepted.names == [GATE, f"{GATE} @ {A100}"]


def test_a_value_better_by_more_than_the_tolerance_says_that_the_baseline_no_longer_guards_it(accepted: Cards) -> None:
    (accepted.folder / "six.die").write_text('{"sides": 5.5}')
    done = accepted.on(H100).expect(0, passed=1)
    done.says("baseline outgrown: 1 gate better by more than the tolerance (no_regression:ppl[six-letters])")


def test_cards_that_count_as_one_share_a_baseline(accepted: Cards) -> None:
    for alike, code in (("equal", 0), (f"[{H100}, {A100}]", 1)):
        accepted.yaml(f"devices: {alike}\n{BY_BASELINE}")
        accepted.on(A100).expect(0, passed=1)
        accepted.on("NVIDIA L4").expect(code)


def test_a_label_tells_machines_apart(accepted: Cards) -> None:
    accepted.yaml(f"label: ${{RUNNER_CLASS}}\n{BY_BASELINE}")
    accepted.on(H100).expect(1).says("label: ${RUNNER_CLASS}: the environment variable RUNNER_CLASS is not set")
    accepted.on(H100, RUNNER_CLASS="large").expect(1).says("no baseline for large", f"of {H100}, 6, and")
    accepted.on(H100, "--lmgate-update", RUNNER_CLASS="large").expect(0)
    assert accepted.names == [GATE, f"{GATE} @ large"]
    accepted.on(A100, RUNNER_CLASS="large").expect(0, passed=1)
    accepted.on(H100, RUNNER_CLASS="small").expect(1).says("no baseline for small", f"of {H100}, 6; large, 6")
