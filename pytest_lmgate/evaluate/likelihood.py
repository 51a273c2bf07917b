"""Perplexity of a causal model: from source, corpus and protocol to a score."""

from __future__ import annotations

__all__ = [
    "ROWS",
    "decode_likelihoods",
    "digest_of_targets",
    "encode_likelihoods",
    "evaluate_perplexity",
    "targets_of_rows",
]

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.rows import row_targets
from pytest_lmgate.data.tokens import Streams, tokenize
from pytest_lmgate.data.windows import WindowPlan, plan_windows
from pytest_lmgate.errors import DataError
from pytest_lmgate.evaluate.measurements import Measurements, Recipe
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.protocol import Protocol

if TYPE_CHECKING:
    from pytest_lmgate.engine.likelihood import Progress

# Raise the number whenever the code that measures may give another result.
_KIND = "token-nll/5"
_ARRAYS = ("nll", "window_targets", "window_document", "words", "chars", "utf8_bytes")
ROWS = "row_targets"  # only where the text has rows


def evaluate_perplexity(
    measurements: Measurements,
    source: ModelSource,
    corpus: Corpus,
    protocol: Protocol,
    *,
    metric: str,
    stop_above: float | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> tuple[Score, str, bool]:
    """Measure perplexity, or bits per byte.

    Args:
        measurements: Of the session.
        source: A causal model.
        corpus: Rows.
        protocol: How, and in which unit.
        metric: Name of the score.
        stop_above: Stop as soon as the value is certain to be above this; None to measure whole.
        report: Told how far the measurement is.

    Returns:
        The score, the measurement's address, and whether it was there. Where the measurement was stopped, the value is
        a lower bound and ``details["at_least"]`` is set.

    Raises:
        LmgateError: It cannot be measured.
    """
    source.architecture.require(metric, "causal")
    windowing = protocol.windowing(source.architecture.context, model=source.name)
    average = protocol.average or windowing.average
    stop = None
    if stop_above is not None and average == "token":
        stop = _StopRule(stop_above, protocol.unit)
    fingerprint = _fingerprint(source, corpus, windowing)

    def measure(partial: Entry | None, keep: Callable[[Entry], None]) -> LikelihoodStatistics:
        return _measure(measurements, source, corpus, windowing, stop, report, partial, keep)

    recipe = Recipe(f"{source.name} on {corpus.name}", (source,), measure, encode_likelihoods, decode_likelihoods)
    signature = windowing.signature.plus(("average", average), ("unit", protocol.unit), ("version", __version__))
    measurements.expect({"data": corpus.digest, "protocol": signature.compared})
    try:
        statistics, cached = measurements.once(fingerprint, recipe)
    except _Bound as bound:
        counted = "byte" if protocol.unit == "bits_per_byte" else protocol.unit
        score = Score(
            bound.value, metric=metric, n=bound.n, unit=counted, signature=signature, details={"at_least": True}
        )
        return score, fingerprint.address, False
    score = METRICS[metric].score(
        statistics,
        signature=signature,
        unit=protocol.unit,
        average=average,
        iid=windowing.convention.iid,
        metric=metric,
    )
    return score.identified(corpus.digest), fingerprint.address, cached


def _measure(
    measurements: Measurements,
    source: ModelSource,
    corpus: Corpus,
    windowing: Windowing,
    stop: _StopRule | None,
    report: Callable[[Progress], None],
    partial: Entry | None,
    keep: Callable[[Entry], None],
) -> LikelihoodStatistics:
    from pytest_lmgate.engine.likelihood import Checkpointing, Stopped, measure_nll
    from pytest_lmgate.engine.loading import tokenizer_facts

    loaded = measurements.model(source)
    facts = tokenizer_facts(loaded.tokenizer)
    streams = tokenize(corpus, windowing, facts, model=source.name)
    plan = plan_windows(windowing, streams.lengths, adds_bos=facts.adds_bos)
    if len(plan) == 0:
        raise DataError(
            f"dataset {corpus.name!r}: no target to score under {windowing.signature}: expected at least one row "
            "of two tokens or more"
        )
    sizes = {"token": int(plan.targets.sum()), "word": sum(streams.words), "char": sum(streams.chars)}
    sizes["byte"] = sizes["bits_per_byte"] = sum(streams.utf8_bytes)
    try:
        nll = measure_nll(
            loaded,
            streams,
            plan,
            dataset=corpus.name,
            batch_size=source.batch_size,
            report=report,
            remark=measurements.remark,
            stop_when=stop.predicate(sizes) if stop else lambda _: False,
            checkpointing=Checkpointing(
                None if partial is None else partial.arrays.get("nll"), lambda nll: keep(Entry({"nll": nll}))
            ),
        )
    except Stopped as stopped:
        assert stop is not None
        raise stop.bound(stopped.progress.nll, sizes) from None
    return LikelihoodStatistics(
        nll=nll,
        window_targets=plan.targets,
        window_document=plan.document,
        words=np.array(streams.words, dtype=np.int64),
        chars=np.array(streams.chars, dtype=np.int64),
        utf8_bytes=np.array(streams.utf8_bytes, dtype=np.int64),
        running_text=not windowing.by_document,
        row_targets=targets_of_rows(plan, streams, corpus, by_document=windowing.by_document),
        targets=digest_of_targets(streams.ids),
    )


class _Bound(Exception):  # not an error, but the way out of a measurement that already decides
    """What is certain of a measurement that was stopped: its value is at least this."""

    def __init__(self, value: float, n: int) -> None:
        super().__init__(value, n)
        self.value, self.n = value, n


@dataclass(frozen=True)
class _StopRule:
    """NLLs are not negative, so a partial sum that is above the limit stays above it."""

    limit: float
    unit: str

    def predicate(self, sizes: Mapping[str, int]) -> Callable[[float], bool]:
        return lambda nll: self._value(nll / sizes[self.unit]) > self.limit

    def bound(self, nll: float, sizes: Mapping[str, int]) -> _Bound:
        return _Bound(self._value(nll / sizes[self.unit]), sizes[self.unit])

    def _value(self, mean: float) -> float:
        if self.unit == "bits_per_byte":
            return mean / math.log(2)
        return math.exp(mean) if mean < 709 else math.inf


def _fingerprint(source: ModelSource, corpus: Corpus, windowing: Windowing) -> Fingerprint:
    return Fingerprint.of(_KIND, {**source.ingredients, "data": corpus.digest, "protocol": windowing.signature})


def encode_likelihoods(statistics: LikelihoodStatistics) -> Entry:
    """Make of a measurement what is stored."""
    facts = {"running_text": statistics.running_text, "targets": statistics.targets}
    rows = {} if statistics.row_targets is None else {ROWS: statistics.row_targets}
    return Entry({name: getattr(statistics, name) for name in _ARRAYS} | rows, facts)


def decode_likelihoods(entry: Entry) -> LikelihoodStatistics:
    """Make a measurement of what was stored."""
    arrays = {name: entry.arrays[name] for name in (*_ARRAYS, ROWS) if name in entry.arrays or name != ROWS}
    facts = entry.facts
    return LikelihoodStatistics(**arrays, running_text=bool(facts["running_text"]), targets=str(facts["targets"]))


def targets_of_rows(
    plan: WindowPlan, streams: Streams, corpus: Corpus, *, by_document: bool
) -> NDArray[np.int64] | None:
    """Return the targets of each row in the order of the plan, shape ``[rows]``; None where the text has no rows."""
    if corpus.is_one_text:
        return None
    return (
        np.bincount(plan.document, weights=plan.targets).astype(np.int64)
        if by_document
        else row_targets(plan, streams.rows)
    )


def digest_of_targets(texts: Iterable[Sequence[int] | NDArray[np.int64]]) -> str:
    """Return the SHA-256 of token ids, text by text: measurements with the same one are of the same targets."""
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(b"%d\n" % len(ids))
        digest.update(np.asarray(ids, dtype="<i8").tobytes())
    return digest.hexdigest()
