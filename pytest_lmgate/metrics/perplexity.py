"""Perplexity and bits per byte from per-token negative log-likelihoods: every unit and average, no model.

``PPL = exp(sum NLL / N)`` with N the targets scored; NLL in nats. Per word, byte and character the sum is divided by
the part of the original text that the targets cover; ``bits_per_byte = sum NLL / (ln 2 * UTF-8 bytes)``.
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
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.stats.sample import ByRow, Sample, Scale


@dataclass(frozen=True, kw_only=True)
class LikelihoodStatistics(TargetLayout):
    """Statistics of a likelihood measurement."""

    nll: NDArray[Any]  # nats, shape ``[targets]``, window after window
    words: Ints  # words of each document, shape ``[documents]``
    chars: Ints  # unicode code points of each document, shape ``[documents]``
    utf8_bytes: Ints  # bytes of each document, shape ``[documents]``
    # words, code points and bytes of each document that its targets cover, shape ``[documents, 3]``; None if unknown
    scored: Floats | None = None
    # code points of each document that its tokens do not give back, shape ``[documents]``; None if unknown
    lost: Ints | None = None

    def __post_init__(self) -> None:
        expected = int(self.window_targets.sum())
        if expected == 0 or self.nll.shape != (expected,):
            raise MetricInputError(f"expected an NLL for each of {expected} targets, got {self.nll.size}")

    @property
    def lost_share(self) -> str:
        """The share of the characters that the tokens do not give back, in words; empty if they give all back."""
        if self.lost is None:
            return "an unknown share"
        share = float(self.lost.sum() / self.chars.sum())
        return f"{share:.2%}" if share >= 1e-4 else f"{share:.1g}" if share else ""


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
    targets, sizes = len(statistics.nll), None
    if unit != "token":
        if statistics.scored is None:
            raise MetricInputError(f"expected the sizes of the scored text, which {unit!r} counts, got none")
        sizes = scored_in(unit, statistics.scored)
    size = targets if sizes is None else float(sizes.sum())
    # The noise of a mean over targets, carried to a mean over words or bytes of the same text.
    per_unit = 1.0 if sizes is None else (len(statistics.window_targets) if by_window else targets) / size
    scale = Scale(
        "lower", exponential=not bits, factor=per_unit / math.log(2) if bits else per_unit, lowest=0 if bits else 1
    )
    per_target = 1 / math.log(2) if bits else 1.0
    sample = statistics.sample(statistics.nll, replace(scale, factor=per_unit * per_target), by_window=by_window)
    noise, window_sums = sample.noise(), statistics.window_sums(statistics.nll)
    if sizes is not None and not statistics.running_text and sample.rows:
        # Documents counted in words or bytes pair by document, with any tokenizer that loses no text. They are merged
        # by their whole sizes, which are the same for all tokenizers.
        sums = np.bincount(statistics.window_document, weights=window_sums, minlength=len(sizes)).astype(np.float64)
        whole = {"word": statistics.words, "char": statistics.chars}.get(unit, statistics.utf8_bytes)
        by_row = ByRow(sums[:, None], sizes, np.arange(len(sizes)), whole)
        share = statistics.lost_share
        identity = {"lost text": f"{share} (tokens {statistics.targets[:16]})"} if share else {}
        of_text = replace(scale, factor=per_target)
        sample = Sample(by_row.sums, sizes, of_text, identity=identity, by_row=by_row, of_text=True).merged(whole)
    elif sizes is not None:
        sample = replace(sample, by_row=None)  # how many words or bytes a row has was not measured
    value, bounds = scale.value(noise.mean), noise.bounds(0.975)
    interval = None if bounds is None else scale.within(bounds)
    details: dict[str, Any] = {
        "nll_sum": float(window_sums.sum()),
        "targets": targets,
        "clusters": noise.clusters,
        "df": noise.df,
    }
    if statistics.scored is not None:
        words, chars, utf8_bytes = statistics.scored.sum(0).round().astype(int).tolist()
        details |= {"words": words, "chars": chars, "bytes": utf8_bytes}
    if iid:
        details["stderr_iid"] = value * _iid_error(statistics.nll.astype(np.float64))
    return Score(
        value,
        metric=metric,
        unit="byte" if bits else unit,
        n=round(size),
        stderr=None if noise.stderr is None else noise.stderr * scale.factor * (1 if bits else value),
        interval=None if interval is None else (interval.lower, interval.upper),
        signature=signature,
        iid=iid,
        details=details,
        sample=sample,
    )


def scored_in(unit: str, scored: Floats) -> Floats:
    """Return the scored text of each document in a unit, shape ``[documents]``; see `LikelihoodStatistics.scored`."""
    column: Floats = scored[:, {"word": 0, "char": 1}.get(unit, 2)]
    return column


def _iid_error(nll: Floats) -> float:
    """Relative error by llama.cpp's formula, ``sqrt((mean(x^2) - mean(x)^2) / (N - 1))``."""
    if len(nll) < 2:
        return math.nan
    return math.sqrt(max(0.0, float(np.mean(nll**2) - np.mean(nll) ** 2)) / (len(nll) - 1))
