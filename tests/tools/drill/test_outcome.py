"""What a drill says of its findings, and the cheapest set of checks that finds all: by brute force on small tables."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.tools.drill.faults import known_faults
from pytest_lmgate.tools.drill.outcome import MOST_EXACT, Report, redundant, smallest_cover
from pytest_lmgate.tools.drill.plan import DrilledGate, DrillFinding

FAULTS = known_faults()
SKIP, NOISE, BASE = (FAULTS[name] for name in ("skip", "noise", "base"))


def verdict(value: float, outcome: Any = "pass", **more: Any) -> Verdict:
    blank = Verdict.unmeasured(id="g", test="g", marker="ppl_max", metric="ppl", model="m", dataset="d", limit=12.0)
    return replace(blank, verdict=outcome, value=value, direction="lower", **more)


def guard(name: str, address: str = "a", **more: Any) -> DrilledGate:
    unused: Any = None
    return DrilledGate(name, unused, verdict(10.0, **more), frozenset([address]))


def test_the_report_names_what_is_missed_what_adds_nothing_and_what_is_enough() -> None:
    cheap, dear = guard("cheap"), guard("dear", "b")
    findings = [
        DrillFinding(cheap, SKIP, {5: verdict(90.0, "fail"), 1: verdict(13.0, "fail")}),
        DrillFinding(dear, SKIP, {5: verdict(0.0, "error")}),
        DrillFinding(cheap, NOISE, {7: verdict(10.0)}),
        DrillFinding(dear, NOISE, {7: verdict(10.5, "inconclusive")}),
        *(DrillFinding(each, BASE, reason="it has no LoRA adapter") for each in (cheap, dear)),
    ]
    report = Report([cheap, dear], findings, {"a": 1.0, "b": 9.0}, [FAULTS["bias"]])
    assert report.answer == "1 of 2 faults caught; no gate catches noise"
    assert report.picture() == [
        (NOISE, [("missed", "no effect"), ("open", "inconclusive")]),
        (SKIP, [("early", "6% of the blocks"), ("late", "100% of the blocks (error)")]),
    ]
    assert report.sights == [
        ("skip", "1", "6% of the blocks", "+3", "+2"),
        ("skip", "2", "100% of the blocks", "-10", "+2"),
    ]
    assert report.sentences == [
        "These catch the same in 1 s: cheap.",
        "dear adds nothing for the faults that were tried: cheap catches the same or more.",
        "No time for bias.",
        "Not tried: base, because it has no LoRA adapter.",
    ]


def test_a_dearer_gate_that_catches_a_weaker_fault_adds_something() -> None:
    late, early = guard("late"), guard("early", "b")
    findings = [
        DrillFinding(late, SKIP, {5: verdict(90.0, "fail")}),
        DrillFinding(early, SKIP, {5: verdict(90.0, "fail"), 1: verdict(13.0, "fail")}),
    ]
    report = Report([late, early], findings, {"a": 1.0, "b": 9.0})
    assert report.sentences == ["These catch the same in 9 s: early."]


def test_a_gate_that_lets_more_pass_than_its_verdict_promised_is_named() -> None:
    unbroken = Comparison("pass", 10.0, 10.0, 0.0, 0.0, Tolerance(0.02, relative=True), 0.95, 100, 50, detectable=0.01)
    passed = replace(unbroken, degradation=0.05, detectable=0.2)
    gate = guard("gate", metric="bleu", comparison=unbroken)
    finding = DrillFinding(gate, SKIP, {5: verdict(10.5, metric="bleu", comparison=passed)})
    said = Report([gate], [finding], {}).sentences
    assert "gate sees less than it promised: from +3% on, but skip passed with +5%." in said
    unknown = guard("gate", metric="bleu", comparison=replace(unbroken, detectable=None))
    finding = DrillFinding(unknown, SKIP, {5: verdict(10.5, "fail", metric="bleu", comparison=passed)})
    assert Report([unknown], [finding], {}).sights == [("skip", "1", "100% of the blocks", "+5%", "+22%")]


tables = some.dictionaries(
    some.sampled_from("abcdef"), some.frozensets(some.integers(0, 5).map(str)), min_size=1, max_size=6
)


def weigh(weights: dict[str, int]):
    return lambda names: float(sum(weights[name] for name in names))


@given(tables, some.lists(some.integers(1, 5), min_size=6, max_size=6))
def test_no_cheaper_checks_find_all(found: dict[str, frozenset[str]], weights: list[int]) -> None:
    cost = weigh(dict(zip("abcdef", weights, strict=True)))
    chosen, is_exact = smallest_cover(found, cost)
    wanted = frozenset().union(*found.values())
    assert is_exact
    assert frozenset().union(*(found[name] for name in chosen)) == wanted
    for size in range(len(found) + 1):
        for other in itertools.combinations(found, size):
            if frozenset().union(*(found[name] for name in other)) == wanted:
                assert cost(chosen) <= cost(other)


def test_many_checks_are_covered_greedily_by_the_cheapest_for_each_new_finding() -> None:
    found = {f"one {index}": [str(index)] for index in range(MOST_EXACT)} | {"all": [*map(str, range(MOST_EXACT))]}
    cheap, dear = (weigh({**dict.fromkeys(found, 1), "all": price}) for price in (11, 13))
    assert smallest_cover(found, cheap) == (["all"], False)
    assert sorted(smallest_cover(found, dear)[0]) == sorted(set(found) - {"all"})


def test_checks_that_share_a_measurement_cost_it_once() -> None:
    found = {"ppl": ["a"], "kl": ["b"], "texts": ["a", "b"]}
    shared = {"ppl": "scores", "kl": "scores", "texts": "texts"}
    seconds = {"scores": 3.0, "texts": 4.0}
    chosen, _ = smallest_cover(found, lambda names: sum(seconds[each] for each in {shared[name] for name in names}))
    assert chosen == ["ppl", "kl"]
    assert smallest_cover({"ppl": []}, weigh({"ppl": 1})) == ([], True), "no findings need no check"


def test_a_check_is_redundant_if_a_cheaper_one_finds_all_that_it_finds() -> None:
    found = {"dear": ["a"], "cheap": ["a", "b"], "same": ["a", "b"], "other": ["c"], "blind": []}
    cost = weigh({"dear": 9, "cheap": 1, "same": 1, "other": 9, "blind": 1})
    assert redundant(found, cost) == {"dear": "cheap", "same": "cheap", "blind": ""}
    dear = weigh({**dict.fromkeys(found, 1), "cheap": 10, "same": 10})
    assert redundant(found, dear) == {"same": "cheap", "blind": ""}
