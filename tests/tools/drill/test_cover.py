"""The cheapest set of checks that finds all: by brute force on small tables, and what a greedy one promises."""

import itertools

from hypothesis import given
from hypothesis import strategies as some

from pytest_lmgate.tools.drill.outcome import MOST_EXACT, redundant, smallest_cover

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
