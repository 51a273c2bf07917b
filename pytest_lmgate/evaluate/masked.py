"""Pseudo-perplexity of a masked model."""

from __future__ import annotations

__all__ = ["evaluate_pseudo_perplexity"]

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.evaluate.likelihood import decode_likelihoods, digest_of_targets, encode_likelihoods
from pytest_lmgate.evaluate.measurements import Measurements, Recipe
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.requests import MaskedRequest

if TYPE_CHECKING:
    from pytest_lmgate.engine.likelihood import Progress
    from pytest_lmgate.engine.masked import Piece

_KIND = "pseudo-nll/3"


def evaluate_pseudo_perplexity(
    measurements: Measurements,
    source: ModelSource,
    corpus: Corpus,
    request: MaskedRequest,
    *,
    metric: str,
    report: Callable[[Progress], None] = lambda _: None,
) -> tuple[Score, str, bool]:
    """Measure ``exp(-1/N sum log P(t_i | all other tokens))``, each row on its own.

    Returns:
        The score, the measurement's address, and whether it was there.

    Raises:
        LmgateError: It cannot be measured.
    """
    source.architecture.require(metric, "masked")
    max_length = request.max_length or source.architecture.context
    how = f"max_length:{max_length}"
    fingerprint = Fingerprint.of(_KIND, {**source.ingredients, "data": corpus.digest, "protocol": how})

    def measure(partial: Entry | None, keep: Callable[[Entry], None]) -> LikelihoodStatistics:
        from pytest_lmgate.engine.likelihood import Checkpointing
        from pytest_lmgate.engine.masked import cut_pieces, measure_pseudo_nll

        loaded = measurements.model(source)
        texts = [row for row in corpus.rows if row.strip()]
        pieces = cut_pieces(texts, loaded.tokenizer, max_length, model=source.name, dataset=corpus.name)
        nll = measure_pseudo_nll(
            loaded,
            pieces,
            dataset=corpus.name,
            batch_size=source.batch_size,
            report=report,
            remark=measurements.remark,
            checkpointing=Checkpointing(
                None if partial is None else partial.arrays["nll"], lambda nll: keep(Entry({"nll": nll}))
            ),
        )
        return LikelihoodStatistics(
            nll=nll,
            window_targets=np.array([len(piece.targets) for piece in pieces]),
            window_document=np.array([piece.document for piece in pieces]),
            words=np.array([len(re.split(r"\s+", text)) for text in texts]),
            chars=np.array([len(text) for text in texts]),
            utf8_bytes=np.array([len(text.encode()) for text in texts]),
            running_text=corpus.is_one_text,
            row_targets=None if corpus.is_one_text else _targets_of_rows(pieces),
            targets=digest_of_targets([piece.ids for piece in pieces]),
        )

    recipe = Recipe(f"{source.name} on {corpus.name}", (source,), measure, encode_likelihoods, decode_likelihoods)
    signature = Signature(
        [("masked", None), ("max_length", str(max_length)), ("unit", "token"), ("version", __version__)]
    )
    measurements.expect({"data": corpus.digest, "protocol": signature.compared})
    statistics, cached = measurements.once(fingerprint, recipe)
    score = METRICS[metric].score(statistics, signature=signature, metric=metric)
    return score.identified(corpus.digest), fingerprint.address, cached


def _targets_of_rows(pieces: Sequence[Piece]) -> NDArray[np.int64]:
    """Return the targets of each row, shape ``[rows]``; rows without a token have none."""
    return np.bincount([piece.document for piece in pieces], weights=[len(piece.targets) for piece in pieces]).astype(
        np.int64
    )
