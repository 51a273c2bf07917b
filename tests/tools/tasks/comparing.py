"""Runs the harness and ``lmgate import`` in another process, and compares a gate's numbers with the harness's."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.likelihoods import ChoiceLikelihoods
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.decoding import parse_fixture_call
from tests.tools.tasks.harness_run import MOST

TEMPLATE = (
    "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_NAMES = {"target_ppl": "perplexity", "bpb": "bits_per_byte"}
# Metrics whose rows the harness gives as likelihoods, where ours are negative ones.
_LIKELIHOODS = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")


def run_harness(folder: Path, model: Path, asked: Mapping[str, Any], python: str) -> None:
    """Fill a folder with what the harness finds of a checkpoint, and with what ``lmgate import`` writes.

    `asked` has the tasks of each way of asking, ``groups`` as in YAML, and how many ``documents`` a task has at least.
    """
    run_module("tests.tools.tasks.harness_run", folder, str(model), json.dumps(asked), python=python)


def run_module(name: str, folder: Path, *arguments: str, python: str) -> None:
    """Run a script of the tests that fills a folder by the harness."""
    done = subprocess.run(
        [python, "-m", name, str(folder), *arguments],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
        env=os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def compare(evaluator: Evaluator, theirs: Mapping[str, Any], task: str, *, model: str, rel: float) -> list[float]:
    """Require that every number of a task is the harness's, and so is every row; return the numbers.

    Likelihoods may be apart by `rel`; a choice, a text and a greedy token have to be the same.
    """
    assert "error" not in theirs["imported"], theirs["imported"]["error"]
    compared = []
    for name, score, likelihoods in _measured(evaluator, model, task, theirs["imported"]):
        key = name if name in theirs["results"] else next(each for each in theirs["results"] if _is_same(each, name))
        metric, _, ensemble = key.partition(",")
        if score is None:
            read = [row["read"] for row in theirs["rows"] if row["filter"] == ensemble]
            assert {text for of_row in read for text in of_row} == {"[invalid]"}
            compared.append(0.0)
            continue
        assert float(score) == pytest.approx(theirs["results"][key], rel=rel, abs=1e-9), (task, key)
        rows = [row[metric] for row in theirs["rows"] if row["filter"] == ensemble and metric in row]
        if metric in _LIKELIHOODS:
            rows = [-(row[0] if isinstance(row, list) else row) for row in rows]
        if rows and score.sample is not None and isinstance(rows[0], int | float):
            assert score.sample.by_row is not None
            # Where a row is made of exp(likelihood), its error is the likelihood's without its size.
            np.testing.assert_allclose(score.sample.by_row.sums[:, 0], rows, rtol=rel, atol=1e-6)
        expected = [choice[0][0] for row in theirs["rows"] for choice in row["resps"]] if likelihoods else []
        if len(expected) == len(likelihoods):  # the harness counts a choice that stands there twice
            np.testing.assert_allclose(likelihoods, expected, rtol=rel)
        compared.append(float(score))
    assert compared
    return compared


def _measured(
    evaluator: Evaluator, model: str, task: str, imported: Mapping[str, Any]
) -> Iterator[tuple[str, Score | None, list[float]]]:
    """Measure all that can be gated on a dataset, named as the harness does, with the log-likelihoods of choices."""
    for each in imported["metrics"]:
        metric, given = each["metric"], dict(each["arguments"])
        is_choice = evaluator.project.spec.datasets[task].answer is not None
        is_text = (metric.startswith("task.") and not is_choice) or metric in ("exact", "bleu", "chrf", "ter")
        fixture = "metric_of" if metric.startswith("task.") else f"{metric}_of"
        named = [metric] * metric.startswith("task.")
        more = {"max_new_tokens": MOST} if is_text else {}
        asked = parse_fixture_call(fixture, (*named, model, task), {**given, **more})
        try:
            score: Score | None = evaluator.evaluate(asked)
        except MetricInputError as error:  # where the harness counts every row as wrong
            if "expected an answer in some text, got none" not in str(error):
                raise
            score = None
        measurement, statistics = evaluator.cached_statistics(asked)
        assert score is None or statistics is not None, "it is not kept"
        yield (
            _name_of(metric, given),
            score,
            statistics.log_likelihood.tolist() if isinstance(measurement, ChoiceLikelihoods) else [],
        )


def _name_of(metric: str, given: dict[str, Any]) -> str:
    if metric == "accuracy":
        return f"{given.get('variant', 'acc')},none"
    if metric == "exact":
        return f"exact_match,{given.get('variant', 'none').removeprefix('by-')}"
    if metric.startswith("task."):
        return metric.removeprefix("task.")
    return f"{given['unit']}_perplexity,none" if "unit" in given else f"{_NAMES.get(metric, metric)},none"


def _is_same(theirs: str, ours: str) -> bool:
    """Whether a name of the harness with a filter is ours, which has other letters."""
    metric, _, ensemble = theirs.partition(",")
    letters = {f"{metric}.{ensemble}".replace("-", "_"), metric}
    return ours in letters or (ours == f"{metric},none" and ensemble != "none")
