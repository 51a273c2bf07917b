"""Compare two models by means over targets or rows, or by their exponentials: perplexity, bits per byte, KL, ROUGE.

The closed form: the noise is that of `pytest_lmgate.metrics.noise.means`, of the differences between the two models on
the same targets.
"""

from __future__ import annotations

__all__ = ["compare_means"]

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.gates.comparisons.comparison import Comparison, Tested, blank_comparison, judged
from pytest_lmgate.metrics.noise.means import ClusteredMean, noisy_mean, student_or_hall, tail
from pytest_lmgate.metrics.noise.student import t_quantile
from pytest_lmgate.metrics.sample import Scale


def compare_means(
    candidate: Floats,
    reference: Floats,
    counts: Ints,
    *,
    scale: Scale,
    tolerance: Tolerance,
    confidence: float = 0.95,
    rows: bool = True,
) -> Comparison:
    """Judge whether the candidate is worse than the reference by more than the tolerance.

    A relative change of perplexity is ``exp(d) - 1``, ``d = sum_c (s_c - r_c) / N``, with the bounds of d carried over:
    on each side the wider of Student's ``d +- t se`` and Hall's. The absolute change of a mean is ``d`` itself. The
    other two, a relative change of a mean and an absolute change of a perplexity, depend on the reference's own level
    too: their noise is that of the linearized difference (delta method).

    With too few clusters there is no interval: INCONCLUSIVE.

    Args:
        candidate: ``s_c``, sum over the targets of each cluster, as of NLL in nats; shape ``[clusters]``.
        reference: ``r_c``, on the same targets in the same clusters.
        counts: ``n_c``, targets of each cluster; clusters without any are left out.
        scale: Of the metric.
        tolerance: Largest degradation let pass.
        confidence: One-sided level, above 0.5 and below 1.
        rows: Whether the clusters are rows; else they are blocks of a text, in its order.

    Raises:
        MetricInputError: The clusters are not the same, there is no target, a sum or a value is NaN or infinite, or a
            change relative to a value that is not above 0 was asked for.
        ConfigError: `confidence` is not a level.
    """
    if not 0.5 < confidence < 1:
        raise ConfigError.of("confidence", f"expected a one-sided level above 0.5 and below 1, got {confidence!r}")
    _require_pairs(candidate, reference, counts)
    means = [float(sums.sum()) / int(counts.sum()) for sums in (candidate, reference)]
    values = scale.value(means[0]), scale.value(means[1])
    if not all(math.isfinite(value) for value in values):
        raise MetricInputError(
            f"a change needs finite values, got {values[0]:g} (candidate) and {values[1]:g} (reference): "
            "compare bits per byte (metric 'bpb'), which do not overflow"
        )

    def noise_of(sums: Floats) -> ClusteredMean:
        return noisy_mean(sums, counts, rows=rows)

    tested, noise = _tested(candidate, reference, values, scale, tolerance, noise_of)
    # As it was computed for the bounds, which is exact where the two values differ by little.
    degradation = tested.outward(tested.measured)
    found = replace(
        blank_comparison(
            values,
            scale.direction,
            tolerance=tolerance,
            confidence=confidence,
            n=noise.n,
            clusters=noise.clusters,
            clustered_by="rows" if rows else "blocks",
        ),
        change=degradation if scale.direction == "lower" else 0.0 - degradation,
        degradation=degradation,
    )
    if noise.stderr is None or noise.df is None:
        return found
    bounds = student_or_hall(tested.measured, noise.stderr, t_quantile(confidence, noise.df), noise.skewness)
    beyond = tested.measured - tested.limit
    if noise.stderr == 0:
        p_values = (0.0, 1.0) if beyond <= 0 else (1.0, 0.0)
    else:
        x = beyond / noise.stderr
        p_values = tail(x, noise.df, noise.skewness), tail(-x, noise.df, -noise.skewness)
    return judged(found, tested, bounds, noise.df, p_values)


def _tested(
    candidate: Floats,
    reference: Floats,
    values: tuple[float, float],
    scale: Scale,
    tolerance: Tolerance,
    noise_of: Callable[[Floats], ClusteredMean],
) -> tuple[Tested, ClusteredMean]:
    if scale.exponential and tolerance.relative:
        noise = noise_of(scale.factor * (candidate - reference))
        return Tested(noise.mean, math.log1p(tolerance.size), _expm1), noise
    sign = scale.factor if scale.direction == "lower" else -scale.factor
    if not scale.exponential and not tolerance.relative:
        noise = noise_of(sign * (candidate - reference))
        return Tested(noise.mean, tolerance.size), noise
    if scale.exponential:
        noise = noise_of(sign * (values[0] * candidate - values[1] * reference))
        return Tested(values[0] - values[1], tolerance.size), noise
    level = values[1] if values[1] > 0 else math.nan  # which `blank_comparison` refuses
    ratio = values[0] / level
    noise = noise_of(sign / level * (candidate - ratio * reference))
    if int(((candidate != 0) | (reference != 0)).sum()) < 2:  # of which the ratio is, without any noise to be seen
        noise = replace(noise, clusters=1, stderr=None, df=None)
    # A product with a negative sign would show no change as -0.
    return Tested(1 - ratio if sign < 0 else ratio - 1, tolerance.size), noise


def _require_pairs(candidate: Floats, reference: Floats, counts: Ints) -> None:
    if not candidate.shape == reference.shape == counts.shape or counts.ndim != 1:
        raise MetricInputError(
            f"expected sums of both models over the same clusters, got shapes {list(candidate.shape)} (candidate), "
            f"{list(reference.shape)} (reference) and {list(counts.shape)} (counts)"
        )
    for name, sums in (("candidate", candidate), ("reference", reference)):
        if bad := int((~np.isfinite(sums)).sum()):
            raise MetricInputError(f"{name}: expected finite sums, got {bad} of {len(sums)} clusters NaN or infinite")
        if lost := int(((counts == 0) & (sums != 0)).sum()):
            raise MetricInputError(f"{name}: expected a sum of 0 where a cluster has no targets, got {lost} others")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any() or not counts.any():
        raise MetricInputError(f"counts: expected whole numbers of targets, at least one above 0, got {counts[:8]} ...")


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 709 else math.inf
