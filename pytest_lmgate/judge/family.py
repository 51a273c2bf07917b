"""The verdicts of a session together: Holm's correction of its no_regression gates, and what to say of it."""

from __future__ import annotations

__all__ = ["corrected"]

from collections.abc import Collection, Sequence
from dataclasses import replace

from pytest_lmgate.gates.comparisons.holm import correct_family
from pytest_lmgate.gates.verdict import Verdict


def corrected(
    verdicts: Sequence[Verdict], *, strict: bool, expected_to_fail: Collection[str] = ()
) -> tuple[list[Verdict], list[str], list[str]]:
    """Correct the verdicts of the no_regression gates for how many they are.

    Args:
        verdicts: Of all gates of the session.
        strict: Whether an inconclusive gate fails the session.
        expected_to_fail: Ids of gates that do not fail the session: those of xfail tests.

    Returns:
        The verdicts, a line about them, and what fails the session although its test passed: in strict mode a gate that
        is inconclusive only by the correction.
    """
    comparisons = [verdict.comparison for verdict in verdicts if verdict.comparison is not None]
    family = iter(correct_family(comparisons))
    after, problems = [], []
    for verdict in verdicts:
        if verdict.comparison is None:
            after.append(verdict)
            continue
        decision = next(family).decision
        turned_to_failure = strict and decision == "inconclusive" and not verdict.failed
        # A gate that failed the build still does: it was measured beyond the tolerance.
        after.append(replace(verdict, verdict=decision, blocking=verdict.failed or turned_to_failure))
        if turned_to_failure and verdict.id not in expected_to_fail:
            problems.append(
                f"{verdict.id}: inconclusive after Holm's correction, which --lmgate-strict does not let pass"
            )
    tested = sum(comparison.p_pass is not None for comparison in comparisons)
    turned = sum(verdict.is_corrected for verdict in after)
    note = f"Holm: verdicts hold for {tested} no_regression gates together; the correction made {turned} inconclusive"
    return after, [note] * bool(tested), problems
