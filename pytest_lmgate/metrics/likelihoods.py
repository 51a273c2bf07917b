"""Perplexity, bits per byte and accuracy from log-likelihoods: every unit, average and variant; no model.

``PPL = exp(sum NLL / N)`` with N the targets scored; NLL in nats. Per word, byte and character the sum is divided by
the part of the original text that the targets cover; ``bits_per_byte = sum NLL / (ln 2 * UTF-8 bytes)``. Where the
targets lie, and in which clusters they are added up, is a `TargetLayout`.

Of choices, ``acc`` takes the one with the highest log-likelihood, ``acc_norm`` the highest per character and
``acc_bytes`` the highest per UTF-8 byte, as lm-evaluation-harness 0.4.13 does under these names
(``ConfigurableTask.process_results``); the lowest index wins ties. Log-likelihoods that differ by less than 1e-6 of
their size, the rounding of float32, are a tie: which of them is larger would depend on the batch and the processor.
Characters are Unicode code points of the choice alone: the delimiter before it is scored but not counted. Figures
called normalized elsewhere may be per token, which depends on the tokenizer: of one model on one file, 49.5% are right
per character and per byte, 50.5% per token.

A row with one target instead of choices is right if greedy decoding would write the target, and has a perplexity by
row: ``exp(-mean log-likelihood)``, the harness's ``acc`` and ``perplexity`` of tasks such as lambada. It is no
perplexity per token: a target of two tokens counts as one of one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.stats.means import ClusteredMean, merged_rows, noisy_mean, window_blocks
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers

_AT_ONCE = 2**20  # targets that are copied at a time


@dataclass(frozen=True, kw_only=True)
class TargetLayout:
    """The places of a measurement's targets, window after window."""

    window_targets: Ints  # targets of each window, shape ``[windows]``
    window_document: Ints  # document of each window, shape ``[windows]``, not decreasing
    running_text: bool  # whether the rows were read as one text
    # Targets of each row in the order of the text, shape ``[rows]``, with the same total as the windows'. None if the
    # text has no rows.
    row_targets: Ints | None = None
    targets: str = ""  # digest of the targets: measurements with the same digest are of the same tokens

    @property
    def has_rows(self) -> bool:
        """Whether at least two rows have targets; a single row is a text without rows."""
        return self._sizes_of_rows(by_window=False) is not None

    @property
    def clusters(self) -> tuple[int, str]:
        """The number of clusters for the noise, and their kind: ``rows`` or ``blocks``."""
        counts = self.of_targets(np.zeros(int(self.window_targets.sum())))[1]
        return int((counts > 0).sum()), "rows" if self.has_rows else "blocks"

    def window_sums(self, values: NDArray[np.floating]) -> Floats:
        """Sum a number per target in each window, in float64; shape ``[windows]``."""
        return _run_sums(values, self.window_targets)

    def mean(self, values: Floats) -> ClusteredMean:
        """Return the mean of a number per target, and its noise between clusters."""
        return noisy_mean(*self.of_targets(values), rows=self.has_rows)

    def sample(self, values: NDArray[np.floating], scale: Scale, *, by_window: bool = False) -> Sample:
        """Return the sums by cluster of a number per target, ``[targets]``, or of its mean in each window."""
        windows, rows = self.window_targets, self._sizes_of_rows(by_window=by_window)
        if by_window:
            values, windows = self.window_sums(values) / windows, np.ones_like(windows)
        sums, counts = _summed(values, windows, rows)
        by_row = None if rows is None else _by_row(values, rows)
        identity = {"targets": self.targets}
        return Sample(sums[:, None], counts, scale, identity=identity, rows=by_row is not None, by_row=by_row)

    def rows_of(self) -> Ints | None:
        """Return the row of each target, shape ``[targets]``; None if the text has no rows."""
        if not self.has_rows or self.row_targets is None:
            return None
        return np.repeat(np.arange(len(self.row_targets), dtype=np.int64), self.row_targets)

    def of_targets(self, values: NDArray[np.floating]) -> tuple[Floats, Ints]:
        """Sum a number per target, ``[targets]``, by cluster, at most 512; return the sums and numbers of targets."""
        return _summed(values, self.window_targets, self._sizes_of_rows(by_window=False))

    def _sizes_of_rows(self, *, by_window: bool) -> Ints | None:
        """Return the number of targets (or windows) of each row; None if fewer than two rows have any.

        A window belongs to the row of its first target.
        """
        sizes = self.row_targets
        if sizes is not None and by_window:
            first = np.cumsum(self.window_targets) - self.window_targets
            rows = np.searchsorted(np.cumsum(sizes), first, side="right")
            sizes = np.bincount(rows, minlength=len(sizes)).astype(np.int64)
        return None if sizes is None or int((sizes > 0).sum()) < 2 else sizes


def _by_row(values: NDArray[np.floating], sizes: Ints) -> ByRow:
    sums = np.zeros(len(sizes))
    for some, within in _in_groups(sizes):
        rows = np.repeat(np.arange(some.stop - some.start), sizes[some])
        sums[some] = np.bincount(rows, weights=values[within], minlength=some.stop - some.start)
    return ByRow(sums[:, None], sizes, np.arange(len(sizes), dtype=np.int64))


def _summed(values: NDArray[np.floating], windows: Ints, rows: Ints | None) -> tuple[Floats, Ints]:
    """Sum numbers by clusters of rows, or else by blocks of windows, given the size of each row or window."""
    if rows is None:
        return _grouped(_run_sums(values, windows), windows, window_blocks(windows))
    rows = rows[rows > 0]
    return _grouped(_run_sums(values, rows), rows, merged_rows(rows))


def _run_sums(values: NDArray[np.floating], lengths: Ints) -> Floats:
    """Sum consecutive non-empty runs of values, in float64."""
    sums = np.empty(len(lengths))
    for runs, within in _in_groups(lengths):
        begins = np.cumsum(lengths[runs]) - lengths[runs]
        sums[runs] = np.add.reduceat(values[within].astype(np.float64), begins)
    return sums


def _in_groups(lengths: Ints) -> Iterator[tuple[slice, slice]]:
    """Return slices of consecutive runs and of their values, a few at a time."""
    ends = np.cumsum(lengths)
    group = ends // _AT_ONCE
    runs = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(lengths)]
    for first, last in pairwise(runs):
        yield slice(first, last), slice(int(ends[first] - lengths[first]), int(ends[last - 1]))


def _grouped(sums: Floats, counts: Ints, clusters: Ints) -> tuple[Floats, Ints]:
    total = np.bincount(clusters, weights=sums).astype(np.float64)
    return total, np.bincount(clusters, weights=counts).astype(np.int64)


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
        return words_of_share(float(self.lost.sum() / self.chars.sum()))


def words_of_share(share: float) -> str:
    """Return a share of lost characters in words; empty for none."""
    return f"{share:.2%}" if share >= 1e-4 else f"{share:.1g}" if share else ""


def lost_words(model: str, share: str) -> str:
    return (
        f"the tokenizer of {model!r} does not give the text back: decode(encode(text)) loses {share} of its "
        "characters, which the model need not predict"
    )


def perplexity(
    statistics: LikelihoodStatistics,
    *,
    signature: Signature,
    unit: str = "token",
    average: str = "token",
    iid: bool = False,
    metric: str = "ppl",
    model: str = "",
) -> Score:
    """Return perplexity per ``token``, ``word``, ``byte`` or ``char``, or ``bits_per_byte``.

    The average ``window`` is the exp of the unweighted mean of the windows' means. The interval is ``exp(m +- t se)``,
    the standard error that of the delta method; `iid` adds llama.cpp's, for independent tokens, to the details. The
    ``hint`` among these names the model if its tokenizer loses part of the text, for which the model is not charged.
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
    if statistics.lost is not None and (share := statistics.lost_share):
        details["hint"] = lost_words(model, share)
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


CHOICE_VARIANTS = ("acc", "acc_norm", "acc_bytes")
# The log-likelihood of a text of 24 tokens, alone and in a batch: 2e-7 of it at most, over 29 architectures in float32.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ChoiceStatistics:
    """Statistics of a multiple-choice measurement, for all choices of all rows in order."""

    log_likelihood: Floats  # nats, shape ``[choices]``
    chars: Ints  # length of each choice in code points, shape ``[choices]``
    utf8_bytes: Ints  # length of each choice in bytes, shape ``[choices]``
    counts: Ints  # choices of each row, shape ``[rows]``
    right: NDArray[np.bool_]  # whether each choice is a right one, shape ``[choices]``


@dataclass(frozen=True)
class ContinuationStatistics:
    """Statistics of what follows questions: one target a row, or all choices of all rows in order."""

    log_likelihood: Floats  # nats, shape ``[continuations]``
    # whether each token of a target is the most likely one, shape ``[rows]``; None if the engine does not say so
    greedy: NDArray[np.bool_] | None
    # share of the characters that the tokens do not give back, in words, with a digest of the tokens; empty for none
    lost: str = ""


def accuracy(
    statistics: ChoiceStatistics | ContinuationStatistics,
    *,
    signature: Signature,
    variant: str = "acc",
    clusters: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Score:
    """Return the share of rows whose most likely choice is a right one, or whose target is the greedy text, 0 to 1.

    The `clusters` are labels of rows that are not independent; by default each row is a cluster. With `groups`, labels
    of rows too, the shares of all groups are averaged instead of the rows.
    """
    _require_finite("accuracy", statistics)
    if isinstance(statistics, ContinuationStatistics):
        assert statistics.greedy is not None
        by_variant = {"acc": statistics.greedy.astype(np.float64)}
    else:
        by_variant = {name: correct(statistics, name) for name in CHOICE_VARIANTS}
    right = by_variant[variant]
    by_row = ByRow(right[:, None], np.ones(len(right), dtype=np.int64), cluster_numbers(clusters, len(right)))
    scale = Scale("higher", lowest=0, highest=1, of_rows=True)
    sample = Sample.of_means(by_row, scale, right_or_wrong=True, groups=groups)
    noise, made = sample.noise(), sample.outcomes
    assert made is not None
    return Score(
        noise.mean,
        metric="accuracy",
        unit="row",
        direction="higher",
        n=len(right),
        stderr=noise.stderr,
        interval=sample.interval,
        signature=signature,
        details={name: made.share(values) for name, values in by_variant.items()},
        sample=sample,
    )


def target_perplexity(
    statistics: ContinuationStatistics, *, signature: Signature, clusters: Sequence[Hashable] | None = None
) -> Score:
    """Return ``exp(-mean log-likelihood)`` over rows, each of one target."""
    _require_finite("target_ppl", statistics)
    nll = -statistics.log_likelihood[:, None]
    by_row = ByRow(nll, np.ones(len(nll), dtype=np.int64), cluster_numbers(clusters, len(nll)))
    scale = Scale("lower", exponential=True, lowest=1, of_rows=True)
    sample = Sample.of_means(by_row, scale)
    if statistics.lost:
        sample = replace(sample, identity={"lost text": statistics.lost})
    noise = sample.noise()
    value = scale.value(noise.mean)
    return Score(
        value,
        metric="target_ppl",
        unit="row",
        n=len(nll),
        stderr=None if noise.stderr is None else noise.stderr * value,
        interval=sample.interval,
        signature=signature,
        details={"nll_sum": float(nll.sum())},
        sample=sample,
    )


def _require_finite(metric: str, statistics: ChoiceStatistics | ContinuationStatistics) -> None:
    if len(statistics.log_likelihood) == 0:
        raise MetricInputError(f"{metric}: expected at least one row, got none")
    if not np.isfinite(statistics.log_likelihood).all():
        raise MetricInputError(f"{metric}: expected finite log-likelihoods, got NaN or infinity")


def correct(statistics: ChoiceStatistics, variant: str) -> Floats:
    """Return 1 for each row answered right, else 0; shape ``[rows]``."""
    lengths = {"acc_norm": statistics.chars, "acc_bytes": statistics.utf8_bytes}.get(variant)
    values = statistics.log_likelihood if lengths is None else statistics.log_likelihood / lengths
    begins = np.cumsum(statistics.counts) - statistics.counts
    highest = np.repeat(np.maximum.reduceat(values, begins), statistics.counts)
    ties = np.flatnonzero(values >= highest - _ROUNDING * abs(highest))
    chosen = ties[np.searchsorted(ties, begins)]  # the first of each row's
    right: Floats = statistics.right[chosen].astype(np.float64)
    return right
