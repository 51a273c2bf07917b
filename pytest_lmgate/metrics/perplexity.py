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

from pytest_lmgate.config.signature import Signature
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.clusters import TargetLayout
from pytest_lmgate.metrics.former_clusters import former_clusters
from pytest_lmgate.metrics.noise import ClusteredMean, clustered_mean
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
        row_targets: Targets of each row in the order of the text, shape ``[rows]``; None where the text has no rows.
        targets: Digest of what was scored: two measurements with the same are of the same targets.
    """

    nll: NDArray[Any]
    window_targets: Ints
    window_document: Ints
    words: Ints
    chars: Ints
    utf8_bytes: Ints
    running_text: bool
    row_targets: Ints | None = None
    targets: str = ""

    def __post_init__(self) -> None:
        if len(self.nll) == 0 or int(self.window_targets.sum()) != len(self.nll):
            raise MetricInputError(
                f"expected an NLL for each of {int(self.window_targets.sum())} targets, got {len(self.nll)}"
            )

    @property
    def layout(self) -> TargetLayout:
        """Which targets belong to one cluster."""
        return TargetLayout(self.window_targets, self.row_targets)

    @property
    def window_sums(self) -> NDArray[np.float64]:
        """NLL of each window, summed in float64; shape ``[windows]``."""
        begins = np.concatenate([[0], np.cumsum(self.window_targets)[:-1]])
        sums: NDArray[np.float64] = np.add.reduceat(self.nll.astype(np.float64), begins)
        return sums


def perplexity(
    statistics: LikelihoodStatistics,
    *,
    signature: Signature | str,
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
    by_window = average == "window"
    layout, sums = statistics.layout, statistics.window_sums
    clustered = layout.of_windows(sums / layout.window_targets) if by_window else layout.of_targets(statistics.nll)
    noise = clustered_mean(*clustered)
    total = float(sums.sum())
    size, name = _size(statistics, unit)
    # The noise of a mean over targets, carried to a mean over words or bytes of the same text.
    scale = 1.0 if unit == "token" else noise.n / size
    bits = unit == "bits_per_byte"
    value, stderr, interval = _transformed(noise, scale, bits=bits)
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
        iid=iid,
        details=details,
        sample=_sample(statistics, clustered, unit, scale, by_window=by_window),
    )


def _sample(
    statistics: LikelihoodStatistics,
    clustered: tuple[NDArray[np.float64], Ints],
    unit: str,
    scale: float,
    *,
    by_window: bool,
) -> Sample:
    """Sums by cluster; of documents counted in words or bytes by document, whatever the tokens are."""
    bits = unit == "bits_per_byte"
    per_target = 1 / math.log(2) if bits else 1.0
    by_tokens = unit == "token" or statistics.running_text
    kind = Scale(
        "lower", exponential=not bits, factor=scale * per_target if by_tokens else per_target, lowest=0 if bits else 1
    )
    rows = statistics.layout.has_rows

    def former() -> Sample:
        counts, sums = statistics.window_targets, statistics.window_sums
        clusters = former_clusters(statistics.window_document, counts, running_text=statistics.running_text)
        if by_window:
            sums, counts = sums / counts, np.ones_like(counts)
        sizes = np.bincount(clusters, weights=counts).astype(np.int64)
        total = np.bincount(clusters, weights=sums).astype(np.float64)
        return Sample(total[:, None], sizes, kind, identity={"targets": statistics.targets}, rows=rows)

    if by_tokens:
        sums, sizes = clustered
        identity = {"targets": statistics.targets}
        return Sample(sums[:, None], sizes, kind, identity=identity, rows=rows, former=former)
    texts = {"word": statistics.words, "char": statistics.chars}
    sizes = texts.get(unit, statistics.utf8_bytes)
    total = np.bincount(statistics.window_document, weights=statistics.window_sums, minlength=len(sizes))
    return Sample(total.astype(np.float64)[:, None], sizes, kind, rows=rows).merged()


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
    factor = scale / math.log(2) if bits else scale
    kind = Scale("lower", exponential=not bits, factor=factor, lowest=0 if bits else 1)
    value, bounds = kind.value(noise.mean), noise.bounds(0.975)
    if bounds is None or noise.stderr is None:
        return value, None, None
    interval = kind.within(bounds)
    return value, noise.stderr * factor * (1 if bits else value), (interval.lower, interval.upper)


def _iid_error(nll: NDArray[np.float64]) -> float:
    """Relative error by llama.cpp's formula, ``sqrt((mean(x^2) - mean(x)^2) / (N - 1))``."""
    if len(nll) < 2:
        return math.nan
    return math.sqrt(max(0.0, float(np.mean(nll**2) - np.mean(nll) ** 2)) / (len(nll) - 1))
