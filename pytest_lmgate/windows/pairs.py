"""Sources and targets for encoder-decoder models, each with the special tokens that the tokenizer gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.prompts import Prompt
from pytest_lmgate.errors import DataError
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptEncoder, TokenizerFacts


@dataclass(frozen=True)
class Pair:
    """A row: token ids that the encoder reads, ``[source tokens]``, and those that are scored, ``[target tokens]``."""

    source: Ints
    target: Ints


def encode_pairs(
    tokenizer: TokenizerFacts,
    sources: Sequence[Prompt],
    targets: Sequence[str],
    *,
    model: str,
    dataset: str,
    context: int | None,
) -> list[Pair]:
    """Tokenize one source and one target for each row; `context` limits the tokens of each."""
    encoder = PromptEncoder(
        tokenizer, model, dataset, context, f"context {context}", "; shorten it", encodes_whole=True
    )
    pairs = []
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        labels = list(tokenizer.encode_target(target))
        if not labels:
            raise DataError(f"dataset {dataset!r}: row {row}: expected a target, got one without a token")
        if context is not None and len(labels) > context:
            raise DataError(
                f"dataset {dataset!r}: row {row}: the target has {len(labels):,} tokens, but the model "
                f"{model!r} can write {context:,}; shorten it"
            )
        pairs.append(Pair(np.array(encoder.encode(source, row)), np.array(labels)))
    return pairs


def pair_requests(pairs: Sequence[Pair], dataset: str) -> Requests:
    counts = np.array([len(pair.target) for pair in pairs])
    lengths = counts + np.array([len(pair.source) for pair in pairs])

    def describe(some: Sequence[int]) -> str:
        more = f", and {len(some) - 1} more" if len(some) > 1 else ""
        return f"row {some[0]}, {lengths[some[0]]:,} tokens{more}"

    return Requests(
        lengths=lengths,
        counts=counts,
        highest=max(int(max(pair.source.max(), pair.target.max())) for pair in pairs),
        make=lambda row: Request(pairs[row].target, np.arange(counts[row]), pairs[row].target, pairs[row].source),
        key=lambda row: ((pairs[row].source.tobytes(), pairs[row].target.tobytes()), None),
        describe=describe,
        where=lambda row, target: f"target token {target:,} in row {row} of {dataset!r}",
    )
