"""Conditional perplexity of an encoder-decoder model: of each row's first reference, given its prompt or source."""

from __future__ import annotations

__all__ = ["evaluate_conditional_perplexity"]

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.prompts import TextTask
from pytest_lmgate.errors import ProtocolError
from pytest_lmgate.evaluate.likelihood import decode_likelihoods, digest_of_targets, encode_likelihoods
from pytest_lmgate.evaluate.measurements import Measurements, Recipe
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.evaluate.texts import unsaved_ingredients
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.protocol import Protocol

if TYPE_CHECKING:
    from pytest_lmgate.engine.likelihood import Progress

# Raise the number whenever the code that measures may give another result.
_KIND = "conditional-nll/3"


def evaluate_conditional_perplexity(
    measurements: Measurements,
    source: ModelSource,
    task: TextTask,
    protocol: Protocol,
    *,
    metric: str,
    report: Callable[[Progress], None] = lambda _: None,
) -> tuple[Score, str, bool]:
    """Measure ``exp(-1/N sum log P(y_i | y_<i, source))`` over the tokens of all targets, each one's EOS included.

    Words, bytes and characters, for the units that count them, are those of the targets.

    Args:
        measurements: Of the session.
        source: An encoder-decoder model.
        task: Rows; the first reference of each is its target.
        protocol: Only its unit has a meaning here.
        metric: Name of the score.
        report: Told how far the measurement is.

    Returns:
        The score, the measurement's address, and whether it was there.

    Raises:
        ProtocolError: The protocol asks for windows, which sources and targets are not cut into.
        LmgateError: It cannot be measured.
    """
    source.architecture.require(metric, "encoder-decoder")
    _refuse_windows(protocol, source.name)
    targets = [references[0] for references in task.references]
    pairs = json.dumps([task.prompts, targets], ensure_ascii=False).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(pairs).hexdigest()
    ingredients = {**source.ingredients, **unsaved_ingredients(source)}
    fingerprint = Fingerprint.of(_KIND, {**ingredients, "pairs": digest})

    def measure(partial: Entry | None, keep: Callable[[Entry], None]) -> LikelihoodStatistics:
        from pytest_lmgate.engine.conditional import encode_pairs, measure_conditional_nll
        from pytest_lmgate.engine.likelihood import Checkpointing

        loaded = measurements.model(source)
        encoded = encode_pairs(loaded, task.prompts, targets, dataset=task.name, context=source.architecture.context)
        nll = measure_conditional_nll(
            loaded,
            encoded,
            dataset=task.name,
            batch_size=source.batch_size,
            report=report,
            remark=measurements.remark,
            checkpointing=Checkpointing(
                None if partial is None else partial.arrays["nll"], lambda nll: keep(Entry({"nll": nll}))
            ),
        )
        return LikelihoodStatistics(
            nll=nll,
            window_targets=np.array([len(pair.target) for pair in encoded]),
            window_document=np.arange(len(encoded)),
            words=np.array([len(re.split(r"\s+", target)) for target in targets]),
            chars=np.array([len(target) for target in targets]),
            utf8_bytes=np.array([len(target.encode("utf-8", "surrogatepass")) for target in targets]),
            running_text=False,
            row_targets=np.array([len(pair.target) for pair in encoded]),
            targets=digest_of_targets([pair.target for pair in encoded]),
        )

    recipe = Recipe(f"{source.name} on {task.name}", (source,), measure, encode_likelihoods, decode_likelihoods)
    signature = Signature(
        [("conditional", None), ("target", "first reference"), ("unit", protocol.unit), ("version", __version__)]
    )
    measurements.expect({"data": digest, "protocol": signature.compared})
    statistics, cached = measurements.once(fingerprint, recipe)
    score = METRICS[metric].score(statistics, signature=signature, unit=protocol.unit, metric=metric)
    return score.identified(digest), fingerprint.address, cached


def _refuse_windows(protocol: Protocol, model: str) -> None:
    said = [
        "protocol" if each.name == "name" else each.name
        for each in fields(Protocol)
        if each.name != "unit" and getattr(protocol, each.name) != each.default
    ]
    if said:
        raise ProtocolError(
            f"{', '.join(said)}: the encoder-decoder model {model!r} reads each source and target whole; its "
            "conditional perplexity has only a unit"
        )
