"""Statistics of two models: llama.cpp's formulas by hand, percentiles, noise, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.divergence import DivergenceStatistics, SampledStatistics, divergence, kl, top1
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.stats.means import mean_of_blocks

SIGNED = Signature([("s", None)])


def statistics(n: int = 60, window: int = 5, seed: int = 0, **columns: Any) -> DivergenceStatistics:
    """Random but plausible numbers for `n` targets in windows of one running text."""
    generator = np.random.default_rng(seed)
    p = generator.exponential(2, n)
    q = np.abs(p + 0.1 * generator.normal(size=n))
    own = {
        "kl": generator.exponential(0.1, n),
        "dp": np.exp(-q) - np.exp(-p),
        "same_top": (generator.random(n) < 0.9).astype(float),
        "nll_p": p,
        "nll_q": q,
    }
    return DivergenceStatistics(
        **{**own, **columns},
        window_targets=np.full(n // window, window),
        window_document=np.zeros(n // window, dtype=np.int64),
        running_text=True,
    )


def test_the_ratio_and_its_error_are_llama_cpps_by_hand() -> None:
    # Two tokens: a = nll_q = (1, 3), b = nll_p = (1, 2). Means 2 and 1.5; mean squares 5 and 2.5; mean product 3.5.
    zeros, ones = np.zeros(2), np.ones(2)
    a, b = np.array([1.0, 3.0]), np.array([1.0, 2.0])
    given = statistics(2, 1, kl=zeros, dp=zeros, same_top=ones, nll_q=a, nll_p=b)
    found = divergence(given, signature=SIGNED).figures

    # u^2 = (mean square - mean^2) / (N - 1): 1 and 0.25; cov = (3.5 - 3) / 1 = 0.5; u_r^2 = 1 + 0.25 - 1 = 0.25.
    assert found["Mean ln(PPL(Q)/PPL(base))"].value == pytest.approx(0.5)
    assert found["Mean ln(PPL(Q)/PPL(base))"].iid_stderr == pytest.approx(0.5)
    assert found["Mean PPL(Q)/PPL(base)"].value == pytest.approx(math.exp(0.5))
    assert found["Mean PPL(Q)/PPL(base)"].iid_stderr == pytest.approx(0.5 * math.exp(0.5))
    assert found["Mean PPL(Q)"].value == pytest.approx(math.exp(2))
    assert found["Mean PPL(Q)"].iid_stderr == pytest.approx(math.exp(2))
    assert found["Mean PPL(base)"].iid_stderr == pytest.approx(0.5 * math.exp(1.5))
    assert found["Cor(ln(PPL(Q)), ln(PPL(base)))"].value == pytest.approx(0.5 / (1 * 0.5))
    assert found["Mean PPL(Q)-PPL(base)"].value == pytest.approx(math.exp(2) - math.exp(1.5))
    # (e^2)^2 + (e^1.5 / 2)^2 - 2 e^2 e^1.5 / 2
    expected = math.sqrt(math.exp(4) + math.exp(3) / 4 - math.exp(3.5))
    assert found["Mean PPL(Q)-PPL(base)"].iid_stderr == pytest.approx(expected)


def test_every_figure_is_there_under_llama_cpps_name_and_in_its_order() -> None:
    below = ("90.0%", "Median", "10.0%", "5.0%", "1.0%", "0.1%", "Minimum")
    expected = [
        "Mean PPL(Q)", "Mean PPL(base)", "Cor(ln(PPL(Q)), ln(PPL(base)))", "Mean ln(PPL(Q)/PPL(base))",
        "Mean PPL(Q)/PPL(base)", "Mean PPL(Q)-PPL(base)",
        *(f"{name} KLD" for name in ("Mean", "Maximum", "99.9%", "99.0%", "95.0%", *below)),
        *(f"{name} Δp" for name in ("Mean", "Maximum", "99.9%", "99.0%", "95.0%", "90.0%", "75.0%", "Median", "25.0%",
                                    *below[2:])),
        "RMS Δp", "Same top p",
    ]  # fmt: skip
    assert list(divergence(statistics(), signature=SIGNED).figures) == expected


def test_percentiles_are_interpolated_as_llama_cpp_does() -> None:
    values = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 9.0])
    found = divergence(statistics(6, 1, kl=values, dp=-values), signature=SIGNED).figures

    ordered = sorted(values)
    percents = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)
    for fraction, name in ((percent / 100, "Median" if percent == 50 else f"{percent}%") for percent in percents):
        at = fraction * (len(values) - 1)
        low, part = int(at), at - int(at)
        # 75% and 25% are of the differences alone, which fall as the divergences rise.
        for figure, by_size in ((f"{name} KLD", ordered), (f"{name} Δp", [-value for value in reversed(ordered)])):
            if figure in found:
                by_hand = (1 - part) * by_size[low] + part * by_size[min(low + 1, len(values) - 1)]
                assert found[figure].value == pytest.approx(by_hand)
    assert (found["Minimum KLD"].value, found["Maximum KLD"].value) == (1, 9)
    assert (found["Minimum Δp"].value, found["Maximum Δp"].value) == (-9, -1)


def test_probability_differences_and_the_same_top_have_llama_cpps_errors() -> None:
    dp = np.array([0.3, -0.1, 0.2, 0.0, -0.4])
    top = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    found = divergence(statistics(5, 1, dp=dp, same_top=top), signature=SIGNED).figures
    rms = math.sqrt((0.09 + 0.01 + 0.04 + 0.16) / 5)
    squares = np.array([0.09, 0.01, 0.04, 0.0, 0.16])
    error = math.sqrt(((squares**2).mean() - squares.mean() ** 2) / 4)
    assert found["Mean Δp"].value == pytest.approx(0.0)
    assert found["RMS Δp"].value == pytest.approx(rms)
    assert found["RMS Δp"].iid_stderr == pytest.approx(0.5 / rms * error)
    assert found["Same top p"].value == pytest.approx(0.8)
    assert found["Same top p"].iid_stderr == pytest.approx(math.sqrt(0.8 * 0.2 / 4))


def test_the_scores_have_the_noise_between_clusters() -> None:
    given = statistics()
    for metric, values in ((kl, given.kl), (top1, given.same_top)):
        score = metric(given, signature=SIGNED)
        noise = mean_of_blocks(values.reshape(-1, 5).sum(1), np.full(12, 5))
        assert float(score) == pytest.approx(values.mean())
        assert score.stderr == pytest.approx(noise.stderr)
        lower, upper, *_ = noise.bounds(0.975)
        most = 1 if score.metric == "top1" else math.inf
        assert score.interval == pytest.approx((max(lower, 0), min(upper, most)))
        assert (score.n, score.direction) == (60, "higher" if score.metric == "top1" else "lower")


def test_a_statistic_is_what_its_name_says_and_in_the_signature() -> None:
    given = statistics()
    for name, percentile in {"median": 50, "p90": 90, "p95": 95, "p99": 99, "p99.9": 99.9, "max": 100}.items():
        score = kl(given, signature=SIGNED, statistic=name)
        assert float(score) == pytest.approx(np.percentile(given.kl, percentile))
        assert (score.signature, score.stderr, score.interval) == (f"s|statistic:{name}", None, None)


def test_the_difference_of_perplexities_has_the_error_of_the_delta_method() -> None:
    given = statistics(n=400, window=10, seed=5)
    error = divergence(given, signature=SIGNED).figures["Mean PPL(Q)-PPL(base)"].stderr
    windows = np.random.default_rng(0).integers(0, 40, (4000, 40))
    q, p = (values.reshape(40, 10).mean(1) for values in (given.nll_q, given.nll_p))
    resampled = np.exp(q[windows].mean(1)) - np.exp(p[windows].mean(1))
    assert error == pytest.approx(resampled.std(), rel=0.1)


@pytest.mark.parametrize("column", ["kl", "dp", "same_top", "nll_p", "nll_q"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_and_too_few_numbers_are_refused(column: str, value: float) -> None:
    bad = np.ones(60)
    bad[7] = value
    with pytest.raises(MetricInputError, match=f"{column}: expected finite numbers, got 1 of 60"):
        statistics(**{column: bad})
    with pytest.raises(MetricInputError, match=f"{column}: expected a number for each of 60 targets"):
        statistics(**{column: np.ones(59)})


@pytest.mark.parametrize(
    ("ratios", "weight"),
    [
        ([1.9, *[-1.0] * 7], 1),
        ([2.1, *[-1.0] * 7], 0),  # a ratio of 2 or more
        ([0.30, 0.31, 0.29, 0.30] * 2, 0),  # the mean of exp(r) - 1 is more than three standard errors above 0
    ],
)
def test_a_sampled_divergence_has_its_control_variate_where_the_sample_supports_it(
    ratios: list[float], weight: int
) -> None:
    r, layout = np.array(ratios), {"window_targets": np.ones(8, dtype=np.int64), "window_document": np.arange(8)}
    found = kl(SampledStatistics(nll_p=r + 3, nll_q=np.full(8, 3.0), running_text=False, **layout), signature=SIGNED)
    assert found.details["lambda"] == weight
    assert float(found) == pytest.approx(np.mean(-r + weight * (np.exp(r) - 1)))
