"""Compare two samples: closed form for means and their exponentials, the paired bootstrap for all other metrics.

The bootstrap (definitions: 1,000 resamples of rows or clusters, seed 12345, the same rows of both systems) gives
percentile bounds. With C clusters percentiles are too narrow by ``sqrt((C - 1) / C)``, and take the normal's quantile
where Student's belongs; so they are cut at ``Phi(-sqrt(C / (C - 1)) t_{C-1})`` in place of 5 % (the expanded percentile
interval of Hesterberg 2015, The American Statistician 69(4), section 5.3). A thousand resamples have no such percentile
at a high level, and those of a few clusters lie within the extremes of these; so bounds are no narrower than those of
Student's t with the resamples' standard error, ``d -+ t_{C-1} sqrt(C / (C - 1)) sd``.
"""

from __future__ import annotations

__all__ = ["compare", "differences"]

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.errors import ComparisonError, MetricInputError
from pytest_lmgate.gates.comparison import POWER, Comparison, compare_means, decide, needed
from pytest_lmgate.metrics.sample import Floats, Sample
from pytest_lmgate.metrics.student import normal_cdf, normal_quantile, t_cdf, t_quantile
from pytest_lmgate.metrics.texts.paired import paired_bootstrap
from pytest_lmgate.metrics.texts.text_metric import TextMetric

_PARTS = {
    "data": "the data differs: other rows, prompts, references or clusters",
    "protocol": "the protocol differs",
    "metric": "the metric differs, by its signature",
    "reference": "the reference of the divergence differs: another model, or loaded otherwise",
    "targets": "the tokens differ: the text was tokenized otherwise, and likelihoods per token cannot be compared; "
    "compare bits per byte (metric 'bpb' with protocol='document', which pairs by rows whatever the tokens are)",
}


def compare(candidate: Sample, reference: Sample, *, tolerance: Tolerance, confidence: float = 0.95) -> Comparison:
    """Judge whether the candidate is worse than the reference by more than the tolerance.

    Args:
        candidate: Sample of the candidate's score.
        reference: Of the reference's, on the same targets or rows.
        tolerance: Largest degradation let pass.
        confidence: One-sided level of the bounds.

    Raises:
        ComparisonError: The two are not of the same data, targets and protocol; the message says in what they differ.
        MetricInputError: A value or a sum is not finite, or a change relative to a value that is not above 0 was asked
            for.
    """
    if found := differences(candidate.identity, reference.identity):
        raise ComparisonError("; ".join(found))
    if len(candidate.counts) != len(reference.counts) or (candidate.counts != reference.counts).any():
        raise ComparisonError("expected the same clusters of targets or rows on both sides, got others")
    if candidate.scale is not None:
        return compare_means(
            candidate.sums[:, 0],
            reference.sums[:, 0],
            candidate.counts,
            scale=candidate.scale,
            tolerance=tolerance,
            confidence=confidence,
        )
    assert candidate.metric is not None
    return _bootstrapped(candidate.metric, candidate, reference, tolerance, confidence)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return in words which parts of two samples' identities differ."""
    found = []
    for part in ours.keys() | theirs.keys():
        here, there = ours.get(part, "nothing"), theirs.get(part, "nothing")
        if here == there:
            continue
        words = _PARTS.get(part, f"{part} differs")
        # Of other texts the tokens are others too, which says nothing of how they were tokenized.
        if part != "targets" or ours.get("data") == theirs.get("data"):
            found.append(f"{words} ({here} here, {there} there)" if part in ("protocol", "metric") else words)
    return sorted(found)


def _bootstrapped(
    metric: TextMetric, candidate: Sample, reference: Sample, tolerance: Tolerance, confidence: float
) -> Comparison:
    for name, sample in (("candidate", candidate), ("reference", reference)):
        if bad := int((~np.isfinite(sample.sums)).sum()):
            raise MetricInputError(f"{name}: expected finite statistics, got {bad} NaN or infinite")
    values = candidate.value(), reference.value()
    if tolerance.relative and values[1] <= 0:
        raise MetricInputError(
            f"a change in percent needs a reference above 0, got {values[1]:g}: use a tolerance in the metric's unit"
        )
    sign = 1 if metric.direction == "lower" else -1
    unit = values[1] if tolerance.relative else 1.0
    change = (values[0] - values[1]) / unit
    degradation = 0.0 + sign * change
    clusters, n = len(candidate.counts), int(candidate.counts.sum())
    found = Comparison(
        decision="inconclusive",
        candidate=values[0],
        reference=values[1],
        change=change,
        degradation=degradation,
        tolerance=tolerance,
        confidence=confidence,
        n=n,
        clusters=clusters,
    )
    if clusters < 2:
        if bool((candidate.sums == reference.sums).all()):
            return replace(found, decision="pass", reason="1 cluster, on which the two are identical")
        return replace(found, reason="1 cluster: noise is judged between clusters and needs two at least")
    resampled = paired_bootstrap(metric, reference.sums, candidate.sums)
    # Of a relative change each resample has a reference of its own: the change is a ratio, and so is its noise.
    changes = resampled.differences
    drawn = np.sort(0.0 + sign * (_ratios(changes, resampled.baselines) if tolerance.relative else changes))
    noise = _Resamples(drawn, degradation, clusters)
    lower, upper = noise.bounds(confidence)
    finite, df, stderr = noise.is_finite, noise.df, noise.stderr
    p_pass, p_fail = noise.p_values(tolerance.size)
    visible = (t_quantile(confidence, df) + t_quantile(POWER, df)) * stderr
    decision = decide(lower, upper, tolerance)
    is_open = decision == "inconclusive" and finite
    return replace(
        found,
        decision=decision,
        lower=lower,
        upper=upper,
        df=df,
        p_pass=p_pass,
        p_fail=p_fail,
        p_value=resampled.p_value if stderr else None,
        detectable=visible if finite else None,
        needed=needed(n, visible, abs(degradation - tolerance.size)) if is_open else None,
    )


@dataclass(frozen=True)
class _Resamples:
    """Bounds and p-values of a degradation that was resampled; a bound is at T just where its p-value is the level.

    Attributes:
        ordered: The degradation in each resample, ascending, shape ``[resamples]``; may be infinite.
        measured: The degradation itself.
        clusters: C, what was resampled.
    """

    ordered: Floats
    measured: float
    clusters: int

    @property
    def df(self) -> float:
        """Degrees of freedom."""
        return self.clusters - 1.0

    @property
    def is_finite(self) -> bool:
        """Whether every resample has a degradation."""
        return bool(np.isfinite(self.ordered).all())

    @property
    def expansion(self) -> float:
        """By how much percentiles of C clusters are too narrow."""
        return math.sqrt(self.clusters / (self.clusters - 1))

    @property
    def stderr(self) -> float:
        """Standard error, without that narrowness."""
        return float(self.ordered.std(ddof=1)) * self.expansion if self.is_finite else math.inf

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Lower and upper bound, each at `confidence`: expanded percentiles, and no narrower than Student's t."""
        t = t_quantile(confidence, self.df)
        resamples = len(self.ordered)
        cut = max(0, math.floor(normal_cdf(-self.expansion * t) * (resamples + 1)) - 1)
        lower, upper = float(self.ordered[cut]), float(self.ordered[resamples - 1 - cut])
        if not self.is_finite:
            return lower, upper
        return min(lower, self.measured - t * self.stderr), max(upper, self.measured + t * self.stderr)

    def p_values(self, size: float) -> tuple[float, float]:
        """``(p_pass, p_fail)``: of a degradation above `size`, and of one of at most that."""
        if self.stderr == 0:
            return float(self.measured > size), float(self.measured <= size)
        beyond = (self.measured - size) / self.stderr if self.is_finite else math.nan
        above, below = int((self.ordered > size).sum()), int((self.ordered <= size).sum())
        return self._p_value(above, beyond), self._p_value(below, -beyond)

    def _p_value(self, hits: int, t: float) -> float:
        """The larger of the two; where no resample is a hit, they tell no more than that p is small: Student's."""
        student = t_cdf(t, self.df)
        if hits == 0 and self.is_finite:
            return student
        share = (hits + 1) / (len(self.ordered) + 1)
        percentile = t_cdf(normal_quantile(share) / self.expansion, self.df)
        return max(student, percentile) if self.is_finite else percentile


def _ratios(differences: Floats, baselines: Floats) -> Floats:
    """Divide, with 0 for no change of nothing and infinity for any other: a resample may hold nothing right."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: Floats = np.where(differences == 0, 0.0, differences / baselines)
    return ratios
