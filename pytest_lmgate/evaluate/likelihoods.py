"""NLLs of tokens as a measurement: what perplexity, pseudo-perplexity and conditional perplexity share."""

from __future__ import annotations

__all__ = ["ROWS", "TokenLikelihoods", "counted", "digest_of_targets", "targets_of_rows"]

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.cache.store import Entry
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.data.rows import row_targets
from pytest_lmgate.data.tokens import Streams
from pytest_lmgate.data.windows import WindowPlan
from pytest_lmgate.evaluate.measurement import Measurement
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics

_ARRAYS = ("nll", "window_targets", "window_document", "words", "chars", "utf8_bytes")
ROWS = "row_targets"  # only where the text has rows


class TokenLikelihoods(Measurement[LikelihoodStatistics]):
    """How NLLs of tokens are stored."""

    def encode(self, statistics: LikelihoodStatistics) -> Entry:
        """Make of the statistics what is stored."""
        facts = {"running_text": statistics.running_text, "targets": statistics.targets}
        rows = {} if statistics.row_targets is None else {ROWS: statistics.row_targets}
        return Entry({name: getattr(statistics, name) for name in _ARRAYS} | rows, facts)

    def decode(self, entry: Entry) -> LikelihoodStatistics:
        """Make statistics of what was stored."""
        arrays = {name: entry.arrays[name] for name in (*_ARRAYS, ROWS) if name in entry.arrays or name != ROWS}
        facts = entry.facts
        return LikelihoodStatistics(**arrays, running_text=bool(facts["running_text"]), targets=str(facts["targets"]))


def counted(texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the words, code points and bytes of each text, as the units of a perplexity count them."""
    return {
        "words": np.array([len(re.split(r"\s+", text)) for text in texts]),
        "chars": np.array([len(text) for text in texts]),
        "utf8_bytes": np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts]),
    }


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
        digest.update(np.asarray(ids, dtype="<i8").tobytes())
    return digest.hexdigest()
