"""What the rules of other CI systems let through, and ours, and which drop a gate sees. All probabilities are exact.

    python benchmarks/other_rules.py            # the figures of docs/howto/from_other_ci.md
    python benchmarks/other_rules.py --table    # the table of docs/howto/tolerance.md

Some rows change their side by chance, half of them each way: with the share of such rows, d, a row is gained with
probability d / 2 and lost with d / 2 and the true drop. Of each number of gained rows, the package's own comparison
says from how many lost rows on it fails. The rules of others are asked with 4% of such rows, and a reference that has
80% of the rows right. A cell of the table has the smallest drop, in points, that ``no_regression`` calls FAIL in 80% of
all cases; a star where it calls PASS in fewer than 80% although there is no drop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from scipy.stats import binom, norm

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Decision
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Outcomes, Sample, Scale

RIGHT, SHARE = 0.8, 0.04
ROWS = (200, 500, 1319, 5000, 14042)
TOLERANCES = (0.01, 0.02, 0.05)
SHARES = (0.01, 0.04, 0.08)
POWER = 0.8
# What is less likely counts as impossible.
_NEVER = 1e-6


@cache
def decision(rows: int, tolerance: float, gained: int, lost: int) -> Decision:
    """Return the verdict of the package where so many of the rows were gained and lost."""
    index = np.arange(rows)
    before, after = index >= gained, (index < gained) | (index >= gained + lost)
    scale = Scale("higher", lowest=0, highest=1, of_rows=True)
    sides = (
        Sample(right.astype(np.float64)[:, None], np.ones(rows, int), scale, outcomes=Outcomes(right, index))
        for right in (after, before)
    )
    return compare(*sides, tolerance=Tolerance(tolerance, relative=False)).decision


@cache
def first_lost(rows: int, tolerance: float, gained: int, decided: tuple[Decision, ...]) -> int:
    """Return the fewest lost rows with a verdict of these, which more lost rows have too."""
    least, most = 0, rows - gained + 1
    while least < most:
        middle = (least + most) // 2
        if middle <= rows - gained and decision(rows, tolerance, gained, middle) not in decided:
            least = middle + 1
        else:
            most = middle
    return least


def probability(rows: int, tolerance: float, share: float, drop: float, decided: tuple[Decision, ...]) -> float:
    """Return the probability of a verdict of these."""
    up, down = share / 2, share / 2 + drop
    first, last = binom.ppf([_NEVER, 1 - _NEVER], rows, up).astype(int)
    gained = np.arange(first, last + 1)
    least = np.array([first_lost(rows, tolerance, each, decided) for each in gained.tolist()])
    lost = binom.sf(least - 1, rows - gained, down / (1 - up))
    return float((binom.pmf(gained, rows, up) * lost).sum())


def smallest(is_seen: Callable[[float], bool], most: float) -> float:
    """Return the smallest drop that is seen, which larger ones are too."""
    least = 0.0
    while most - least > 1e-5:
        middle = (least + most) / 2
        least, most = (least, middle) if is_seen(middle) else (middle, most)
    return most


def cell(rows: int, tolerance: float, share: float) -> str:
    found = smallest(lambda drop: probability(rows, tolerance, share, drop, ("fail",)) >= POWER, 1 - share)
    passes = 1 - probability(rows, tolerance, share, 0.0, ("inconclusive", "fail"))
    return f"{100 * found:.1f}{'' if passes >= POWER else '*'}"


def measured_within(rows: int, drop: float, allowed: float) -> float:
    """Return the probability that at most so many points of rows are lost, on the rows of the reference."""
    up, down = SHARE / 2, SHARE / 2 + drop
    gained = np.arange(rows + 1)
    most = np.floor(allowed * rows + gained + 1e-9)
    return float((binom.pmf(gained, rows, up) * binom.cdf(most, rows - gained, down / (1 - up))).sum())


def above_floor(rows: int, share: float, floor: float) -> float:
    """Return the probability that so many new rows are right that the floor is reached."""
    return float(binom.sf(math.ceil(floor * rows - 1e-9) - 1, rows, share))


def ours(rows: int, drop: float, tolerance: float) -> str:
    passes = 1 - probability(rows, tolerance, SHARE, drop, ("inconclusive", "fail"))
    fails = probability(rows, tolerance, SHARE, drop, ("fail",))
    build = measured_within(rows, drop, tolerance)
    return (
        f"tolerance {100 * tolerance:g}: PASS {passes:.1%}, FAIL {fails:.1%}, the build passes {build:.1%}, "
        f"of an unchanged model {measured_within(rows, 0, tolerance):.1%}"
    )


def table(all_rows: Sequence[int]) -> None:
    """Print the smallest drop that is seen, by rows, tolerance and share of rows that change."""
    print("| rows | tolerance |" + "".join(f" {share:.0%} change |" for share in SHARES))
    print("|--:|--:|" + "--:|" * len(SHARES))
    for rows in all_rows:
        for tolerance in TOLERANCES:
            cells = " | ".join(cell(rows, tolerance, share) for share in SHARES)
            points = f"{100 * tolerance:g} point{'s' * (tolerance != 0.01)}"
            print(f"| {rows:,} | {points} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="the table of docs/howto/tolerance.md instead")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of the table")
    given = parser.parse_args()
    if given.table:
        table(given.rows)
        return

    def shown(what: str, drop: float, passes: float, of_ours: str) -> None:
        print(f"{what}, drop of {100 * drop:g}: passes {passes:.1%}\n    ours: {of_ours}")

    shown("vLLM, 1,319 rows, floor less 8", 0.06, measured_within(1319, 0.06, 0.08), ours(1319, 0.06, 0.02))
    allowed = RIGHT * (1 - 0.945)  # 94.5% is rounded to 95%
    shown("llm-compressor, 1,000 rows, 95%", 0.04, measured_within(1000, 0.04, allowed), ours(1000, 0.04, 0.02))
    for name, rows, alpha, sigma, drop in (("MMLU", 4096, 0.05, 50, 0.015), ("GSM8K", 1319, 0.05, 50, 0.03)):
        threshold = -float(norm.ppf(alpha)) * sigma / 100 * math.sqrt(2 / rows)
        what = f"TensorRT-LLM, {name}, {rows:,} rows, threshold {100 * threshold:.2f} points"
        shown(what, drop, measured_within(rows, drop, threshold), ours(rows, drop, drop / 2))
    print(f"TensorRT-LLM, ROUGE, 512 rows: threshold {-norm.ppf(0.002) * 11.06 * math.sqrt(2 / 512):.2f} points")
    floor = RIGHT - 0.05
    print(f"SGLang, 200 rows, floor less 5, no drop: passes {above_floor(200, RIGHT, floor):.1%}")
    shown("SGLang, 200 rows, floor less 5", 0.05, above_floor(200, RIGHT - 0.05, floor), ours(200, 0.05, 0.05))
    print(f"    ours with all 1,319 rows: {ours(1319, 0.05, 0.02)}")


if __name__ == "__main__":
    main()
