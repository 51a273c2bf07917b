"""benchmarks/drill.py: what a drill costs, in time and memory."""

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


def test_cost_counts_the_broken_models_that_a_gate_can_see(tmp_path: Path) -> None:
    gate, whole = drill.run_cost(
        tmp_path / "example", {"ppl int8 few-bulletins": "limit: 2.2"}, "--faults", "skip,kv-bits"
    )
    assert re.fullmatch(r"[\d.]+ s once; 1 faults reach it, [1-3] broken models", gate.note)
    assert gate.value == whole.value
    assert float(whole.value.removesuffix(" times")) > 0


def test_memory_is_that_of_a_drill_and_of_its_gates(tmp_path: Path) -> None:
    drilled, more = drill.run_memory(tmp_path / "project", width=32)
    assert drilled.required == "1.3"
    assert float(drilled.value.removesuffix(" times")) > 0.5
    assert re.fullmatch(r"-?[\d.]+", more.value)
