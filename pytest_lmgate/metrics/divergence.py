"""Divergence of a candidate q from its reference p, from what was measured of each target: KL, top-1 and the rest.

The figures bear the names that ``llama-perplexity --kl-divergence`` prints, and are computed by its formulas
(tools/perplexity/perplexity.cpp); its errors take tokens as independent, which those of one document are not, and are
called iid for that. The standard errors of the scores are those between clusters (`stats.means`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.likelihoods import TargetLayout
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.stats.sample import Scale

KL_STATISTICS: Mapping[str, float] = {
    "mean": math.nan, "median": 50, "p90": 90, "p95": 95, "p99": 99, "p99.9": 99.9, "max": 100,
}  # fmt: skip
"""Statistics of the KL divergence per token, with the percentile that each is; the mean is none."""

SMALL_RATIO, CONTROL_ERRORS = 2.0, 3.0
"""Where a sampled divergence has its control variate: see `_sampled`."""
_LARGEST_EXPONENT = 700.0
_PERCENTILES = {"99.9%": 99.9, "99.0%": 99, "95.0%": 95, "90.0%": 90, "75.0%": 75, "Median": 50, "25.0%": 25,
                "10.0%": 10, "5.0%": 5, "1.0%": 1, "0.1%": 0.1}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DivergenceStatistics(TargetLayout):
    """Statistics of a comparison of two models, each of shape ``[targets]``, window after window."""

    kl: Floats  # ``sum_i p_i (log p_i - log q_i)``, nats
    dp: Floats  # ``q(target) - p(target)``
    same_top: Floats  # 1 if the arg-max agrees, else 0
    nll_p: Floats  # NLL of the reference, nats
    nll_q: Floats  # NLL of the candidate, nats

    def __post_init__(self) -> None:
        _require_numbers(self, "kl", "dp", "same_top", "nll_p", "nll_q")


@dataclass(frozen=True, kw_only=True)
class SampledStatistics(TargetLayout):
    """NLLs in nats of tokens that were drawn from p, shape ``[targets]`` each, one window for each text."""

    nll_p: Floats  # under p
    nll_q: Floats  # under q

    def __post_init__(self) -> None:
        _require_numbers(self, "nll_p", "nll_q")


@dataclass(frozen=True, kw_only=True)
class WrittenStatistics(SampledStatistics):
    """A model as it writes, p, and as it reads, q, with the texts."""

    ids: Ints  # token ids of all prompts, each followed by what the model wrote, shape ``[tokens]``
    prompt_tokens: Ints  # tokens of each prompt, shape ``[windows]``


def _require_numbers(statistics: TargetLayout, *names: str) -> None:
    expected = int(statistics.window_targets.sum())
    for name in names:
        values = getattr(statistics, name)
        if expected == 0 or values.shape != (expected,):
            raise MetricInputError(f"{name}: expected a number for each of {expected} targets, got {values.shape}")
        if bad := int((~np.isfinite(values)).sum()):
            raise MetricInputError(f"{name}: expected finite numbers, got {bad} of {expected} NaN or infinite")


@dataclass(frozen=True)
class Figure:
    """A number with its errors."""

    value: float  # the number
    stderr: float | None = None  # standard error between clusters; None if undefined or with too few clusters
    # standard error for independent tokens, by llama.cpp's formula; None if it prints none
    iid_stderr: float | None = None


@dataclass(frozen=True)
class Divergence:
    """All figures of a candidate, `model`, and its reference.

    Attributes:
        figures: By the names that llama.cpp prints, in its order; nats, and probabilities from 0 to 1.
        n: Targets.
        signature: How the figures were made, in one line.
        fingerprint: Content address of the measurement.
        cached: Whether the measurement came from the cache.
        seconds: Wall time of measuring or lookup.
    """

    figures: Mapping[str, Figure]
    n: int
    signature: Signature
    model: str = ""
    reference: str = ""
    dataset: str = ""
    fingerprint: str = ""
    cached: bool = False
    seconds: float = 0.0

    @property
    def kl(self) -> Figure:
        """Mean KL divergence, nats."""
        return self.figures["Mean KLD"]

    @property
    def top1(self) -> Figure:
        """Share of positions whose most likely token is the reference's."""
        return self.figures["Same top p"]

    @property
    def ln_ratio(self) -> Figure:
        """Mean difference of the NLLs, nats: the logarithm of the ratio of the perplexities."""
        return self.figures["Mean ln(PPL(Q)/PPL(base))"]

    @property
    def ratio(self) -> Figure:
        """The candidate's perplexity over the reference's."""
        return self.figures["Mean PPL(Q)/PPL(base)"]

    @property
    def details(self) -> dict[str, float]:
        """The figures as plain numbers; errors follow theirs, with the kind of error in their names."""
        flat: dict[str, float] = {}
        for name, figure in self.figures.items():
            flat[name] = figure.value
            if figure.stderr is not None:
                flat[f"{name}, stderr"] = figure.stderr
            if figure.iid_stderr is not None:
                flat[f"{name}, iid stderr (tokens as independent)"] = figure.iid_stderr
        return flat

    def placed(self, **where: Any) -> Divergence:
        """Return this divergence with the names and the address of its measurement."""
        return replace(self, **where)

    def __str__(self) -> str:
        """A table; the first error is that between clusters."""
        width = max(map(len, self.figures))
        lines = [f"{self.model} against {self.reference} on {self.dataset}: {self.n:,} tokens, {self.signature}"]
        for name, figure in self.figures.items():
            error = "" if figure.stderr is None else f" ± {figure.stderr:.6f}"
            iid = "" if figure.iid_stderr is None else f" (iid ± {figure.iid_stderr:.6f})"
            lines.append(f"  {name:{width}}: {figure.value:11.6f}{error}{iid}")
        return "\n".join(lines)


def kl(
    statistics: DivergenceStatistics | SampledStatistics,
    *,
    signature: Signature,
    iid: bool = False,
    statistic: str = "mean",
) -> Score:
    """Return a statistic of the KL divergence per token, in nats; a sampled one has the mean only, see `_sampled`.

    The mean alone has a standard error; percentiles are interpolated linearly, as llama.cpp does.
    """
    if isinstance(statistics, SampledStatistics):
        return _sampled("kl", statistics, signature, {"statistic": statistic})
    whole = divergence(statistics, signature=signature)
    signature = signature.plus(("statistic", statistic))
    details = {"statistic": statistic, **whole.details}
    if statistic != "mean":
        value = float(np.percentile(statistics.kl, KL_STATISTICS[statistic]))
        return Score(value, metric="kl", n=len(statistics.kl), signature=signature, iid=iid, details=details)
    return _mean_score("kl", statistics, statistics.kl, signature, details, scale=Scale("lower", lowest=0), iid=iid)


def self_kl(statistics: WrittenStatistics, *, signature: Signature) -> Score:
    """Return the KL divergence per token of a model that reads from the same model as it writes, in nats."""
    return _sampled("self_kl", statistics, signature, {})


def _sampled(metric: str, statistics: SampledStatistics, signature: Signature, details: Mapping[str, Any]) -> Score:
    """Estimate KL(p || q) in nats per token from tokens that were drawn from p.

    With ``r = log q - log p`` of such a token, ``-r`` has the mean KL and ``exp(r) - 1`` the mean 0, so the mean of
    ``-r + lambda (exp(r) - 1)`` is the KL for any fixed lambda (Schulman 2020, "Approximating KL Divergence"; a control
    variate). lambda is 1 where all abs(r) are below `SMALL_RATIO` and the mean of ``exp(r) - 1`` is within
    `CONTROL_ERRORS` of its standard errors of 0, else 0: a sample does not hold the tail of ``exp(r)`` of a damaged
    model (docs/decisions.md).
    """
    r = statistics.nll_p - statistics.nll_q
    largest = float(np.abs(r).max())
    control = statistics.mean(np.expm1(np.minimum(r, _LARGEST_EXPONENT)))
    errors = abs(control.mean) / max(control.stderr or math.inf, math.ulp(0.0))
    weight = 1 if largest < SMALL_RATIO and errors < CONTROL_ERRORS else 0
    all_details = {**details, "estimator": "sampled", "lambda": weight, "largest |log q - log p|": largest}
    values = -r + weight * np.expm1(r) if weight else -r
    return _mean_score(metric, statistics, values, signature, all_details, scale=Scale("lower"), iid=False)


def top1(statistics: DivergenceStatistics, *, signature: Signature, iid: bool = False) -> Score:
    """Return the share of targets at which both models' most likely token is the same, 0 to 1."""
    details = {"statistic": "mean", **divergence(statistics, signature=signature).details}
    scale = Scale("higher", lowest=0, highest=1)
    return _mean_score("top1", statistics, statistics.same_top, signature, details, scale=scale, iid=iid)


def _mean_score(
    metric: str,
    statistics: TargetLayout,
    values: Floats,
    signature: Signature,
    details: Mapping[str, Any],
    *,
    scale: Scale,
    iid: bool,
) -> Score:
    sample = statistics.sample(values, scale)
    noise = sample.noise()
    return Score(
        noise.mean,
        metric=metric,
        n=noise.n,
        stderr=noise.stderr,
        interval=sample.interval,
        signature=signature,
        iid=iid,
        details={**details, "clusters": noise.clusters, "df": noise.df},
        direction=scale.direction,
        sample=sample,
    )


def divergence(statistics: DivergenceStatistics, *, signature: Signature) -> Divergence:
    """Return all figures, by llama.cpp's names and in its order."""
    without_quartiles = {name: at for name, at in _PERCENTILES.items() if at not in (25, 75)}
    figures = {
        **_perplexities(statistics),
        **_distribution(statistics, statistics.kl, "KLD", without_quartiles),
        **_distribution(statistics, statistics.dp, "Δp", _PERCENTILES),
        **_shares(statistics),
    }
    return Divergence(figures, len(statistics.kl), signature)


def _perplexities(statistics: DivergenceStatistics) -> dict[str, Figure]:
    """Both perplexities, and their ratio by paired errors: ``u_r^2 = u_q^2 + u_p^2 - 2 cov``."""
    q, p = statistics.nll_q, statistics.nll_p
    ln_q, ln_p, paired = (statistics.mean(values) for values in (q, p, q - p))
    u_q, u_p, cov = _iid_error(q), _iid_error(p), _iid_covariance(q, p)
    ppl_q, ppl_p, ratio = _exp(ln_q.mean), _exp(ln_p.mean), _exp(paired.mean)
    # Where the models are the same, rounding may leave less than nothing under the root.
    u_ratio = math.sqrt(max(0.0, u_q**2 + u_p**2 - 2 * cov))
    u_difference = math.sqrt(max(0.0, (ppl_q * u_q) ** 2 + (ppl_p * u_p) ** 2 - 2 * ppl_q * ppl_p * cov))
    # By the delta method: the gradient of PPL(Q) - PPL(base) in both mean NLLs.
    difference = None
    if math.isfinite(ppl_q) and math.isfinite(ppl_p):
        difference = statistics.mean(ppl_q * (q - ln_q.mean) - ppl_p * (p - ln_p.mean)).stderr
    return {
        "Mean PPL(Q)": Figure(ppl_q, _times(ppl_q, ln_q.stderr), ppl_q * u_q),
        "Mean PPL(base)": Figure(ppl_p, _times(ppl_p, ln_p.stderr), ppl_p * u_p),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": Figure(_correlation(cov, u_q, u_p, same=bool((q == p).all()))),
        "Mean ln(PPL(Q)/PPL(base))": Figure(paired.mean, paired.stderr, u_ratio),
        "Mean PPL(Q)/PPL(base)": Figure(ratio, _times(ratio, paired.stderr), ratio * u_ratio),
        "Mean PPL(Q)-PPL(base)": Figure(ppl_q - ppl_p, difference, u_difference),
    }


def _distribution(
    statistics: DivergenceStatistics, values: Floats, name: str, percentiles: Mapping[str, float]
) -> dict[str, Figure]:
    mean = statistics.mean(values)
    at = np.percentile(values, list(percentiles.values())).tolist()
    return {
        f"Mean {name}": Figure(mean.mean, mean.stderr, _iid_error(values)),
        f"Maximum {name}": Figure(float(values.max())),
        **{f"{percentile} {name}": Figure(value) for percentile, value in zip(percentiles, at, strict=True)},
        f"Minimum {name}": Figure(float(values.min())),
    }


def _shares(statistics: DivergenceStatistics) -> dict[str, Figure]:
    dp, n = statistics.dp, len(statistics.dp)
    squares, same = statistics.mean(dp**2), statistics.mean(statistics.same_top)
    rms = math.sqrt(squares.mean)
    half = 0.5 / rms if rms > 0 else 0.0  # the root's derivative
    u_same = math.sqrt(same.mean * (1 - same.mean) / (n - 1)) if n > 1 else math.nan
    return {
        "RMS Δp": Figure(rms, _times(half, squares.stderr), half * _iid_error(dp**2)),
        "Same top p": Figure(same.mean, same.stderr, u_same),
    }


def _iid_error(x: Floats) -> float:
    """``sqrt((mean(x^2) - mean(x)^2) / (N - 1))``, computed about the mean."""
    return math.sqrt(float(np.mean((x - x.mean()) ** 2)) / (len(x) - 1)) if len(x) > 1 else math.nan


def _iid_covariance(a: Floats, b: Floats) -> float:
    """``(mean(ab) - mean(a) mean(b)) / (N - 1)``, computed about the means."""
    return float(np.mean((a - a.mean()) * (b - b.mean()))) / (len(a) - 1) if len(a) > 1 else math.nan


def _correlation(cov: float, u_q: float, u_p: float, *, same: bool) -> float:
    """Correlation of the mean NLLs: 1 if equal, NaN if one model does not vary."""
    if same:
        return 1.0
    return cov / (u_q * u_p) if u_q * u_p > 0 else math.nan


def _exp(x: float) -> float:
    """``exp``, infinite where it overflows."""
    return math.exp(x) if x < 709 else math.inf


def _times(factor: float, stderr: float | None) -> float | None:
    return None if stderr is None else factor * stderr
