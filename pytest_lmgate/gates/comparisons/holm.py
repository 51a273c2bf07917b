"""Many gates at once: Holm's step-down correction, so that a suite of gates is wrong no more often than a single one.

Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2), 65-70. It
needs no independence: gates that share a model or a text are as welcome as others.
"""

from __future__ import annotations

__all__ = ["correct_family", "holm"]

from collections.abc import Sequence
from dataclasses import replace

from pytest_lmgate.gates.comparisons.comparison import Comparison, Decision


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: a hypothesis is rejected at level a if its own is at most a.

    The k-th smallest of m becomes ``max_{j <= k} min(1, (m - j + 1) p_(j))``.

    Raises:
        ValueError: A p-value is NaN or outside 0 to 1.
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"expected p-values from 0 to 1, got {wrong[0]!r}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def correct_family(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return a family of comparisons with Holm's p-values and the verdicts by them.

    Each kind of wrong verdict then has one chance in the whole family.

    A comparison tests two hypotheses: "at least the tolerance", whose rejection is PASS, and "at most the tolerance",
    whose rejection is FAIL. Each kind is a family of its own. So the probability that any gate passes though its model
    is worse than the tolerance is at most ``1 - confidence``, and so is the probability that any gate has the verdict
    FAIL though its model is not. The confidence is the highest of the members', so that a correction only ever turns
    PASS and FAIL into INCONCLUSIVE. A comparison without an interval tests nothing: it keeps its verdict and does not
    count.

    Args:
        comparisons: The family: every no_regression gate of a session.
    """
    p_pass = iter(holm([one.p_pass for one in comparisons if one.p_pass is not None]))
    p_fail = iter(holm([one.p_fail for one in comparisons if one.p_fail is not None]))
    confidence = max((one.confidence for one in comparisons if one.p_pass is not None), default=0.0)
    level = round(1 - confidence, 12)  # 0.05, where 1 - 0.95 is a little more
    corrected = []
    for one in comparisons:
        if one.p_pass is not None:
            passes, fails = next(p_pass), next(p_fail)
            decision: Decision = "pass" if passes <= level else "fail" if fails <= level else "inconclusive"
            one = replace(one, decision=decision, p_pass=passes, p_fail=fails)
        corrected.append(one)
    return corrected
