"""Numbers as people read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.wording.explanation import explain
from pytest_lmgate.report.wording.numbers import tolerance
from pytest_lmgate.report.wording.rows import Row


@pytest.mark.parametrize(
    ("metric", "written", "reference", "shown"),
    [
        ("accuracy", "5%", 0.509, "5% (2.5 points)"),
        ("rouge", "2%", 0.5, "2% (1 point)"),
        ("bleu", "5%", 34.0, "5% (1.7 points)"),
        ("ter", "10%", 120.0, "10% (12 points)"),
        ("exact", 0.02, 0.509, "0.02 (2 points, 3.9%)"),
        ("bleu", 1.5, 30.0, "1.5 points (5%)"),
        ("ppl", "1%", 3.66, "1%"),
        ("ppl", 1.5, 3.66, "1.5 ppl (41%)"),
        ("ppl", 0.01, 3.66, "0.01 ppl (0.27%)"),
        ("bpb", 0.02, 0.8, "0.02 bpb (2.5%)"),
        ("kl", 0.01, 0.002, "0.01 nats (500%)"),
        ("exact", 0.02, 0.0, "0.02 (2 points)"),
        ("politeness", 1.5, 3.0, "1.5 (50%)"),
        ("politeness", "1%", 3.0, "1%"),
    ],
)
def test_a_tolerance_is_shown_with_what_it_comes_to(
    compared: Verdict, metric: str, written: str | float, reference: float, shown: str
) -> None:
    assert compared.comparison is not None
    found = replace(compared.comparison, tolerance=Tolerance.parse(written), reference=reference)
    assert tolerance(found, metric) == shown
    verdict = replace(compared, metric=metric, comparison=found)
    assert Row.of(verdict).tolerance == shown
    assert f": FAIL at a tolerance of {shown}\n" in explain(verdict)
