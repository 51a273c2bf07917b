"""The failure text, word by word."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.verdict import Bounded, Verdict
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.wording.explanation import explain
from pytest_lmgate.report.wording.numbers import degradation


def test_a_failure_says_all_there_is_to_know(failed: Verdict) -> None:
    assert (
        explain(failed)
        == """\
ppl_max: perplexity 18.15 [17.25, 19.0625] of 'int8' on 'wikitext2' is above the limit 16.5
  by         +1.65 (+10.00%)
  signature  protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0
  scored     283,287 tokens, standard error 0.457, interval at 95%
  measured   now, in 12.3 s (fingerprint 0123456789ab)
  reproduce  pytest tests/test_quality.py::test_quality
  accept     set another limit
  help       "My build is red: what now?" (docs/howto/red_build.md of pytest-lmgate)"""
    )


def test_a_pass_from_the_cache_says_so(passed: Verdict) -> None:
    assert (
        explain(passed)
        == """\
ppl_max: perplexity 16 [15.5, 16.5] of 'int8' on 'wikitext2' is within the limit 16.5
  by         -0.5 (-3.03%)
  signature  protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0
  scored     283,287 tokens, standard error 0.457, interval at 95%
  measured   earlier, from the cache (fingerprint 0123456789ab); --lmgate-refresh measures again
  reproduce  pytest tests/test_quality.py::test_quality"""
    )


def test_a_measurement_stopped_early_is_a_lower_bound(stopped: Verdict) -> None:
    assert (
        explain(stopped)
        == """\
ppl_max: perplexity at least 20 of 'int8' on 'wikitext2' is above the limit 16.5
  by         at least +3.5 (+21.21%)
  signature  protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0
  scored     283,287 tokens
  measured   now, in 12.3 s (fingerprint 0123456789ab)
  note       stopped early by --lmgate-fail-fast: the sum so far already proves it
  reproduce  pytest tests/test_quality.py::test_quality
  accept     set another limit
  help       "My build is red: what now?" (docs/howto/red_build.md of pytest-lmgate)"""
    )


def test_what_could_not_be_measured_says_why(unmeasured: Verdict) -> None:
    assert (
        explain(unmeasured)
        == """\
bpb_max: model 'gone': no such folder: models/gone; check models.gone.path
  bits per byte of 'gone' on 'wikitext2' could not be measured"""
    )


def test_without_an_interval_the_reason_is_given(failed: Verdict) -> None:
    alone = replace(failed, stderr=None, interval=None)
    assert "perplexity 18.15 of 'int8'" in explain(alone)
    assert "283,287 tokens; no interval: too little text to estimate the noise" in explain(alone)


def test_the_excess_has_no_percentage_of_a_limit_of_zero_and_one_with_its_own_sign_of_a_negative_one(
    failed: Verdict,
) -> None:
    assert "\n  by         +18.15\n" in explain(replace(failed, limit=0.0))
    assert "\n  by         -2 (-100.00%)\n" in explain(replace(failed, marker="metric_min", value=-4.0, limit=-2.0))


def test_rows_without_an_interval_are_one_cluster(failed: Verdict) -> None:
    alone = explain(replace(failed, stderr=None, interval=None, n=7, unit="row"))
    assert "7 rows; no interval: too few independent rows to estimate the noise\n" in alone


def test_an_interval_may_have_no_upper_end(failed: Verdict) -> None:
    assert "perplexity 18.15 [17.25, inf] of" in explain(replace(failed, interval=(17.25, math.inf)))


def test_a_test_id_can_be_pasted_into_a_shell(failed: Verdict) -> None:
    assert "reproduce  pytest 'tests/test_a.py::test_a[x y]'" in explain(
        replace(failed, test="tests/test_a.py::test_a[x y]")
    )


def test_a_failure_by_the_ninth_digit_shows_nine_digits(failed: Verdict) -> None:
    text = explain(replace(failed, value=100.0000001, limit=100.0, interval=None))
    assert "perplexity 100.0000001 of 'int8' on 'wikitext2' is above the limit 100\n" in text
    assert "by         +1e-07 (+0.00%)" in text


@pytest.mark.parametrize(
    ("a", "b", "texts"),
    [
        (18.15, 16.5, ("18.15", "16.5")),
        (100.0, 100.0, ("100", "100")),
        (99.9999999, 100.0, ("99.9999999", "100")),
        (0.1 + 0.2, 0.3, ("0.30000000000000004", "0.29999999999999999")),
        (1234567.0, 1234568.0, ("1234567", "1234568")),
        (1e-9, 2e-9, ("1e-09", "2e-09")),
    ],
)
def test_two_numbers_are_shown_with_the_digits_that_tell_them_apart(a: float, b: float, texts: tuple[str, str]) -> None:
    assert distinct(a, b) == texts


def _change(degradation: float, lower: float | None, upper: float | None, size: float, *, relative: bool) -> Comparison:
    return Comparison(
        against="model 'fp16'",
        decision="inconclusive",
        candidate=16.0,
        reference=16.0,
        change=degradation,
        degradation=degradation,
        tolerance=Tolerance(size, relative),
        confidence=0.95,
        n=9,
        clusters=9,
        lower=lower,
        upper=upper,
    )


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (_change(0.00647, 0.00518, 0.00777, 0.01, relative=True), "+0.65% [+0.52, +0.78]"),
        (_change(0.00647, 0.00518, 0.00777, 0.01, relative=False), "+0.0065 [+0.0052, +0.0078]"),
        (_change(-0.5, -0.7, -0.3, 0.01, relative=True), "-50% [-70, -30]"),
        (_change(0.0, 0.0, 0.0, 0.01, relative=True), "+0% [+0, +0]"),
        (_change(-0.0, -0.0, 0.0, 0.01, relative=False), "+0 [+0, +0]"),
        (_change(0.00999, 0.0098, 0.010004, 0.01, relative=True), "+0.9990% [+0.9800, +1.0004]"),
        (_change(1e9, 1e8, math.inf, 0.01, relative=True), "+1e+11% [+1e+10, +inf]"),
        (_change(0.012345, None, None, 0.01, relative=True), "+1.234% (no bounds)"),
    ],
)
def test_a_degradation_shows_two_digits_of_its_noise_and_more_where_the_tolerance_is_near(
    change: Comparison, shown: str
) -> None:
    assert degradation(change) == shown


@given(
    numbers=st.lists(st.floats(-1e5, 1e5, allow_subnormal=False), min_size=3, max_size=3).map(sorted),
    size=st.floats(0, 1e5, allow_subnormal=False),
)
@example(numbers=[0.0, 99995.0, 99995.998046875], size=99995.998046875)
def test_a_bound_is_never_shown_on_the_other_side_of_the_tolerance(numbers: list[float], size: float) -> None:
    lower, measured, upper = numbers
    shown = degradation(_change(measured, lower, upper, size, relative=False))
    for text, value in zip(re.findall(r"[+-][0-9.e+-]+", shown), (measured, lower, upper), strict=True):
        assert (float(text) - size) * (value - size) >= 0


@pytest.mark.parametrize(
    ("outcome", "blocking", "says"),
    [
        (
            "pass",
            False,
            "the value is within the limit with 95% confidence: [17.5, 18.5] "
            "(from 20 blocks of text, by Hall's method)",
        ),
        (
            "fail",
            False,
            "the value is beyond the limit with 95% confidence: [17.5, 18.5] "
            "(from 20 blocks of text, by Hall's method)",
        ),
        (
            "inconclusive",
            False,
            "inconclusive at 95%: the limit lies within the noise [17.5, 18.5] (from 20 blocks of text, by "
            "Hall's method); the build goes on; about 400,000 tokens would settle it",
        ),
        (
            "inconclusive",
            True,
            "inconclusive at 95%: the limit lies within the noise [17.5, 18.5] (from 20 blocks of text, by "
            "Hall's method); the build fails; about 400,000 tokens would settle it",
        ),
    ],
)
def test_a_limit_gate_with_a_confidence_says_by_which_bounds_it_was_judged(
    failed: Verdict, outcome: str, blocking: bool, says: str
) -> None:
    bounded = Bounded(0.95, 17.5, 18.5, "hall", 20, "blocks", 400_000 if outcome == "inconclusive" else None)
    text = explain(replace(failed, verdict=outcome, blocking=blocking, bounded=bounded))
    assert f"\n  verdict    {says}\n" in text


def test_a_limit_gate_without_an_interval_says_what_there_is(failed: Verdict) -> None:
    text = explain(replace(failed, verdict="inconclusive", bounded=Bounded(0.95, clusters=1, clustered_by="rows")))
    assert "inconclusive: 1 independent row: the noise is estimated from at least two" in text


def test_two_models_that_agree_in_every_row_need_so_many_rows(failed: Verdict) -> None:
    change = replace(_change(0.0, -0.12, 0.12, 0.05, relative=False), bounds="tango", clusters=20, needed=52)
    verdict = replace(failed, verdict="inconclusive", value=16.0, unit="row", n=20, comparison=change)
    text = explain(verdict)
    assert "it needs 52 rows without a change to show less than 0.05" in text
    assert "\n  noise      from 20 rows, by Tango's test\n" in text
    assert "would settle it" not in text


@pytest.mark.parametrize(
    ("verdict", "detectable", "is_said"),
    [("inconclusive", 0.06, True), ("inconclusive", 0.04, False), ("fail", 0.06, False)],
)
def test_what_a_gate_can_see_is_said_where_it_is_more_than_the_tolerance(
    failed: Verdict, verdict: str, detectable: float, is_said: bool
) -> None:
    change = replace(_change(0.1, 0.0, 0.2, 0.05, relative=True), bounds="hall", detectable=detectable)
    text = explain(replace(failed, verdict=verdict, comparison=change))
    assert ("power      the smallest change this gate can see is 6%" in text) == is_said


def test_the_same_measurement_twice_says_so(failed: Verdict) -> None:
    change = replace(_change(0.0, 0.0, 0.0, 0.0, relative=True), reason="the same measurement twice")
    text = explain(replace(failed, verdict="pass", value=16.0, comparison=change))
    assert "\n  degraded   +0% [+0, +0]\n  verdict    the same measurement twice\n" in text


_FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(a=_FINITE, b=_FINITE, steps=st.integers(0, 3))
def test_different_numbers_never_look_the_same(a: float, b: float, steps: int) -> None:
    for _ in range(steps):  # the neighbours of a number are the hard ones
        b = math.nextafter(a if b == a else b, a + 1)
    for one, other in ((a, b), (a, math.nextafter(a, math.inf))):
        left, right = distinct(one, other)
        assert left != right or one == other
        assert (float(left) < float(right)) == (one < other)


def test_a_score_that_should_be_higher_is_below_its_limit_and_its_worst_rows_are_shown(
    failed: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    verdict = replace(
        failed,
        marker="bleu_min",
        metric="bleu",
        value=20.5,
        limit=25.0,
        interval=None,
        stderr=None,
        n=200,
        unit="row",
        worst=((1203, 0.0, "say it", "the whole reference of this row", ""), (7, 12.34, "", "a\nb", "c")),
    )
    first, *rest = explain(verdict).split("\n")
    assert first == "bleu_min: BLEU 20.5 of 'int8' on 'wikitext2' is below the limit 25"
    assert rest[0] == "  by         -4.5 (-18.00%)"
    assert rest[-10:-3] == [
        "  worst rows row (from 0), score, prompt, reference, output",
        "    1,203         0  say it",
        "                     the whole...",
        "                     (empty)",
        "        7     12.34  (empty)",
        "                     a\\nb",
        "                     c",
    ]


def test_a_baseline_that_was_written_is_explained_without_a_limit(passed: Verdict) -> None:
    written = replace(passed, marker="no_regression", limit=None, message="the baseline is measured anew")
    first, *_ = explain(written).splitlines()
    assert first == "no_regression: perplexity 16 of 'int8' on 'wikitext2': the baseline is measured anew"
