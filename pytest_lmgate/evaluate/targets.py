"""`Targets`: what a score of likelihoods is made of, target by target, with rows and text; no model runs.

The text comes from the dataset and the tokenizer, which an engine may give without loading its model.
"""

from __future__ import annotations

__all__ = ["Shelf", "Targets", "tags_of", "targets_of"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.corpora.tags import Tags
from pytest_lmgate.data.requests.masked import cut_pieces
from pytest_lmgate.data.requests.places import TargetPlaces, places_of_pairs, places_of_pieces, places_of_windows
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.evaluate.evaluator import Evaluator
from pytest_lmgate.evaluate.measurements.divergence import Divergences
from pytest_lmgate.evaluate.measurements.likelihoods import digest_of_targets
from pytest_lmgate.evaluate.measurements.measurement import Measurement
from pytest_lmgate.evaluate.measurements.perplexity import CausalLikelihoods, ConditionalLikelihoods, MaskedLikelihoods
from pytest_lmgate.metrics.targets import TargetLayout
from pytest_lmgate.spec.gates import EvaluationSpec
from pytest_lmgate.spec.requests import ChoiceRequest, TextRequest

OfCorpus = CausalLikelihoods | MaskedLikelihoods | Divergences
Shelf = dict[tuple[str, str, str], TargetPlaces]

_NO_TOKENIZER = "no engine of the two gives its tokenizer without loading the model: tokens and positions are unknown"
_TOO_LARGE = "the dataset does not fit in memory: its tokens and their positions are not told"


@dataclass(frozen=True)
class Targets:
    """The targets of a measurement.

    Attributes:
        layout: Where they lie; its digest says whether two measurements are of the same targets.
        loss: Nats of each target: its NLL, or the divergence there; shape ``[targets]``.
        rows: Row of the dataset that each of the layout's rows is.
        texts: Text of each row of the dataset.
        unplaced: Why `places` is None, where it is.
    """

    layout: TargetLayout
    loss: Floats
    rows: Sequence[int]
    texts: Sequence[str]
    unplaced: str
    _places: Callable[[], TargetPlaces | None]

    @cached_property
    def places(self) -> TargetPlaces | None:
        """Where the targets stand in the texts; None where the text cannot be cut into these very tokens again.

        Raises:
            LmgateError: The tokenizer, or the dataset, cannot be read.
        """
        found = self._places()
        if found is None or len(found.token) != len(self.loss):
            return None
        return found


def targets_of(evaluator: Evaluator, what: EvaluationSpec, shelf: Shelf) -> Targets | None:
    """Return the targets of what the session has evaluated; None where that is not made of the losses of tokens.

    Args:
        evaluator: Has evaluated it.
        what: The evaluation.
        shelf: Keeps the places that were found last, for the next gate on the same targets.
    """
    if isinstance(what.how, TextRequest | ChoiceRequest):
        return None
    measurement, statistics = evaluator.known(what)
    if statistics is None:
        return None
    if isinstance(measurement, ConditionalLikelihoods):
        texts = measurement.target_texts
        every = range(len(texts))
        return _made(measurement, statistics, every, texts, lambda facts: places_of_pairs(texts, facts), shelf)
    if not isinstance(measurement, OfCorpus) or measurement.metric == "top1":
        return None
    data = measurement.data
    rows = _rows(measurement)
    if data.is_on_disk:
        return Targets(statistics, _loss(measurement, statistics), rows, data.rows, _TOO_LARGE, lambda: None)
    return _made(measurement, statistics, rows, data.rows, lambda facts: _places(measurement, facts), shelf)


def tags_of(evaluator: Evaluator, what: EvaluationSpec) -> Tags:
    """Return the tags of the rows that the sample of a score has, by column."""
    if isinstance(what.how, TextRequest | ChoiceRequest):
        return evaluator.resolver.rows(what.dataset).tags
    measurement, _ = evaluator.known(what)
    if not isinstance(measurement, OfCorpus):
        return evaluator.resolver.rows(what.dataset).tags
    rows = _rows(measurement)
    return {column: tuple(tags[row] for row in rows) for column, tags in measurement.data.tags.items()}


def _rows(measurement: OfCorpus) -> Sequence[int]:
    """Return the row of the dataset that each row of the statistics is: where rows are read alone, no blank one."""
    by_document = isinstance(measurement, MaskedLikelihoods) or measurement.windowing.by_document
    return measurement.data.documents if by_document else range(len(measurement.data.rows))


def _places(measurement: OfCorpus, tokenizer: TokenizerFacts) -> TargetPlaces:
    data = measurement.data
    if not isinstance(measurement, MaskedLikelihoods):
        return places_of_windows(data, measurement.windowing, tokenizer)
    texts = [data.rows[row] for row in data.documents]
    pieces = cut_pieces(texts, tokenizer, measurement.max_length, model=measurement.model.name, dataset=data.name)
    return places_of_pieces(texts, pieces, tokenizer)


def _made(
    measurement: Measurement[Any],
    statistics: Any,
    rows: Sequence[int],
    texts: Sequence[str],
    places: Callable[[TokenizerFacts], TargetPlaces],
    shelf: Shelf,
) -> Targets:
    def placed() -> TargetPlaces | None:
        key = (type(measurement).__name__, str(measurement.shared), statistics.targets)
        offers = [model.tokenizer for model in measurement.models if model.tokenizer is not None]
        if key not in shelf and offers:
            found = places(offers[0]())
            if digest_of_targets(found.read) != statistics.targets:
                return None
            shelf.clear()
            shelf[key] = found
        return shelf.get(key)

    return Targets(statistics, _loss(measurement, statistics), rows, texts, _NO_TOKENIZER, placed)


def _loss(measurement: Measurement[Any], statistics: Any) -> Floats:
    loss = statistics.kl if isinstance(measurement, Divergences) else statistics.nll
    return loss.astype(np.float64)  # type: ignore[no-any-return]
