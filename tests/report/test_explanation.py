"""The failure text, and what is where in it."""

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded, Verdict, to_json
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.wording import degradation
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison
from tests.judge.records import results_of
from tests.report.hostile import HOSTILE, hostile_where

FAILED = """\
ppl_max: perplexity 18.15 [17.25, 19.0625] of 'int8' on 'wikitext2' is above the limit 16.5
  by         +1.65 (+10.00%)
  signature  protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0
  scored     283,287 tokens, standard error 0.457, interval at 95%
  measured   now, in 12.3 s (fingerprint 0123456789ab)
  reproduce  pytest tests/test_quality.py::test_quality
  accept     set another limit
  help       "My build is red: what now?" (docs/howto/red_build.md of pytest-lmgate)"""


def test_a_failure_says_all_there_is_to_know(failed: Verdict) -> None:
    assert explain(failed) == FAILED


def _change(degradation: float, lower: float | None, upper: float | None, size: float, *, relative: bool) -> Comparison:
    return Comparison(
        against="model 'fp16'", decision="inconclusive", candidate=16.0, reference=16.0, change=degradation,
        degradation=degradation, tolerance=Tolerance(size, relative), confidence=0.95, n=9, clusters=9,
        lower=lower, upper=upper,
    )  # fmt: skip


_EQUAL = replace(_change(0.0, -0.12, 0.12, 0.05, relative=False), bounds="tango", clusters=20, needed=52)
_TWICE = replace(_change(0.0, 0.0, 0.0, 0.0, relative=True), reason="both are the same measurement")
_SEEN = replace(_change(0.1, 0.0, 0.2, 0.05, relative=True), bounds="hall", detectable=0.06)
_OPEN, _PASS = {"verdict": "inconclusive"}, {"verdict": "pass", "value": 16.0}
_POWER = "\n  power      the smallest change this gate can see is 6%"
SAID_IF: list[tuple[dict[str, Any], str, str]] = [  # the parts that are said and those that are not, by |
    ({"verdict": "pass", "value": 16.0, "cached": True},
     "is within the limit 16.5\n  by         -0.5 (-3.03%)\n|earlier, from the cache (fingerprint 0123456789ab)",
     "accept|help"),
    ({"stderr": None, "interval": None},
     "perplexity 18.15 of 'int8'|283,287 tokens; no interval: too little text", ""),
    ({"limit": 0.0}, "\n  by         +18.15\n", ""),
    ({"marker": "metric_min", "value": -4.0, "limit": -2.0}, "\n  by         -2 (-100.00%)\n", ""),
    ({"stderr": None, "interval": None, "n": 7, "unit": "row"}, "7 rows; no interval: too few independent rows", ""),
    ({"interval": (17.25, math.inf)}, "perplexity 18.15 [17.25, inf] of", ""),
    ({"test": "tests/test_a.py::test_a[x y]"}, "reproduce  pytest 'tests/test_a.py::test_a[x y]'", ""),
    ({"value": 100.0000001, "limit": 100.0, "interval": None},
     "perplexity 100.0000001 of|by         +1e-07 (+0.00%)", ""),
    ({**_OPEN, "bounded": Bounded(0.95, clusters=1, clustered_by="rows")},
     "inconclusive: this gate can never decide: 1 independent row: the noise needs at least two", ""),
    ({"verdict": "pass", "marker": "no_regression", "limit": None, "message": "the baseline is measured again"},
     "no_regression: perplexity 18.15 of 'int8' on 'wikitext2': the baseline is measured again", ""),
    ({**_OPEN, "value": 16.0, "unit": "row", "n": 20, "comparison": _EQUAL},
     "52 rows without a change to show less than 0.05|\n  noise      from 20 rows, by Tango's test\n",
     "would settle it"),
    ({**_OPEN, "value": 16.0, "unit": "row", "n": 40, "comparison": _EQUAL},
     "noise      from 20 clusters of rows, by Tango's test\n", "20 rows"),
    ({**_OPEN, "comparison": _SEEN}, _POWER, ""),
    ({**_OPEN, "comparison": replace(_SEEN, detectable=0.04)}, "", _POWER),
    ({"verdict": "fail", "comparison": _SEEN}, "", _POWER),
    ({**_PASS, "comparison": replace(_SEEN, unseen=0.15)},
     "within the tolerance with 95% confidence; damage to fewer than 15% of such rows is not ruled out\n", ""),
    ({"verdict": "fail", "comparison": replace(_SEEN, unseen=0.15)}, "", "ruled out"),
    ({**_PASS, "bounded": Bounded(0.95, 15.0, 16.2, "hall", clusters=30, unseen=0.1)},
     "damage to fewer than 10% of such rows is not ruled out\n", ""),
    ({**_PASS, "comparison": replace(_TWICE, clusters=3, clustered_by="blocks")},
     "both are the same measurement; this gate can never decide: 3 blocks of windows", ""),
    ({**_PASS, "comparison": _TWICE},
     "\n  degraded   +0% [+0, +0]\n  verdict    both are the same measurement\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says", "is_silent_on"), SAID_IF)
def test_an_explanation_says(failed: Verdict, change: dict[str, Any], says: str, is_silent_on: str) -> None:
    text = explain(replace(failed, **change))
    assert [part for part in says.split("|") if part not in text] == [], text
    assert [part for part in is_silent_on.split("|") if part and part in text] == [], text


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


_FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(a=_FINITE, b=_FINITE, steps=st.integers(0, 3))
def test_different_numbers_never_look_the_same(a: float, b: float, steps: int) -> None:
    for _ in range(steps):  # the neighbours of a number are the hard ones
        b = math.nextafter(a if b == a else b, a + 1)
    for one, other in ((a, b), (a, math.nextafter(a, math.inf))):
        left, right = distinct(one, other)
        assert (float(left) < float(right)) == (one < other)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_shown_and_not_obeyed(compared: Verdict, text: str) -> None:
    verdict = replace(compared, where=hostile_where(text))
    for told in (explain(verdict), to_json(results_of([verdict]))):
        told.encode("utf-8")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", told)
    assert len(explain(verdict)) < 20_000
