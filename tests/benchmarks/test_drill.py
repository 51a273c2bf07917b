"""benchmarks/drill.py: a drill that is killed, and what a drill costs."""

import re
import sys
from pathlib import Path

import drill
import pytest

from tests.end_to_end.projects import environment
from tests.warm import warm_python

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", warm_python(environment()))


def test_a_drill_that_is_killed_goes_on_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    rows = drill.run_kills(tmp_path / "project", 1, ["round-last"], gates=["kl", "exact"])
    assert [row for row in rows if not row.holds] == []


def test_cost_counts_the_broken_models_that_a_gate_can_see(tmp_path: Path) -> None:
    gate, whole = drill.run_cost(
        tmp_path / "example", {"ppl int8 few-bulletins": "limit: 2.2"}, "--faults", "skip,kv-bits"
    )
    assert re.fullmatch(r"[\d.]+ s once; 1 faults reach it, [1-3] broken models", gate.note)
    assert gate.value == whole.value
    assert float(whole.value.removesuffix(" times")) > 0
