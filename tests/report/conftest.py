"""Verdicts to render."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.gates.comparison import Comparison
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.gates.where import Passage, PositionChange, Slope, TagChange, TokenChange, Where


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def failed() -> Verdict:
    return Verdict(
        id="tests/test_quality.py::test_quality::ppl_max[int8-wikitext2]",
        test="tests/test_quality.py::test_quality",
        marker="ppl_max",
        metric="ppl",
        model="int8",
        dataset="wikitext2",
        verdict="fail",
        value=18.15,
        limit=16.5,
        stderr=0.4567,
        interval=(17.25, 19.0625),
        n=283287,
        signature="protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0",
        fingerprint="0123456789abcdef" * 4,
        seconds=12.34,
    )


@pytest.fixture
def passed(failed: Verdict) -> Verdict:
    return replace(failed, verdict="pass", value=16.0, interval=(15.5, 16.5), cached=True, seconds=0.01)


@pytest.fixture
def stopped(failed: Verdict) -> Verdict:
    return replace(failed, value=20.0, stderr=None, interval=None, at_least=True)


@pytest.fixture
def unmeasured(failed: Verdict) -> Verdict:
    return replace(
        failed,
        id="tests/test_quality.py::test_quality::bpb_max[gone-wikitext2]",
        marker="bpb_max",
        metric="bpb",
        model="gone",
        verdict="error",
        value=None,
        stderr=None,
        interval=None,
        n=None,
        signature="",
        fingerprint="",
        message="model 'gone': no such folder: models/gone; check models.gone.path",
        seconds=0.04,
    )


@pytest.fixture
def compared(failed: Verdict) -> Verdict:
    comparison = Comparison(
        decision="fail",
        candidate=18.15,
        reference=16.5,
        change=0.1,
        degradation=0.1,
        tolerance=Tolerance(0.01, relative=True),
        confidence=0.95,
        n=283287,
        clusters=40,
        lower=0.09,
        upper=0.11,
        p_pass=1.0,
        p_fail=0.0001,
        bounds="hall",
        against="model 'fp16'",
        notes=("device: cpu then, cuda now",),
    )
    return replace(failed, marker="no_regression", comparison=comparison)


@pytest.fixture
def where() -> Where:
    """Two documents, a slope, and three tags, of which one got worse beyond noise."""
    sat = TokenChange("the cat ", "sat", " on the mat", 9.25, 1.25)
    on = TokenChange("the cat sat ", "on", " the mat", 2.5, 0.5)
    spelled = (("the ", -0.5), ("cat ", 0.25), ("sat ", 8.0), ("on ", 2.0), ("the ", None), ("mat", 0.1))
    return Where(
        passages=(
            Passage("row 17", 5, 10.0, "the cat sat on the mat", (sat, on), spelled),
            Passage("row 3", 4, 2.0, "a dog ran"),
        ),
        positions=tuple(
            PositionChange(8 * at + 1, 8 * at + 8, 100, at / 8, at / 8 - 0.1, at / 8 + 0.2) for at in range(8)
        ),
        slope=Slope(1.0, 0.5, 1.5),
        tags=(
            TagChange("language", "ko", 10, 24.0, 20.0, 0.2, 0.15, 0.25),
            TagChange("language", "en", 30, 16.5, 16.5, 0.0, -0.01, 0.01),
            TagChange("language", "fr", 2, problem="nothing of these rows was scored"),
        ),
        more_tags=4,
        notes=("a note",),
    )


@pytest.fixture
def located(compared: Verdict, where: Where) -> Verdict:
    return replace(compared, where=where)
