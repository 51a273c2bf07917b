"""`Targets`: what a score of likelihoods is made of, target by target, with rows and text; no model runs.

The text comes from the dataset and the tokenizer, which an engine may give without loading its model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.columns import Tags
from pytest_lmgate.measure.binding import Bound
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.likelihoods import ConditionalLikelihoods, MaskedLikelihoods
from pytest_lmgate.measure.measurement import CausalLikelihoods, Measurement, digest_of_targets
from pytest_lmgate.measure.results import ResultScores, tags_of_rows
from pytest_lmgate.metrics.likelihoods import TargetLayout
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.windows.requests import TargetPlaces, places_of_pairs, places_of_pieces, places_of_windows
from pytest_lmgate.windows.tokens import TokenizerFacts

OfCorpus = CausalLikelihoods | MaskedLikelihoods | Divergences
_OF_TARGETS = get_args(OfCorpus)  # the first may turn out to be conditional
PlacesCache = dict[tuple[str, str, str], TargetPlaces]

UNPLACED = "neither engine gives its tokenizer without loading the model, so its tokens are unknown"


@dataclass(frozen=True)
class Targets:
    """The targets of a measurement."""

    layout: TargetLayout  # their places; its digest identifies the targets
    loss: Floats  # nats of each target: its NLL, or the divergence there; shape ``[targets]``
    rows: Sequence[int]  # row number in the dataset of each of the layout's rows
    texts: Sequence[str]  # text of each row of the dataset
    _places: Callable[[], TargetPlaces | None]

    @cached_property
    def places(self) -> TargetPlaces | None:
        """The places of the targets in the texts; None if the text cannot be tokenized the same way again."""
        found = self._places()
        if found is None or len(found.token) != len(self.loss):
            return None
        return found


def targets_of(evaluator: Evaluator, what: EvaluationSpec | Bound, cache: PlacesCache) -> Targets | None:
    """Return the targets of an evaluation; None if it is not made of losses of tokens.

    The cache keeps the places that were found last, for the next gate on the same targets.
    """
    bound = evaluator.bind(what)
    if bound.measurement not in _OF_TARGETS:
        return None
    measurement, statistics = evaluator.cached_statistics(bound)
    if statistics is None:
        return None
    if isinstance(measurement, ConditionalLikelihoods):
        texts = measurement.data.targets
        every = range(len(texts))
        return _made(measurement, statistics, every, texts, lambda facts: places_of_pairs(texts, facts), cache)
    if not isinstance(measurement, OfCorpus) or measurement.metric == "top1":
        return None
    data = measurement.data
    rows = _rows(measurement)
    return _made(measurement, statistics, rows, data.rows, lambda facts: _places(measurement, facts), cache)


def tags_of(evaluator: Evaluator, what: EvaluationSpec | Bound) -> Tags:
    """Return the tags of the rows in a score's sample, by column."""
    bound = evaluator.bind(what)
    measurement = evaluator.open(bound) if bound.measurement in (*_OF_TARGETS, ResultScores) else None
    if isinstance(measurement, ResultScores):
        return tags_of_rows(measurement.data.rows)
    if not isinstance(measurement, OfCorpus):
        return evaluator.resolver.rows(bound.data).tags
    rows = _rows(measurement)
    return {column: tuple(tags[row] for row in rows) for column, tags in measurement.data.tags.items()}


def _rows(measurement: OfCorpus) -> Sequence[int]:
    """Return the dataset's row number of each row of the statistics: rows that are read alone lack blank ones."""
    by_document = isinstance(measurement, MaskedLikelihoods) or measurement.windowing.rules.by_document
    return measurement.data.documents if by_document else range(len(measurement.data.rows))


def _places(measurement: OfCorpus, tokenizer: TokenizerFacts) -> TargetPlaces:
    data = measurement.data
    if not isinstance(measurement, MaskedLikelihoods):
        return places_of_windows(data, measurement.windowing, tokenizer)
    return places_of_pieces(*measurement.pieces(tokenizer), tokenizer)


def _made(
    measurement: Measurement[Any],
    statistics: Any,
    rows: Sequence[int],
    texts: Sequence[str],
    places: Callable[[TokenizerFacts], TargetPlaces],
    cache: PlacesCache,
) -> Targets:
    def placed() -> TargetPlaces | None:
        key = (type(measurement).__name__, str(measurement.shared), statistics.targets)
        offers = [model.tokenizer for model in measurement.models if model.tokenizer is not None]
        if key not in cache and offers:
            found = places(offers[0]())
            if digest_of_targets(found.read) != statistics.targets:
                return None
            cache.clear()
            cache[key] = found
        return cache.get(key)

    loss = statistics.kl if isinstance(measurement, Divergences) else statistics.nll
    return Targets(statistics, loss.astype(np.float64), rows, texts, placed)
