"""Numbers as people read them."""

import math

import pytest
from msgspec.structs import replace

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.wording import Row, divergence_lines, tolerance
from pytest_lmgate.settings.gates import Tolerance


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


# Figures of two models in lines.


def test_a_figure_that_is_not_finite_reads_the_same_from_a_run_and_from_its_json_report() -> None:
    """As the perplexity of a model that is wrong beyond the range of a float; JSON has null for it."""
    known = {"Mean KLD": 0.5, "Mean KLD, stderr": 0.125, "Same top p": 0.75}
    run = {"Mean PPL(Q)": math.inf, "Mean PPL(Q), stderr": math.nan, "Mean PPL(base)": 60.0, **known}
    read = {**run, "Mean PPL(Q)": None, "Mean PPL(Q), stderr": None}
    expected = ["Mean PPL(Q) not finite, Mean PPL(base) 60", "Mean KLD 0.5 ± 0.125", "Same top p 75%"]
    assert divergence_lines(run, iid=False) == divergence_lines(read, iid=False) == expected
