"""Divergence of a causal model from its reference: one measurement, from which every statistic is made."""

from __future__ import annotations

__all__ = ["DivergenceFound", "evaluate_divergence"]

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.tokens import Streams, tokenize
from pytest_lmgate.data.windows import plan_windows
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.evaluate.likelihood import ROWS, digest_of_targets, targets_of_rows
from pytest_lmgate.evaluate.measurements import Measurements, Recipe
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.spec.requests import DivergenceRequest

if TYPE_CHECKING:
    from pytest_lmgate.engine.likelihood import Progress
    from pytest_lmgate.engine.loading import LoadedModel

# Raise the number whenever the code that measures may give another result.
_KIND = "divergence/6"
_MEASURED = ("kl", "dp", "same_top", "nll_p", "nll_q")
_ARRAYS = (*_MEASURED, "window_targets", "window_document")


class DivergenceFound(NamedTuple):
    """A measurement of two models.

    Attributes:
        statistics: What was measured.
        signature: How.
        iid: Whether the protocol's own program prints errors that take tokens as independent.
        address: Of the measurement.
        cached: Whether it came from the cache.
    """

    statistics: DivergenceStatistics
    signature: Signature
    iid: bool
    address: str
    cached: bool


def evaluate_divergence(
    measurements: Measurements,
    source: ModelSource,
    reference: ModelSource,
    corpus: Corpus,
    request: DivergenceRequest,
    *,
    metric: str,
    report: Callable[[Progress], None] = lambda _: None,
) -> DivergenceFound:
    """Measure KL(reference || model), probabilities and the most likely token at every target.

    Args:
        measurements: Of the session.
        source: The candidate, a causal model.
        reference: What it is compared with, likewise.
        corpus: Rows.
        request: How.
        metric: Name of the score, for messages.
        report: Told how far the measurement is.

    Returns:
        The measurement.

    Raises:
        LmgateError: It cannot be measured.
    """
    for each in (source, reference):
        each.architecture.require(metric, "causal")
    # Both read the same windows, so that neither is asked for more than it can read.
    shorter = min((source, reference), key=lambda each: each.architecture.context or float("inf"))
    windowing = request.protocol.windowing(shorter.architecture.context, model=shorter.name)
    fingerprint = Fingerprint.of(
        _KIND,
        {
            **{f"candidate/{key}": value for key, value in source.ingredients.items()},
            **{f"reference/{key}": value for key, value in reference.ingredients.items()},
            "data": corpus.digest,
            "protocol": windowing.signature,
        },
    )

    def measure(partial: Entry | None, keep: Callable[[Entry], None]) -> DivergenceStatistics:
        return _measure(measurements, source, reference, corpus, windowing, report, partial, keep)

    recipe = Recipe(
        f"{source.name} against {reference.name} on {corpus.name}", (source, reference), measure, _encode, _decode
    )
    statistics, cached = measurements.once(fingerprint, recipe)
    signature = windowing.signature.plus(("KL(reference, model)", None), ("version", __version__))
    return DivergenceFound(statistics, signature, windowing.convention.iid, fingerprint.address, cached)


def _measure(
    measurements: Measurements,
    source: ModelSource,
    reference: ModelSource,
    corpus: Corpus,
    windowing: Windowing,
    report: Callable[[Progress], None],
    partial: Entry | None,
    keep: Callable[[Entry], None],
) -> DivergenceStatistics:
    from pytest_lmgate.engine.likelihood import Checkpointing
    from pytest_lmgate.engine.loading import tokenizer_facts
    from pytest_lmgate.engine.pairing import ModelPair, measure_divergence

    tokenizer = measurements.model(reference).tokenizer
    facts = tokenizer_facts(tokenizer)
    streams = tokenize(corpus, windowing, facts, model=reference.name)
    plan = plan_windows(windowing, streams.lengths, adds_bos=facts.adds_bos)
    if len(plan) == 0:
        raise DataError(
            f"dataset {corpus.name!r}: no target to score under {windowing.signature}: expected at least one row "
            "of two tokens or more"
        )

    def candidate() -> LoadedModel:
        loaded = measurements.model(source)
        _require_same_tokens(source.name, loaded.tokenizer, reference.name, tokenizer)
        own = tokenize(corpus, windowing, tokenizer_facts(loaded.tokenizer), model=source.name)
        _require_same_streams(source.name, own, reference.name, streams, corpus.name)
        return loaded

    folder = measurements.store.folder
    pair = ModelPair(
        (reference.name, source.name),
        lambda: measurements.model(reference),
        candidate,
        side_by_side=measurements.fit_together(reference, source),
        folder=folder if folder.is_dir() and os.access(folder, os.W_OK) else None,
    )
    sizes = [each.batch_size for each in (source, reference) if isinstance(each.batch_size, int)]
    found = measure_divergence(
        pair,
        streams,
        plan,
        dataset=corpus.name,
        batch_size=min(sizes, default="auto"),
        report=report,
        remark=measurements.remark,
        checkpointing=Checkpointing(
            None if partial is None else partial.arrays.get("measured"), lambda found: keep(Entry({"measured": found}))
        ),
    )
    return DivergenceStatistics(
        **dict(zip(_MEASURED, np.ascontiguousarray(found.T), strict=True)),
        window_targets=plan.targets,
        window_document=plan.document,
        running_text=not windowing.by_document,
        row_targets=targets_of_rows(plan, streams, corpus, by_document=windowing.by_document),
        targets=digest_of_targets(streams.ids),
    )


def _require_same_tokens(model: str, tokenizer: Any, reference: str, its: Any) -> None:
    """Refuse vocabularies that are not one; a tokenizer that does not tell its tokens is judged by the text alone."""
    if not (hasattr(tokenizer, "get_vocab") and hasattr(its, "get_vocab")):
        return
    own, theirs = tokenizer.get_vocab(), its.get_vocab()
    if own == theirs:
        return
    if len(own) != len(theirs):
        what = f"{len(own):,} tokens against {len(theirs):,}"
    else:
        by_id = {number: token for token, number in theirs.items()}
        number, token = min((number, token) for token, number in own.items() if by_id.get(number) != token)
        what = f"token {number} is {token!r} in the one and {by_id.get(number)!r} in the other"
    raise ModelError(_apart(model, reference, what))


def _require_same_streams(model: str, own: Streams, reference: str, its: Streams, dataset: str) -> None:
    same = own.prefix == its.prefix and len(own.ids) == len(its.ids)
    if not same or not all(np.array_equal(a, b) for a, b in zip(own.ids, its.ids, strict=True)):
        raise ModelError(_apart(model, reference, f"they cut the text of {dataset!r} into other tokens"))


def _apart(model: str, reference: str, what: str) -> str:
    return (
        f"model {model!r} and its reference {reference!r} have tokenizers that differ ({what}): a divergence is "
        "defined token by token over one vocabulary; compare their bits per byte (bpb_max, bpb_of), which no tokenizer "
        "changes"
    )


def _encode(statistics: DivergenceStatistics) -> Entry:
    facts = {"running_text": statistics.running_text, "targets": statistics.targets}
    rows = {} if statistics.row_targets is None else {ROWS: statistics.row_targets}
    return Entry({name: getattr(statistics, name) for name in _ARRAYS} | rows, facts)


def _decode(entry: Entry) -> DivergenceStatistics:
    arrays = {name: entry.arrays[name] for name in (*_ARRAYS, ROWS) if name in entry.arrays or name != ROWS}
    facts = entry.facts
    return DivergenceStatistics(**arrays, running_text=bool(facts["running_text"]), targets=str(facts["targets"]))
