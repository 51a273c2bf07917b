"""benchmarks/drill.py: the drill's word on a few defects, and a drill that is killed."""

import sys
from pathlib import Path

import pytest
from drill import DEFECTS, make_project, pairs, run_kills

from tests.end_to_end.projects import environment
from tests.warm import warm_python

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", warm_python(environment()))


def test_gates_do_what_the_drill_said_when_defects_are_planted_that_happened(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    make_project(project, "llama")
    defects = [defect for defect in DEFECTS if defect.fault in ("norm", "answers")]
    seen = list(pairs(tmp_path, project, defects))
    assert [pair for pair in seen if pair.said != pair.red] == []
    red = {
        defect.fault: {pair.gate.partition("[")[0] for pair in seen if pair.defect is defect and pair.red}
        for defect in defects
    }
    assert red["answers"] == {"accuracy_min", "exact_min", "chrf_min"}
    assert red["norm"] >= {"ppl_max", "kl_max", "no_regression:ppl", "accuracy_min", "chrf_min"}
    assert "self_kl_max" not in red["norm"]


def test_a_drill_that_is_killed_goes_on_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    rows = run_kills(tmp_path / "project", 3, ["round-last"])
    assert [row for row in rows if not row.holds] == []
