"""Perplexity and bits per byte from per-token negative log-likelihoods: every unit and average, no model.

``PPL = exp(sum NLL / N)`` with N the targets scored; NLL in nats. Per word, byte and character the sum is divided by
what the original text holds; ``bits_per_byte = sum NLL / (ln 2 * UTF-8 bytes)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.targets import TargetLayout
from pytest_lmgate.settings.requests import Signature
from pytest_lmgate.stats.sample import ByRow, Sample, Scale


@dataclass(frozen=True, kw_only=True)
class LikelihoodStatistics(TargetLayout):
    """Statistics of a likelihood measurement."""

    nll: NDArray[Any]  # nats, shape ``[targets]``, window after window
    words: Ints  # words of each document, shape ``[documents]``
    chars: Ints  # unicode code points of each document, shape ``[documents]``
    utf8_bytes: Ints  # bytes of each document, shape ``[documents]``

    def __post_init__(self) -> None:
        expected = int(self.window_targets.sum())
        if expected == 0 or self.nll.shape != (expected,):
            raise MetricInputError(f"expected an NLL for each of {expected} targets, got {self.nll.size}")


def perplexity(
    statistics: LikelihoodStatistics,
    *,
    signature: Signature,
    unit: str = "token",
    average: str = "token",
    iid: bool = False,
    metric: str = "ppl",
) -> Score:
    """Return perplexity per ``token``, ``word``, ``byte`` or ``char``, or ``bits_per_byte``.

    The average ``window`` is the exp of the unweighted mean of the windows' means. The interval is ``exp(m +- t se)``,
    the standard error that of the delta method; `iid` adds llama.cpp's, for independent tokens, to the details.
    """
    if bad := int((~np.isfinite(statistics.nll)).sum()):
        raise MetricInputError(f"expected finite log-likelihoods, got {bad} of {len(statistics.nll)} NaN or infinite")
    by_window, bits = average == "window", unit == "bits_per_byte"
    # The size of each document in the unit; None for tokens.
    by_unit = {"token": None, "word": statistics.words, "char": statistics.chars}
    targets, sizes = len(statistics.nll), by_unit.get(unit, statistics.utf8_bytes)
    size = targets if sizes is None else int(sizes.sum())
    # The noise of a mean over targets, carried to a mean over words or bytes of the same text.
    per_unit = 1.0 if sizes is None else (len(statistics.window_targets) if by_window else targets) / size
    scale = Scale(
        "lower", exponential=not bits, factor=per_unit / math.log(2) if bits else per_unit, lowest=0 if bits else 1
    )
    per_target = 1 / math.log(2) if bits else 1.0
    sample = statistics.sample(statistics.nll, replace(scale, factor=per_unit * per_target), by_window=by_window)
    noise, window_sums = sample.noise(), statistics.window_sums(statistics.nll)
    if sizes is not None and not statistics.running_text and sample.rows:
        # Documents counted in words or bytes pair by document, with any tokenizer.
        sums = np.bincount(statistics.window_document, weights=window_sums, minlength=len(sizes)).astype(np.float64)
        by_row = ByRow(sums[:, None], sizes, np.arange(len(sizes)))
        by_document = Sample(sums[:, None], sizes, replace(scale, factor=per_target), by_row=by_row)
        sample = by_document.merged()
    elif sizes is not None:
        sample = replace(sample, by_row=None)  # how many words or bytes a row has was not measured
    value, bounds = scale.value(noise.mean), noise.bounds(0.975)
    interval = None if bounds is None else scale.within(bounds)
    details: dict[str, Any] = {
        "nll_sum": float(window_sums.sum()),
        "targets": targets,
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
        unit="byte" if bits else unit,
        n=size,
        stderr=None if noise.stderr is None else noise.stderr * scale.factor * (1 if bits else value),
        interval=None if interval is None else (interval.lower, interval.upper),
        signature=signature,
        iid=iid,
        details=details,
        sample=sample,
    )


def _iid_error(nll: Floats) -> float:
    """Relative error by llama.cpp's formula, ``sqrt((mean(x^2) - mean(x)^2) / (N - 1))``."""
    if len(nll) < 2:
        return math.nan
    return math.sqrt(max(0.0, float(np.mean(nll**2) - np.mean(nll) ** 2)) / (len(nll) - 1))
