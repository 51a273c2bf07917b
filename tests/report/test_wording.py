"""Numbers as people read them."""

import math

from pytest_lmgate.report.wording import divergence_lines

# Figures of two models in lines.


def test_a_figure_that_is_not_finite_reads_the_same_from_a_run_and_from_its_json_report() -> None:
    """As the perplexity of a model that is wrong beyond the range of a float; JSON has null for it."""
    known = {"Mean KLD": 0.5, "Mean KLD, stderr": 0.125, "Same top p": 0.75}
    run = {"Mean PPL(Q)": math.inf, "Mean PPL(Q), stderr": math.nan, "Mean PPL(base)": 60.0, **known}
    read = {**run, "Mean PPL(Q)": None, "Mean PPL(Q), stderr": None}
    expected = ["Mean PPL(Q) not finite, Mean PPL(base) 60", "Mean KLD 0.5 ± 0.125", "Same top p 75%"]
    assert divergence_lines(run, iid=False) == divergence_lines(read, iid=False) == expected
