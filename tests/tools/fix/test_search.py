"""The search for the cheapest set of groups, the split of the rows, and how often a proof passes by chance."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.judge.verdict import judge_bounds
from pytest_lmgate.metrics.divergence import DivergenceStatistics, kl
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.decoding import parse_marker
from pytest_lmgate.settings.gate_options import Signature, WindowProtocol
from pytest_lmgate.stats.means import ClusteredMean
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Scale
from pytest_lmgate.tools.fix.search import Limit, Trial, Tried, cheapest, search_sets, split

DOCUMENT = WindowProtocol("document")


@pytest.mark.parametrize("seed", range(10))
def test_the_knapsack_has_the_fewest_bytes_of_all_sets_within_a_slightly_smaller_allowance(seed: int):
    random = np.random.default_rng(seed)
    costs, extra = random.lognormal(0, 2, 9), random.integers(1, 50, 9)
    allowance = float(random.uniform(0.05, 0.9) * costs.sum())
    kept = cheapest(costs, extra, allowance)
    assert costs.sum() - costs[list(kept)].sum() <= allowance * (1 + 1e-12)

    def fewest(most: float) -> int:
        sets = itertools.chain.from_iterable(itertools.combinations(range(9), size) for size in range(10))
        fits = (some for some in sets if costs.sum() - costs[list(some)].sum() <= most)
        return min(int(extra[list(some)].sum()) for some in fits)

    assert fewest(allowance) <= extra[list(kept)].sum() <= fewest(allowance * (1 - 9 / 10_000))


def composed(costs: Any, extra: Any, limit: float, factor: float, joint: float = 0.0) -> Any:
    """Return a stand-in for a model: its KL is a factor of its remaining costs, and `joint` for pairs of neighbours."""

    def attempt(kept: Sequence[int]) -> Tried:
        left = [index for index in range(len(costs)) if index not in kept]
        pairs = sum(math.sqrt(costs[one] * costs[two]) for one, two in itertools.pairwise(left) if two == one + 1)
        value = factor * sum(costs[index] for index in left) + joint * pairs
        outcome: Any = "pass" if value <= limit else "fail"
        judged = Trial(outcome, ClusteredMean(value, 1, 2, 0.0, 1.0), limit, value, value / limit)
        return Tried(tuple(kept), int(sum(extra[index] for index in kept)), value, judged)

    return attempt


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(5))
def test_a_set_that_passes_is_near_the_fewest_bytes_whatever_factor_the_costs_are_off_by(factor: float, seed: int):
    random = np.random.default_rng(seed)
    costs, extra = random.lognormal(-6, 1.5, 40), random.integers(5, 10, 40)
    limit = 0.2 * factor * float(costs.sum())
    attempt = composed(costs, extra, limit, factor)
    tried = search_sets(costs, extra, attempt(()), attempt)
    best = min(each.extra for each in tried if each.judged.outcome == "pass")
    ideal = int(extra[list(cheapest(costs, extra, limit / factor))].sum())
    assert ideal <= best <= 1.1 * ideal
    assert len(tried) <= 18


def test_all_groups_are_kept_if_no_group_alone_costs_anything():
    costs, extra = np.zeros(3), np.full(3, 10)
    attempt = composed(costs, extra, 1.0, 1.0)
    first = attempt(())
    first = replace(first, judged=replace(first.judged, outcome="inconclusive"))
    tried = search_sets(costs, extra, first, attempt)
    assert tried[1].kept == (0, 1, 2)
    assert min(len(each.kept) for each in tried if each.judged.outcome == "pass") == 1


def test_the_halves_share_no_row_and_equal_rows_are_in_one_of_them():
    rows = tuple(f"row {index % 150} {'word ' * (index % 7)}" for index in range(400))
    ours, theirs = split(Corpus("d", rows), by_document=True, seed=0)
    assert not set(ours.rows) & set(theirs.rows)
    assert sorted(ours.rows + theirs.rows) == sorted(rows)
    sizes = [sum(map(len, each.rows)) for each in (ours, theirs)]
    assert max(sizes) < 1.2 * min(sizes)
    assert split(Corpus("d", rows), by_document=True, seed=0)[0].rows == ours.rows
    assert split(Corpus("d", rows), by_document=True, seed=1)[0].rows != ours.rows


def test_a_running_text_and_lines_of_one_are_cut_in_the_middle():
    text = "one two three four five six seven eight"
    (ours, theirs) = split(Corpus("d", (text,), is_one_text=True), by_document=False, seed=0)
    assert ours.rows[0] + theirs.rows[0] == text
    for rows, whole in ((("语言模型的困惑度" * 4,), 16), (("the first line is longer than the others", "two"), 40)):
        (ours, theirs) = split(Corpus("d", rows), by_document=False, seed=0)
        assert "".join(ours.rows + theirs.rows) == "".join(rows)
        assert len(ours.rows[0]) == whole
    lines = ("= Title =", "", "a line", "another line", "the last line")
    (ours, theirs) = split(Corpus("d", lines), by_document=False, seed=0)
    assert ours.rows + theirs.rows == lines


def statistics(rows: Sequence[int], kl: Any, nll_p: Any = None, nll_q: Any = None) -> DivergenceStatistics:
    sizes = np.asarray(rows, dtype=np.int64)
    zero = np.zeros(int(sizes.sum()))
    nlls = {"nll_p": zero if nll_p is None else nll_p, "nll_q": zero if nll_q is None else nll_q}
    windows = {"window_targets": sizes, "window_document": np.arange(len(sizes)), "row_targets": sizes}
    return DivergenceStatistics(kl=kl, dp=zero, same_top=zero, running_text=False, targets="t", **nlls, **windows)


@pytest.mark.parametrize("at", [0.5, 0.8, 0.95, 1.05, 1.3, 2.0])
def test_verdicts_are_those_of_the_gates_own_rule_where_rows_are_alike(at: float):
    random = np.random.default_rng(1)
    sizes = random.integers(20, 60, 60)
    values = np.repeat(random.normal(1, 0.2, 60), sizes) + random.normal(0, 0.1, int(sizes.sum()))
    p = np.repeat(random.normal(2, 0.3, 60), sizes)
    found = statistics(sizes, 0.01 * values, p, p + 0.01 * values)
    limit = Limit("kl", 0.01 / at, 0.95, DOCUMENT)
    assert limit.judge(found).outcome == judge_bounds(kl(found, signature=Signature([])), 0.01 / at, 0.95)[0]
    scale = Scale("lower", exponential=True, lowest=1)
    samples = [found.sample(each, scale) for each in (found.nll_q, found.nll_p)]
    for tolerance in (f"{1 / at:.4f}%", 0.01 / at * samples[1].value()):
        gate = parse_marker("no_regression", ("ppl", "q", "d", tolerance), {"against": "p", "protocol": "document"})
        own = compare(*samples, tolerance=gate.tolerance).decision  # type: ignore[union-attr]
        assert Limit.of(gate, "q", "d", "p").judge(found).outcome == own
    size = math.exp(float(found.nll_q.mean())) * (1 + (1 / at - 1) / 4)
    sample = found.sample(found.nll_q, scale)
    top = Limit.of(
        parse_marker("ppl_max", ("q", "d", size), {"protocol": "document", "confidence": 0.9}), "q", "d", "p"
    )
    assert top.judge(found).outcome == judge_bounds(Score(sample.value(), sample=sample, n=1), size, 0.9)[0]


@pytest.mark.parametrize("metric", ["kl", "ppl", "ppl ratio"])
def test_what_a_model_uses_of_the_limit_counts_from_the_floor_of_all_groups_kept(metric: str):
    random = np.random.default_rng(2)
    p = np.repeat(random.normal(2, 0.3, 60), 30)
    floor, found = (
        statistics([30] * 60, more * np.repeat(random.normal(1, 0.1, 60), 30), p, p + more) for more in (0.01, 0.05)
    )
    base = {"kl": floor.kl.mean(), "ppl": 0.01 + p.mean(), "ppl ratio": 0.01}[metric]
    for size, outcome in ((base + 0.1, "pass"), (base + 0.02, "fail")):
        judged = Limit(metric, size, 0.95, DOCUMENT).judge(found, floor)
        assert judged.used == pytest.approx((judged.upper - base) / (size - base))
        assert (judged.used <= 1) == (judged.outcome == "pass")
        if metric != "ppl":  # whose noise is that of the perplexity itself
            assert judged.outcome == outcome


def test_a_proof_at_the_limit_passes_by_chance_in_5_percent_at_most_though_rows_are_uneven_and_skewed():
    # 500 halves of 40 documents, sizes and divergences of which are log-normal, at a mean of exactly the limit.
    random, limit, passed = np.random.default_rng(5), Limit("kl", math.exp(1 / 2), 0.95, DOCUMENT), 0
    for _ in range(500):
        sizes = np.maximum(1, 20 * random.lognormal(0, 1, 40)).astype(np.int64)
        passed += limit.judge(statistics(sizes, np.repeat(random.lognormal(0, 1, 40), sizes))).outcome == "pass"
    assert passed <= 0.05 * 500


def test_a_tolerance_in_units_of_the_perplexity_passes_by_chance_in_5_percent_at_most():
    # Hard rows lose more, so a half with easy rows has both a smaller loss and a perplexity that allows more.
    random, passed = np.random.default_rng(6), 0
    p = random.normal(2, 0.5, 100_000)
    q = p + 0.5 * (p - 1) + random.normal(0, 0.05, len(p))
    limit = Limit("ppl ratio", None, 0.95, DOCUMENT, tolerance=math.exp(q.mean()) - math.exp(p.mean()))
    for _ in range(500):
        rows, sizes = random.integers(0, len(p), 40), random.integers(20, 60, 40)
        of_rows = (np.repeat(each[rows], sizes) for each in (p, q))
        passed += limit.judge(statistics(sizes, np.zeros(int(sizes.sum())), *of_rows)).outcome == "pass"
    assert passed <= 0.05 * 500


@pytest.mark.parametrize(
    ("marker", "arguments", "options"),
    [
        ("kl_max", ("q", "p", "d", 0.1), {"statistic": "p99"}),
        ("kl_max", ("q", "p", "d", 0.1), {"estimator": "sampled"}),
        ("kl_max", ("q", "other", "d", 0.1), {}),
        ("ppl_max", ("other", "d", 10.0), {}),
        ("ppl_max", ("q", "d", 10.0), {"unit": "word"}),
        ("no_regression", ("ppl", "q", "d", "1%"), {}),
        ("no_regression", ("bpb", "q", "d", "1%"), {"against": "p"}),
    ],
)
def test_other_gates_are_refused(marker: str, arguments: tuple[Any, ...], options: dict[str, Any]):
    with pytest.raises(ConfigError, match="expected a"):
        Limit.of(parse_marker(marker, arguments, options), "q", "d", "p")
