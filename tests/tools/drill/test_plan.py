"""The plan of a drill: bisection by its definition, and which faults fit into the time."""

import math
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.tools.drill.faults import known_faults
from pytest_lmgate.tools.drill.plan import Drill, Finding, next_strength, steps

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

    def judge(found: Finding, strength: int) -> None:
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
