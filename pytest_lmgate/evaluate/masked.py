"""Pseudo-perplexity of a masked model."""

from __future__ import annotations

__all__ = ["MaskedLikelihoods"]

from dataclasses import dataclass

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.data.masked import cut_pieces, masked_requests
from pytest_lmgate.engine.scoring import score
from pytest_lmgate.evaluate.likelihoods import TokenLikelihoods, counted, digest_of_targets
from pytest_lmgate.evaluate.measurement import Bench, addressed, require
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.requests import MaskedRequest

# Raise the number whenever the code that measures may give another result.
_KIND = "pseudo-nll/3"


@dataclass(frozen=True)
class MaskedLikelihoods(TokenLikelihoods):
    """NLLs of each token given all others of its row, under a masked model; each row on its own."""

    data: Corpus
    asked: MaskedRequest

    def __post_init__(self) -> None:
        require(self.model, self.metric, "score", "masked")

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the NLLs."""
        return addressed(_KIND, self.model, data=self.data.digest, protocol=f"max_length:{self._max_length}")

    def measure(self, bench: Bench) -> LikelihoodStatistics:
        """Score every token, masked."""
        runner, name = bench.runner(self.model), self.model.name
        texts = [row for row in self.data.rows if row.strip()]
        pieces = cut_pieces(texts, runner.tokenizer, self._max_length, model=name, dataset=self.data.name)
        targets = np.array([len(piece.targets) for piece in pieces])
        documents = np.array([piece.document for piece in pieces])
        job = bench.job(name, self.data.name, self.model.batch_size)
        found = score(runner, masked_requests(pieces, runner.tokenizer, self.data.name), job)
        return LikelihoodStatistics(
            nll=found.nll,
            window_targets=targets,
            window_document=documents,
            **counted(texts),
            running_text=self.data.is_one_text,
            row_targets=(None if self.data.is_one_text else np.bincount(documents, weights=targets).astype(np.int64)),
            targets=digest_of_targets([piece.ids for piece in pieces]),
        )

    def score(self, statistics: LikelihoodStatistics) -> Score:
        """Make the pseudo-perplexity."""
        return METRICS[self.metric].score(statistics, signature=self.signature, metric=self.metric)

    @property
    def _max_length(self) -> int | None:
        return self.asked.max_length or self.model.context

    @property
    def signature(self) -> Signature:
        """How the text is read, and what the value is per."""
        return Signature(
            [("masked", None), ("max_length", str(self._max_length)), ("unit", "token"), ("version", __version__)]
        )
