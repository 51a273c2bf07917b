"""Perplexity and bits per byte from per-token negative log-likelihoods: every unit and average, no model.

``PPL = exp(sum NLL / N)`` with N the targets scored; NLL in nats. Per word, byte and character the sum is divided by
what the original text holds; ``bits_per_byte = sum NLL / (ln 2 * UTF-8 bytes)``.
"""

from __future__ import annotations

__all__ = ["LikelihoodStatistics", "perplexity"]

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.noise import ClusteredMean, block_clusters, clustered_mean
from pytest_lmgate.metrics.sample import Sample, Scale
from pytest_lmgate.metrics.score import Score

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LikelihoodStatistics:
    """What a likelihood measurement keeps.

    Attributes:
        nll: Nats, shape ``[targets]``, window after window.
        window_targets: Targets of each window, shape ``[windows]``.
        window_document: Document of each window, shape ``[windows]``.
        words: Of each document, shape ``[documents]``.
        chars: Likewise.
        utf8_bytes: Likewise.
        running_text: Whether the rows were read as one text.
        targets: Digest of what was scored: two measurements with the same are of the same targets.
    """

    nll: NDArray[Any]
    window_targets: Ints
    window_document: Ints
    words: Ints
    chars: Ints
    utf8_bytes: Ints
    running_text: bool
    targets: str = ""

    def __post_init__(self) -> None:
        if len(self.nll) == 0 or int(self.window_targets.sum()) != len(self.nll):
            raise MetricInputError(
                f"expected an NLL for each of {int(self.window_targets.sum())} targets, got {len(self.nll)}"
            )

    @property
    def window_sums(self) -> NDArray[np.float64]:
        """NLL of each window, summed in float64; shape ``[windows]``."""
        begins = np.concatenate([[0], np.cumsum(self.window_targets)[:-1]])
        sums: NDArray[np.float64] = np.add.reduceat(self.nll.astype(np.float64), begins)
        return sums


def perplexity(
    statistics: LikelihoodStatistics,
    *,
    signature: str,
    unit: str = "token",
    average: str = "token",
    iid: bool = False,
    metric: str = "ppl",
) -> Score:
    """Return perplexity in `unit`, or bits per byte.

    Args:
        statistics: The measurement.
        signature: How the number was made, in one line.
        unit: ``token``, ``word``, ``byte``, ``char`` or ``bits_per_byte``.
        average: ``token``, or ``window`` for the exp of the unweighted mean of the windows' means.
        iid: Add llama.cpp's standard error, which takes tokens as independent, to the details.
        metric: Name of the score.

    Returns:
        The score; its interval is ``exp(m +- t se)``, its standard error that of the delta method.

    Raises:
        MetricInputError: The likelihoods are not finite.
    """
    if bad := int((~np.isfinite(statistics.nll)).sum()):
        raise MetricInputError(f"expected finite log-likelihoods, got {bad} of {len(statistics.nll)} NaN or infinite")
    sums, counts = statistics.window_sums, statistics.window_targets
    clusters = block_clusters(statistics.window_document, counts, running_text=statistics.running_text)
    if average == "window":
        sums, counts = sums / counts, np.ones_like(counts)
    sizes = np.bincount(clusters, weights=counts).astype(np.int64)
    noise = clustered_mean(np.bincount(clusters, weights=sums).astype(np.float64), sizes)
    total = float(statistics.window_sums.sum())
    size, name = _size(statistics, unit)
    # The noise of a mean over targets, carried to a mean over words or bytes of the same text.
    scale = 1.0 if unit == "token" else noise.n / size
    value, stderr, interval = _transformed(noise, scale, bits=unit == "bits_per_byte")
    details: dict[str, Any] = {
        "nll_sum": total,
        "targets": len(statistics.nll),
        "clusters": noise.clusters,
        "df": noise.df,
        "words": int(statistics.words.sum()),
        "chars": int(statistics.chars.sum()),
        "bytes": int(statistics.utf8_bytes.sum()),
    }
    if iid:
        details["stderr_iid"] = value * _iid_error(statistics.nll.astype(np.float64))
    return Score(
        value,
        metric=metric,
        unit=name,
        n=len(statistics.nll) if unit == "token" else size,
        stderr=stderr,
        interval=interval,
        signature=signature,
        details=details,
        sample=_sample(statistics, clusters, sums, counts, unit, scale),
    )


def _sample(
    statistics: LikelihoodStatistics,
    clusters: Ints,
    sums: NDArray[np.float64],
    counts: Ints,
    unit: str,
    scale: float,
) -> Sample:
    """Sums by cluster; of documents counted in words or bytes by document, whatever the tokens are."""
    bits = unit == "bits_per_byte"
    per_target = 1 / math.log(2) if bits else 1.0
    if unit == "token" or statistics.running_text:
        factor, identity = scale * per_target, {"targets": statistics.targets}
        sizes = np.bincount(clusters, weights=counts).astype(np.int64)
        total = np.bincount(clusters, weights=sums).astype(np.float64)
    else:
        texts = {"word": statistics.words, "char": statistics.chars}
        factor, identity, sizes = per_target, {}, texts.get(unit, statistics.utf8_bytes)
        total = np.bincount(statistics.window_document, weights=sums, minlength=len(sizes)).astype(np.float64)
    made = Sample(total[:, None], sizes, Scale("lower", exponential=not bits, factor=factor), identity=identity)
    return made.merged()


def _size(statistics: LikelihoodStatistics, unit: str) -> tuple[int, str]:
    sizes = {
        "token": (len(statistics.nll), "token"),
        "word": (int(statistics.words.sum()), "word"),
        "char": (int(statistics.chars.sum()), "char"),
        "byte": (int(statistics.utf8_bytes.sum()), "byte"),
        "bits_per_byte": (int(statistics.utf8_bytes.sum()), "byte"),
    }
    return sizes[unit]


def _transformed(
    noise: ClusteredMean, scale: float, *, bits: bool
) -> tuple[float, float | None, tuple[float, float] | None]:
    mean, margin = noise.mean * scale, noise.margin()
    if bits:
        to_bits = 1 / math.log(2)
        low_high = None if margin is None else ((mean - margin * scale) * to_bits, (mean + margin * scale) * to_bits)
        return mean * to_bits, None if noise.stderr is None else noise.stderr * scale * to_bits, low_high
    value = _exp(mean)
    if margin is None or noise.stderr is None:
        return value, None, None
    return value, value * noise.stderr * scale, (_exp(mean - margin * scale), _exp(mean + margin * scale))


def _exp(x: float) -> float:
    """``exp``, infinite where it overflows: a word perplexity can."""
    return math.exp(x) if x < 709 else math.inf


def _iid_error(nll: NDArray[np.float64]) -> float:
    """Relative error by llama.cpp's formula, ``sqrt((mean(x^2) - mean(x)^2) / (N - 1))``."""
    if len(nll) < 2:
        return math.nan
    return math.sqrt(max(0.0, float(np.mean(nll**2) - np.mean(nll) ** 2)) / (len(nll) - 1))
