"""What the rules of other CI systems let through, and ours: the figures of docs/howto/from_other_ci.md.

    python benchmarks/other_rules.py

The reference has 80% of the rows right, and its measured value is that. Of the candidate 4% of the rows change by
chance, half of them each way, and a true drop comes on top, as in smallest_changes.py. All probabilities are exact.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom, norm
from smallest_changes import probability

RIGHT, SHARE = 0.8, 0.04


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


def main() -> None:
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
