"""Perplexity: of a causal model, pseudo- of a masked one, conditional of an encoder-decoder; and bits per byte."""

from __future__ import annotations

__all__ = ["CausalLikelihoods", "ConditionalLikelihoods", "MaskedLikelihoods", "planned_windows"]

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.corpora.prompts import TextTask
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.requests.masked import Piece, cut_pieces, masked_requests
from pytest_lmgate.data.requests.pairs import Pair, encode_pairs, pair_requests
from pytest_lmgate.data.requests.windows import WindowPlan, plan_windows, window_requests
from pytest_lmgate.data.tokenization.long_texts import TextSizes
from pytest_lmgate.data.tokenization.tokens import Streams, TokenizerFacts, tokenize
from pytest_lmgate.engine.scoring import score
from pytest_lmgate.errors import DataError, ModelError, ProtocolError
from pytest_lmgate.evaluate.measurements.likelihoods import (
    TokenLikelihoods,
    counted,
    digest_of_targets,
    targets_of_rows,
)
from pytest_lmgate.evaluate.measurements.measurement import AtLeast, Bench, addressed, digest_of, require
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import MaskedRequest

# Raise a number whenever the code that measures may give another result.
_CAUSAL, _MASKED, _CONDITIONAL = "token-nll/7", "pseudo-nll/5", "conditional-nll/3"


@dataclass(frozen=True)
class CausalLikelihoods(TokenLikelihoods):
    """NLLs of a text's tokens under a causal model."""

    data: Corpus
    asked: Protocol

    def __post_init__(self) -> None:
        require(self.model, self.metric, "score", "causal")

    @cached_property
    def windowing(self) -> Windowing:
        """The protocol with every number filled in."""
        return self.asked.windowing(self.model.context, model=self.model.name)

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the NLLs, which do not depend on the unit."""
        return addressed(_CAUSAL, self.model, data=self.data.digest, protocol=self.windowing.signature)

    def measure(self, bench: Bench) -> LikelihoodStatistics | AtLeast:
        """Score every target of the plan, or so many that the value is certain to be above `Bench.stop_above`."""
        runner = bench.runner(self.model)
        streams, plan = planned_windows(self.data, self.windowing, runner.tokenizer, self.model.name)
        job = bench.job(self.model.name, self.data.name, self.model.batch_size)
        counts = counted(streams.sizes)
        sizes = {"token": int(plan.targets.sum()), "word": counts["words"].sum(), "char": counts["chars"].sum()}
        sizes["byte"] = sizes["bits_per_byte"] = counts["utf8_bytes"].sum()
        of_unit, limit = int(sizes[self.asked.unit]), bench.stop_above
        if limit is not None and self._average == "token":
            # NLLs are not negative, so a partial sum that is above the limit stays above it.
            job = replace(job, stop_when=lambda nll: self._value(nll / of_unit) > limit)
        found = score(runner, window_requests(streams, plan, self.data.name), job)
        if not found.is_whole:
            return AtLeast(self._value(found.total / of_unit), of_unit)
        return LikelihoodStatistics(
            nll=found.nll if found.is_double else found.nll.astype(np.float32),
            window_targets=plan.targets,
            window_document=plan.document,
            **counts,
            running_text=not self.windowing.by_document,
            row_targets=targets_of_rows(plan, streams, self.data, by_document=self.windowing.by_document),
            targets=digest_of_targets(streams.ids),
        )

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens of all windows."""
        streams, plan = planned_windows(self.data, self.windowing, tokenizer, self.model.name)
        return window_requests(streams, plan, self.data.name).tokens

    def bound(self, found: AtLeast) -> Score:
        """Make the lower bound in the unit asked for, which its details say."""
        counted = "byte" if self.asked.unit == "bits_per_byte" else self.asked.unit
        details = {"at_least": True}
        return Score(
            found.value, metric=self.metric, n=found.n, unit=counted, signature=self.signature, details=details
        )

    def score(self, statistics: LikelihoodStatistics) -> Score:
        """Make the perplexity in the unit asked for."""
        return METRICS[self.metric].score(
            statistics,
            signature=self.signature,
            unit=self.asked.unit,
            average=self._average,
            iid=self.windowing.convention.iid,
            metric=self.metric,
        )

    @property
    def _average(self) -> str:
        return self.asked.average or self.windowing.average

    @property
    def signature(self) -> Signature:
        """How the text is read, and what the value is per."""
        own = ("average", self._average), ("unit", self.asked.unit), ("version", __version__)
        return self.windowing.signature.plus(*own)

    def _value(self, mean: float) -> float:
        if self.asked.unit == "bits_per_byte":
            return mean / math.log(2)
        return math.exp(mean) if mean < 709 else math.inf


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
        return addressed(_MASKED, self.model, data=self.data.digest, protocol=f"max_length:{self.max_length}")

    def measure(self, bench: Bench) -> LikelihoodStatistics:
        """Score every token, masked."""
        runner, name = bench.runner(self.model), self.model.name
        texts, pieces = self._pieces(runner.tokenizer)
        targets = np.array([len(piece.targets) for piece in pieces])
        documents = np.array([piece.document for piece in pieces])
        job = bench.job(name, self.data.name, self.model.batch_size)
        found = score(runner, masked_requests(pieces, runner.tokenizer, self.data.name), job)
        return LikelihoodStatistics(
            nll=found.nll,
            window_targets=targets,
            window_document=documents,
            **counted([TextSizes.of((text,)) for text in texts]),
            running_text=self.data.is_one_text,
            row_targets=(None if self.data.is_one_text else np.bincount(documents, weights=targets).astype(np.int64)),
            targets=digest_of_targets([piece.ids for piece in pieces]),
        )

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens of all masked copies."""
        return masked_requests(self._pieces(tokenizer)[1], tokenizer, self.data.name).tokens

    def score(self, statistics: LikelihoodStatistics) -> Score:
        """Make the pseudo-perplexity."""
        return METRICS[self.metric].score(statistics, signature=self.signature, metric=self.metric)

    @property
    def max_length(self) -> int | None:
        """Tokens that a piece may have, special ones included; None for no limit."""
        return self.asked.max_length or self.model.context

    @property
    def signature(self) -> Signature:
        """How the text is read, and what the value is per."""
        return Signature(
            [("masked", None), ("max_length", str(self.max_length)), ("unit", "token"), ("version", __version__)]
        )

    def _pieces(self, tokenizer: TokenizerFacts) -> tuple[list[str], list[Piece]]:
        texts = [row for row in self.data.rows if row.strip()]
        return texts, cut_pieces(texts, tokenizer, self.max_length, model=self.model.name, dataset=self.data.name)


@dataclass(frozen=True)
class ConditionalLikelihoods(TokenLikelihoods):
    """NLLs of the tokens of each target, its EOS included, given its source, under an encoder-decoder model.

    Words, bytes and characters, for the units that count them, are those of the targets.

    Raises:
        ProtocolError: The protocol asks for more than a unit: sources and targets are not cut into windows.
    """

    data: TextTask
    asked: Protocol

    def __post_init__(self) -> None:
        require(self.model, self.metric, "score", "encoder-decoder")
        said = [
            "protocol" if each.name == "name" else each.name
            for each in fields(Protocol)
            if each.name != "unit" and getattr(self.asked, each.name) != each.default
        ]
        if said:
            raise ProtocolError(
                f"{', '.join(said)}: the encoder-decoder model {self.model.name!r} reads each source and target whole; "
                "its conditional perplexity takes unit= only"
            )

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the NLLs, which do not depend on the unit."""
        return addressed(_CONDITIONAL, self.model, **self.model.writing(), pairs=self.identity["data"])

    @cached_property
    def identity(self) -> dict[str, str]:
        """Sources and targets."""
        return {"data": digest_of([self.data.prompts, self.target_texts])}

    @property
    def signature(self) -> Signature:
        """What is scored, and what the value is per."""
        return Signature(
            [("conditional", None), ("target", "first reference"), ("unit", self.asked.unit), ("version", __version__)]
        )

    def measure(self, bench: Bench) -> LikelihoodStatistics:
        """Score every target."""
        runner, model, name = bench.runner(self.model), self.model, self.data.name
        pairs = self._pairs(runner.tokenizer)
        found = score(runner, pair_requests(pairs, name), bench.job(model.name, name, model.batch_size))
        lengths = np.array([len(pair.target) for pair in pairs])
        return LikelihoodStatistics(
            nll=found.nll,
            window_targets=lengths,
            window_document=np.arange(len(pairs)),
            **counted([TextSizes.of((text,)) for text in self.target_texts]),
            running_text=False,
            row_targets=lengths,
            targets=digest_of_targets([pair.target for pair in pairs]),
        )

    def score(self, statistics: LikelihoodStatistics) -> Score:
        """Make the perplexity in the unit asked for."""
        return METRICS[self.metric].score(
            statistics, signature=self.signature, unit=self.asked.unit, metric=self.metric
        )

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens of all sources and targets."""
        return pair_requests(self._pairs(tokenizer), self.data.name).tokens

    def _pairs(self, tokenizer: TokenizerFacts) -> list[Pair]:
        if not any(text.strip() for text in self.target_texts):
            raise DataError(f"dataset {self.data.name!r}: expected references with text, got none: all are blank")
        return encode_pairs(
            tokenizer,
            self.data.prompts,
            self.target_texts,
            model=self.model.name,
            dataset=self.data.name,
            context=self.model.context,
        )

    @property
    def target_texts(self) -> list[str]:
        """The text of each row that is scored."""
        return [references[0] for references in self.data.references]


def planned_windows(
    corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts, model: str
) -> tuple[Streams, WindowPlan]:
    """Tokenize a corpus and plan its windows.

    Raises:
        DataError: No target would be scored, or white space only.
        ModelError: The protocol needs a token that the tokenizer does not have.
    """
    streams = tokenize(corpus, windowing, tokenizer, model=model)
    plan = plan_windows(windowing, streams.lengths, adds_bos=tokenizer.adds_bos)
    windows = zip(plan.document, plan.first, plan.end, strict=True)
    scored = (np.unique(streams.ids[document][first:end]) for document, first, end in windows)
    try:
        is_blank = not any(tokenizer.decode(token).strip() for ids in scored for token in ids.tolist())
    except ModelError:  # a tokenizer of the user's that does not decode; texts without a letter were refused before
        is_blank = False
    if is_blank:
        raise DataError(
            f"dataset {corpus.name!r}: no target to score under {windowing.signature} that is not white space: "
            "expected at least one row of two tokens or more"
        )
    return streams, plan
