"""The plan of a drill: bisection by its definition, which faults fit into the time, and the smallest damage by hand."""

import math
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.judge.result import Bounded, Verdict
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.tools.drill.faults import known_faults
from pytest_lmgate.tools.drill.plan import Drill, DrillFinding, next_strength, smallest_seen, steps
from tests.tools.drill.test_outcome import verdict

FAULTS = known_faults()


@given(some.integers(1, 40), some.data())
def test_bisection_finds_the_weakest_strength_that_is_caught_with_no_more_models_than_planned(levels: int, data: Any):
    weakest = data.draw(some.integers(1, levels + 1))
    judged: dict[int, bool] = {}
    while strength := next_strength(levels, judged):
        assert strength not in judged
        judged[strength] = strength >= weakest
    assert min((strength for strength, caught in judged.items() if caught), default=levels + 1) == weakest
    assert len(judged) <= steps(levels)


def test_the_usual_faults_take_four_judged_models_each_at_most():
    assert max(steps(len(fault.levels)) for fault in FAULTS.values()) == 4


def drill(names: str, seconds: float) -> Drill:
    """Return a drill of one gate whose measurement takes a second, with so many seconds left."""
    guard: Any = SimpleNamespace(model="m", bound=None, healthy=SimpleNamespace(fingerprint="address"))
    evaluator: Any = SimpleNamespace(
        can_see=lambda bound, fault: fault.name != "penalty",
        sharing_key=lambda bound: "",
        measurements=SimpleNamespace(log=Log()),
    )
    unused: Any = None
    faults = [FAULTS[name] for name in names.split()]
    made = Drill(evaluator, unused, [guard], faults, {"address": 1.0}, time.monotonic() + seconds)
    made._why_not = lambda guard, fault: "it has none" if fault.name == "base" else ""  # type: ignore[method-assign]
    return made


def test_a_time_limit_leaves_faults_of_all_kinds_in_and_names_the_others():
    made = drill("round-first round-last noise skip temperature base", 13)
    made.prepare()
    assert [fault.name for fault in made.faults] == ["round-first", "skip", "temperature", "base"]
    assert [fault.name for fault in made.left_out] == ["round-last", "noise"]
    assert made.plan() == "1 gate, 3 faults: at most 11 measurements, about 11 s; no time for round-last, noise"


def test_no_time_for_a_single_fault_that_a_gate_can_see_is_an_error_that_says_how_long_the_quickest_takes():
    for faults, seconds in (("round-first temperature", 3), ("penalty skip", 4)):  # no gate can see the penalty
        with pytest.raises(ConfigError, match=f"no time for a single fault: the quickest takes about {seconds} s"):
            drill(faults, 2).prepare()


def test_a_fault_that_no_gate_can_see_takes_no_time():
    made = drill("penalty skip", 13)
    made.prepare()
    assert [made.cost(fault) for fault in made.faults] == [0.0, 4.0]
    assert made.plan() == "1 gate, 2 faults: at most 4 measurements, about 4 s"


def test_without_a_time_limit_nothing_is_left_out_and_of_faults_that_take_time_one_is_always_judged():
    made, tried = drill("penalty skip noise", math.inf), []
    made.prepare()
    assert made.left_out == []

    def judge(found: DrillFinding, strength: int) -> None:
        tried.append(found.fault.name)
        found.trials[strength] = cast("Verdict", SimpleNamespace(failed=True))

    made.deadline = time.monotonic() - 1
    made._judge = judge  # type: ignore[method-assign]
    made.run()
    assert set(tried) == {"skip"}
    assert [fault.name for fault in made.left_out] == ["noise"]


def test_a_drill_that_tried_nothing_is_an_error_that_says_why():
    made = drill("skip", math.inf)
    made.prepare()
    made._judge = lambda found, _: setattr(found, "reason", "nothing can be changed in it")  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="nothing is known of these gates: skip: nothing can be changed in it"):
        made.run()


PASSED = verdict(10.0)


def test_a_value_alone_fails_beyond_the_limit() -> None:
    assert smallest_seen(PASSED) == 2.0
    assert smallest_seen(replace(PASSED, limit=None)) is None


def test_a_bound_adds_its_distance_and_as_much_again_as_a_power_of_80_percent_needs() -> None:
    bounded = Bounded(0.95, lower=9.0, upper=11.5, bounds="t")
    more = 1 + 0.8416212 / 1.6448536  # normal quantiles of 80% and 95%
    assert smallest_seen(replace(PASSED, bounded=bounded)) == pytest.approx(2 + more * 1.0, rel=1e-6)
    higher = replace(PASSED, direction="higher", limit=8.0, bounded=bounded)
    assert smallest_seen(higher) == pytest.approx(2 + more * 1.5, rel=1e-6)


def test_a_comparison_adds_what_it_detects_to_the_tolerance() -> None:
    compared = Comparison("pass", 10.0, 10.0, 0.0, 0.0, Tolerance(0.02, relative=True), 0.95, 100, 50, detectable=0.01)
    texts = replace(PASSED, metric="bleu", comparison=compared)
    assert smallest_seen(texts) == pytest.approx(0.03)
    half = 1.6448536 / (1.6448536 + 0.8416212)  # of the distance for 80%, without that of 80% above the bound
    assert smallest_seen(texts, 0.5) == pytest.approx(0.02 + half * 0.01, rel=1e-6)
    assert smallest_seen(replace(PASSED, comparison=replace(compared, detectable=None))) is None


def test_a_loss_of_perplexity_brings_noise_that_an_unbroken_model_does_not_have() -> None:
    compared = Comparison("pass", 10.0, 10.0, 0.0, 0.0, Tolerance(0.02, relative=True), 0.95, 1600, 50, detectable=1e-4)
    seen = smallest_seen(replace(PASSED, comparison=compared))
    assert seen is not None
    loss = math.log(1 + seen)
    assert loss == pytest.approx(math.log(1.02) + (1.6448536 + 0.8416212) * math.sqrt(2 * loss / 1600), rel=1e-6)
    noisier = replace(compared, detectable=0.5)
    assert smallest_seen(replace(PASSED, comparison=noisier)) == pytest.approx(0.52)


def test_a_share_of_right_rows_is_noisier_at_its_limit_than_at_its_value() -> None:
    z, n = 1.6448536, 40
    exact = replace(PASSED, metric="exact", value=1.0, limit=0.8, direction="higher")
    bounded = Bounded(0.95, lower=1 / (1 + z**2 / n), upper=1.0, bounds="wilson")  # 40 of 40
    share = 0.8 - z * math.sqrt(0.8 * 0.2 / n)  # whose upper score bound is 0.8
    upper = (share + z**2 / (2 * n) + z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))) / (1 + z**2 / n)
    assert upper == pytest.approx(0.8, rel=1e-6)
    assert smallest_seen(replace(exact, bounded=bounded), 0.5) == pytest.approx(1 - share, rel=1e-6)
    more = 0.8416212 * math.sqrt(share * (1 - share) / n)
    assert smallest_seen(replace(exact, bounded=bounded)) == pytest.approx(1 - share + more, rel=1e-6)
    mirrored = replace(exact, value=0.0, limit=0.2, direction="lower")
    wrong = Bounded(0.95, lower=0.0, upper=1 - 1 / (1 + z**2 / n), bounds="wilson")
    assert smallest_seen(replace(mirrored, bounded=wrong), 0.5) == pytest.approx(1 - share, rel=1e-6)
