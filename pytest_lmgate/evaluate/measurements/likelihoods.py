"""Measurements of targets: what perplexity, pseudo-perplexity, conditional perplexity and divergence share."""

from __future__ import annotations

__all__ = ["TargetMeasurement", "TokenLikelihoods", "counted", "digest_of_targets", "targets_of_rows"]

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.cache.store import Entry
from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.requests.windows import WindowPlan
from pytest_lmgate.data.tokenization.long_texts import TextSizes
from pytest_lmgate.data.tokenization.rows import row_targets
from pytest_lmgate.data.tokenization.tokens import Streams
from pytest_lmgate.evaluate.measurements.measurement import Measurement
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics

_AT_ONCE = 2**20  # token ids that are hashed at a time
_FACTS = ("running_text", "targets")
S = TypeVar("S", LikelihoodStatistics, DivergenceStatistics)


class TargetMeasurement(Measurement[S]):
    """A measurement of targets, stored field by field: arrays as arrays, the rest as facts."""

    kept: ClassVar[type[Any]]

    def encode(self, statistics: S) -> Entry:
        """Return what to store of the statistics."""
        held = {each.name: getattr(statistics, each.name) for each in fields(statistics)}
        arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
        return Entry(arrays, {name: held[name] for name in _FACTS})

    def decode(self, entry: Entry) -> S:
        """Return the statistics that were stored; only a text of rows has ``row_targets``."""
        names = [each.name for each in fields(self.kept) if each.name not in _FACTS]
        arrays = {name: entry.arrays[name] for name in names if name in entry.arrays or name != "row_targets"}
        facts = {"running_text": bool(entry.facts["running_text"]), "targets": str(entry.facts["targets"])}
        statistics: S = self.kept(**arrays, **facts)
        return statistics


class TokenLikelihoods(TargetMeasurement[LikelihoodStatistics]):
    """A measurement of the NLLs of tokens."""

    kept = LikelihoodStatistics


def counted(sizes: Sequence[TextSizes]) -> dict[str, NDArray[np.int64]]:
    """Return the words, code points and bytes of each text, as the units of a perplexity count them."""
    names = [each.name for each in fields(TextSizes)]
    return {name: np.array([getattr(size, name) for size in sizes], dtype=np.int64) for name in names}


def targets_of_rows(
    plan: WindowPlan, streams: Streams, corpus: Corpus, *, by_document: bool
) -> NDArray[np.int64] | None:
    """Return the targets of each row in the order of the plan, shape ``[rows]``; None where the text has no rows."""
    if corpus.is_one_text:
        return None
    if by_document:
        return np.bincount(plan.document, weights=plan.targets).astype(np.int64)
    return row_targets(plan, streams.rows)


def digest_of_targets(texts: Iterable[Sequence[int] | NDArray[np.int64]]) -> str:
    """Return the SHA-256 of token ids, text by text: measurements with the same one are of the same targets."""
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(b"%d\n" % len(ids))
        for begin in range(0, len(ids), _AT_ONCE):
            digest.update(np.asarray(ids[begin : begin + _AT_ONCE], dtype="<i8").tobytes())
    return digest.hexdigest()
