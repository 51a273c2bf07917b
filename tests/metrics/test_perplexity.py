"""Every unit and average from one set of likelihoods, by hand."""

import math

import numpy as np
import pytest

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.likelihoods import LikelihoodStatistics, perplexity
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.stats.means import noisy_mean

NLL = np.array([1.0, 2.0, 3.0, 0.5, 1.5, 4.0])


def statistics(nll: np.ndarray = NLL, **other: object) -> LikelihoodStatistics:
    """Two documents of two windows and one: the windows score 2, 1 and 3 targets."""
    given_or_default = {
        "nll": nll,
        "window_targets": np.array([2, 1, 3]),
        "window_document": np.array([0, 0, 1]),
        "words": np.array([2, 3]),
        "chars": np.array([9, 11]),
        "utf8_bytes": np.array([10, 14]),
        "lost": np.array([0, 0]),
        "running_text": False,
    } | other
    whole = [given_or_default[name] for name in ("words", "chars", "utf8_bytes")]
    given_or_default.setdefault("scored", np.stack(whole, axis=1).astype(np.float64))
    return LikelihoodStatistics(**given_or_default)  # type: ignore[arg-type]


def score(**how: object) -> Score:
    return perplexity(statistics(), signature="s", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unit", "value", "n", "counted"),
    [
        ("token", math.exp(12 / 6), 6, "token"),
        ("word", math.exp(12 / 5), 5, "word"),
        ("char", math.exp(12 / 20), 20, "char"),
        ("byte", math.exp(12 / 24), 24, "byte"),
        ("bits_per_byte", 12 / 24 / math.log(2), 24, "byte"),
    ],
)
def test_every_unit_by_hand(unit: str, value: float, n: int, counted: str) -> None:
    found = score(unit=unit)
    assert found == pytest.approx(value, rel=1e-12)
    assert (found.n, found.unit, found.metric, found.signature) == (n, counted, "ppl", "s")
    assert found.direction == "lower"


def test_the_window_average_weighs_windows_equally() -> None:
    assert score(average="window") == pytest.approx(math.exp((3 / 2 + 3 / 1 + 6 / 3) / 3), rel=1e-12)


TWELVE_WINDOWS = {"window_targets": np.tile([2, 1, 3], 4), "window_document": np.zeros(12, dtype=np.int64)}


@pytest.mark.parametrize(
    ("text", "rows", "sums", "counts"),
    [
        # Rows are clusters wherever windows end; of a text without rows each of the twelve windows is a block.
        (statistics(row_targets=np.array([1, 3, 0, 2])), True, [1.0, 5.5, 5.5], [1, 3, 2]),
        (statistics(np.tile(NLL, 4), running_text=True, **TWELVE_WINDOWS), False, [3, 3, 6] * 4, [2, 1, 3] * 4),
    ],
)
def test_the_noise_is_that_of_the_clusters_carried_to_the_unit(
    text: LikelihoodStatistics, rows: bool, sums: list[float], counts: list[int]
) -> None:
    noise = noisy_mean(np.array(sums), np.array(counts), rows=rows)
    low, high, *_ = noise.bounds(0.975)
    per_byte = sum(counts) / 24
    token, byte, bits = (perplexity(text, signature="s", unit=unit) for unit in ("token", "byte", "bits_per_byte"))
    # No text has a perplexity below 1.
    assert token.interval == pytest.approx((max(1, math.exp(low)), math.exp(high)))
    assert token.stderr == pytest.approx(token * noise.stderr)
    assert byte.interval == pytest.approx((max(1, math.exp(low * per_byte)), math.exp(high * per_byte)))
    assert bits.interval == pytest.approx((max(0, low * per_byte / math.log(2)), high * per_byte / math.log(2)))
    assert bits.stderr == pytest.approx(noise.stderr * per_byte / math.log(2))
    assert (token.details["clusters"], token.details["df"]) == (len(counts), noise.df)


def test_one_cluster_has_a_value_and_no_interval() -> None:
    one = {"words": np.array([5]), "chars": np.array([20]), "utf8_bytes": np.array([24])}
    found = perplexity(statistics(window_targets=np.array([6]), window_document=np.array([0]), **one), signature="s")
    assert found == pytest.approx(math.exp(2))
    assert found.stderr is found.interval is None


def test_llama_cpps_error_takes_tokens_as_independent() -> None:
    found = score(iid=True)
    expected = math.exp(2) * math.sqrt((np.mean(NLL**2) - 4) / 5)
    assert found.details["stderr_iid"] == pytest.approx(expected, rel=1e-12)
    one = statistics(NLL[:1], window_targets=np.array([1]), window_document=np.array([0]))
    assert math.isnan(perplexity(one, signature="s", iid=True).details["stderr_iid"])


def test_likelihoods_in_single_precision_are_summed_in_double() -> None:
    nll = np.full(2**24 + 64, 1.0, dtype=np.float32)  # a float32 sum stops growing at 2**24
    windows = {"window_targets": np.array([2**24, 64]), "window_document": np.array([0, 0])}
    long = statistics(nll, running_text=True, **windows)
    assert perplexity(long, signature="s").details["nll_sum"] == 2**24 + 64


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_likelihoods_that_are_not_finite_are_an_error(bad: float) -> None:
    nll = NLL.copy()
    nll[3] = bad
    with pytest.raises(MetricInputError, match="expected finite log-likelihoods, got 1 of 6 NaN or infinite"):
        perplexity(statistics(nll), signature="s")


@pytest.mark.parametrize("targets", [0, 5, 7])
def test_an_unequal_count_of_likelihoods_and_targets_is_an_error(targets: int) -> None:
    with pytest.raises(MetricInputError, match=f"expected an NLL for each of 6 targets, got {targets}$"):
        statistics(np.ones(targets))
