"""`Change`: what a comparison found, in plain values that travel between processes with their verdict."""

from __future__ import annotations

__all__ = ["Change"]

from dataclasses import dataclass

from pytest_lmgate.gates.comparison import Comparison, Decision


@dataclass(frozen=True)
class Change:
    """A candidate against a reference; the attributes are those of `Comparison`, where they have its names.

    Attributes:
        against: The reference in words, as in ``model 'fp16'`` or ``baseline of 2026-01-31``.
        decision: Before a correction for many gates.
        reference: The reference's value.
        degradation: Larger is worse; a fraction where `relative`.
        tolerance: Of the gate, as in ``1%``.
        size: The tolerance as a number.
        relative: Whether degradation, bounds and detectable change are fractions of the reference's value.
        confidence: One-sided level of the bounds.
        clusters: What the noise was judged between.
        lower: One-sided lower bound of the degradation, or None.
        upper: One-sided upper bound, likewise.
        p_pass: One-sided p-value of "the degradation is at least the tolerance".
        p_fail: Likewise of "at most".
        p_value: sacrebleu's two-sided one, of a bootstrap.
        detectable: Smallest degradation told from none four times in five.
        needed: Where inconclusive, targets or rows that would decide.
        reason: Why there is no interval.
        bounds: The rule that made the bound which decides, as in ``tango`` or ``hall``; None without an interval.
        clustered_by: What a cluster is: ``rows``, or ``blocks`` of a text without rows.
        note: What to know of the rule.
        notes: What else differs between then and now, such as hardware and versions.
        corrected: Whether the verdict is that of a family of gates, by Holm's correction.
    """

    against: str
    decision: Decision
    reference: float
    degradation: float
    tolerance: str
    size: float
    relative: bool
    confidence: float
    clusters: int
    lower: float | None = None
    upper: float | None = None
    p_pass: float | None = None
    p_fail: float | None = None
    p_value: float | None = None
    detectable: float | None = None
    needed: int | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    corrected: bool = False
    bounds: str | None = None
    clustered_by: str = "rows"
    note: str = ""

    @classmethod
    def of(cls, found: Comparison, *, against: str, notes: tuple[str, ...] = (), clustered_by: str = "rows") -> Change:
        """Make it of a comparison."""
        same = (
            "decision", "reference", "degradation", "confidence", "clusters", "lower", "upper", "p_pass", "p_fail",
            "p_value", "detectable", "needed", "reason", "bounds", "note",
        )  # fmt: skip
        return cls(
            against=against,
            tolerance=str(found.tolerance),
            size=found.tolerance.size,
            relative=found.tolerance.relative,
            notes=notes,
            clustered_by=clustered_by,
            **{name: getattr(found, name) for name in same},
        )
