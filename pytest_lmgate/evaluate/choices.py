"""Multiple choice: the likelihood of each choice given its question, and the share that is answered right."""

from __future__ import annotations

__all__ = ["evaluate_choices"]

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.choices import Question, plan_choices
from pytest_lmgate.evaluate.measurements import Measurements, Recipe
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.metrics.accuracy import ChoiceStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.metrics.texts.inputs import cluster_numbers
from pytest_lmgate.spec.requests import ChoiceRequest

if TYPE_CHECKING:
    from pytest_lmgate.engine.likelihood import Progress

_KIND = "choices/2"


def evaluate_choices(
    measurements: Measurements,
    source: ModelSource,
    questions: Sequence[Question],
    request: ChoiceRequest,
    *,
    metric: str,
    name: str,
    delimiter: str,
    clusters: Sequence[Any] | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> tuple[Score, str, bool]:
    """Measure multiple-choice accuracy.

    Args:
        measurements: Of the session.
        source: A causal model.
        questions: Rows.
        request: Which accuracy.
        metric: Name of the score.
        name: Name of the dataset.
        delimiter: What stands between question and choice.
        clusters: Label of each row's cluster.
        report: Told how far the measurement is.

    Returns:
        The score, the measurement's address, and whether it was there.

    Raises:
        LmgateError: It cannot be measured.
    """
    source.architecture.require(metric, "causal")
    max_length = request.max_length or source.architecture.context
    asked = json.dumps([[each.text, each.choices] for each in questions], ensure_ascii=False)
    fingerprint = Fingerprint.of(
        _KIND,
        {
            **source.ingredients,
            "questions": _digest(asked),
            "delimiter": delimiter,
            "max_length": str(max_length),
        },
    )

    def measure(partial: Entry | None, keep: Callable[[Entry], None]) -> list[float]:
        from pytest_lmgate.engine.likelihood import Checkpointing, measure_nll
        from pytest_lmgate.engine.loading import tokenizer_facts

        loaded = measurements.model(source)
        streams, plan = plan_choices(
            questions,
            tokenizer_facts(loaded.tokenizer),
            delimiter=delimiter,
            max_length=max_length,
            name=name,
            model=source.name,
        )
        nll = measure_nll(
            loaded,
            streams,
            plan,
            dataset=name,
            batch_size=source.batch_size,
            report=report,
            remark=measurements.remark,
            checkpointing=Checkpointing(
                None if partial is None else partial.arrays["nll"], lambda nll: keep(Entry({"nll": nll}))
            ),
        )
        begins = np.concatenate([[0], np.cumsum(plan.targets)[:-1]])
        return [-float(total) for total in np.add.reduceat(nll.astype(np.float64), begins)]

    recipe = Recipe(f"{source.name} on {name}", (source,), measure, _encode, _decode)
    signature = Signature(
        [
            ("variant", request.variant),
            ("max_length", str(max_length)),
            ("delimiter", repr(delimiter)),
            ("version", __version__),
        ]
    )
    groups = [] if clusters is None else [cluster_numbers(clusters, len(questions)).tolist()]
    data = _digest(json.dumps([asked, [each.answer for each in questions], *groups]))
    measurements.expect({"data": data, "protocol": signature.compared})
    found, cached = measurements.once(fingerprint, recipe)
    choices = [choice for each in questions for choice in each.choices]
    statistics = ChoiceStatistics(
        np.array(found),
        np.array([len(choice) for choice in choices]),
        np.array([len(choice.encode()) for choice in choices]),
        np.array([len(each.choices) for each in questions]),
        np.array([each.answer for each in questions]),
    )
    score = METRICS[metric].score(statistics, signature=signature, variant=request.variant, clusters=clusters)
    return score.identified(data), fingerprint.address, cached


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _encode(log_likelihood: list[float]) -> Entry:
    return Entry({"log_likelihood": np.array(log_likelihood)})


def _decode(entry: Entry) -> list[float]:
    return [float(value) for value in entry.arrays["log_likelihood"]]
