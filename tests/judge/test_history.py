"""Changes beyond noise: how often the rule is wrong, and what it sees."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from pytest_lmgate.report.history import LEVEL, change_between, find_changes, significant
from tests.judge.records import compared, record


def kinds(*values: float | None, stderr: float = 1.0) -> list[str]:
    return [finding.kind for finding in find_changes([record(value, stderr) for value in values])]


def test_the_distance_is_that_of_a_z_test_of_two_means() -> None:
    found = change_between([record(10.0, 1.0), record(12.0, 2.0)], record(16.0, 0.5))
    error = math.sqrt((1.0**2 + 2.0**2) / 4 + 0.5**2)
    assert (found.before, found.worse, found.errors) == (11.0, True, pytest.approx(5 / error, rel=1e-6))
    assert found.p_value == pytest.approx(2 * norm.sf(5 / error), rel=1e-4)


def test_the_end_of_each_interval_that_faces_the_other_is_the_noise() -> None:
    few = record(1.0, interval=(0.84, 1.0), direction="higher")  # 20 of 20 rows: no standard error, yet noise
    less = record(0.95, interval=(0.76, 0.99), direction="higher")
    found = change_between([few], less)
    assert found.errors == pytest.approx(1.959964 * 0.05 / math.hypot(1.0 - 0.84, 0.99 - 0.95), rel=1e-6)
    assert found.worse
    back = change_between([less], few)
    assert (back.errors, back.worse) == (pytest.approx(found.errors), False)


def test_equal_values_count_once_and_are_not_tested() -> None:
    once, many = (find_changes([*[record(10.0)] * count, record(12.0)])[-1] for count in (1, 50))
    assert once == many
    findings = find_changes([record(value) for value in (10.0, 10.0, 10.0, 11.0, 10.0, 13.0)])
    assert [finding.allowed for finding in findings] == [1, 1, 1, LEVEL / 2, 1, LEVEL / 6]


def test_a_step_is_found_where_it_is_and_without_noise_every_value_is_one_but_not_another_rounding() -> None:
    assert kinds(10.0, 10.5, 9.8, 20.0, 20.4, 10.1) == ["first", "same", "same", "worse", "same", "better"]
    assert kinds(60.0, 60.0000001, 60.01, 60.01, stderr=0.0) == ["first", "same", "worse", "same"]


def test_other_data_or_another_protocol_begin_anew_and_say_why() -> None:
    gates = [record(10.0), record(30.0, identity={"data": "b" * 64, "protocol": "sliding"}), record(30.0)]
    findings = find_changes(gates)
    assert [finding.kind for finding in findings] == ["first", "first", "first"]
    assert (findings[0].why, "data" in findings[1].why) == ("", True)


def test_what_cannot_be_judged_says_why_and_leaves_the_level_alone() -> None:
    gates = [record(10.0), record(None), record(30.0, interval=None), record(10.0)]
    findings = find_changes(gates)
    assert [finding.kind for finding in findings] == ["first", "unknown", "unknown", "same"]
    assert all(finding.why for finding in findings[1:3])
    assert [change_between(gates[:1], gate) for gate in gates[1:3]] == [None] * 2
    assert change_between(gates[:1], record(10.0, interval=None)).errors == 0, "an equal value needs no noise"


def test_a_gate_with_a_reference_of_its_own_changes_where_its_verdict_does_whatever_its_value() -> None:
    verdicts = ("pass", "inconclusive", "pass", "fail", "inconclusive", "fail", "pass", "inconclusive", "pass")
    gates = [
        record(10.0 + 50 * (at % 2), verdict=verdict, blocking=at == 7, comparison=compared(0.1))
        for at, verdict in enumerate(verdicts)
    ]
    findings = find_changes(gates)
    kinds = "first same same worse same same better worse better"
    assert [each.kind for each in findings] == kinds.split()
    other = record(10.0, identity={"data": "b" * 64, "protocol": "sliding"}, comparison=compared(0.1))
    assert "data" in find_changes([gates[0], other])[1].why


def test_two_runs_share_five_percent_among_all_gates() -> None:
    changes = [change_between([record(10.0)], record(10.0 + shift)) for shift in (3.5, 3.5, 0.1)]
    found = [change for change in changes if change is not None]
    assert [change.p_value for change in found[:1]] == [pytest.approx(2 * norm.sf(3.5 / math.sqrt(2)), rel=1e-4)]
    assert significant(found) == [True, True, False]
    assert significant(found * 3) == [False] * 9
    assert significant([]) == []


def simulate(histories: int, runs: int, shared: float, step: float = 0.0, at: int = 0) -> list[list[int]]:
    """Where changes are found in histories of noise 1, of which a share of the variance is common to all runs."""
    draw = np.random.default_rng(20260131)
    common = math.sqrt(shared) * draw.standard_normal((histories, 1))
    own = math.sqrt(1 - shared) * draw.standard_normal((histories, runs))
    values = 100 + common + own
    if step:
        values[:, at:] += step
    found = [find_changes([record(float(value)) for value in row]) for row in values]
    return [[run for run, finding in enumerate(each) if finding.is_change] for each in found]


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_a_history_without_a_change_has_a_false_alarm_at_most_once_in_twenty(shared: float) -> None:
    histories = 200
    alarms = sum(map(bool, simulate(histories, 30, shared)))
    assert alarms <= histories * LEVEL + 2 * math.sqrt(histories * LEVEL * (1 - LEVEL))
    if not shared:
        assert alarms > histories / 100  # the level is used, not given away


def test_a_step_of_six_standard_errors_is_found_at_its_first_run_nine_times_of_ten() -> None:
    found = simulate(150, 30, 0.0, step=6.0, at=15)
    assert sum(each[:1] == [15] for each in found) >= 0.9 * 150
