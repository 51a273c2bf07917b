"""Which drop of right rows a gate sees: the table of docs/howto/tolerance.md.

    python benchmarks/smallest_changes.py

Some rows change their side by chance, half of them each way: with the share of such rows, d, a row is gained with
probability d / 2 and lost with d / 2 and the true drop. For rows and tolerance a cell has the smallest drop, in points,
that ``no_regression`` calls FAIL in 80% of all cases; a star where it calls PASS in fewer than 80% although there is no
drop. The probabilities are exact: of each number of gained rows, the package's own comparison says from how many lost
rows on it fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.stats import binom
from sides import compare_outcomes

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Decision
from pytest_lmgate.stats.proportions import Outcomes

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
    found = compare_outcomes(
        Outcomes(after, index), Outcomes(before, index), tolerance=Tolerance(tolerance, relative=False)
    )
    return found.decision


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    arguments = parser.parse_args()
    print("| rows | tolerance |" + "".join(f" {share:.0%} change |" for share in SHARES))
    print("|--:|--:|" + "--:|" * len(SHARES))
    for rows in arguments.rows:
        for tolerance in TOLERANCES:
            cells = " | ".join(cell(rows, tolerance, share) for share in SHARES)
            points = f"{100 * tolerance:g} point{'s' * (tolerance != 0.01)}"
            print(f"| {rows:,} | {points} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
