"""A score is a float in everything but what it carries."""

import copy
import json
import math
import pickle
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

import pytest_lmgate.measure.evaluator  # noqa: F401 - it registers how YAML writes a score
from pytest_lmgate.metrics.score import Score

SCORE = Score(
    12.25, metric="ppl", n=1234, signature="protocol:sliding", stderr=0.5, interval=(11.3, 13.3), details={"df": 7.0}
)


def test_a_score_compares_and_computes_as_its_value() -> None:
    assert isinstance(SCORE, float)
    assert SCORE == 12.25 < 16.5
    assert max(SCORE, 3.0) is SCORE
    assert f"{SCORE:.1f}" == "12.2"
    assert (SCORE.value, type(SCORE.value), hash(SCORE)) == (12.25, float, hash(12.25))


@pytest.mark.parametrize(
    "compute",
    [
        statistics.mean, statistics.variance, statistics.median, sum, np.mean, np.std,
        lambda scores: scores[0] + scores[1], lambda scores: -scores[0], lambda scores: abs(scores[0]),
        lambda scores: np.float64(2) * scores[0], lambda scores: scores[0] * np.float64(2),
        lambda scores: np.array(scores)[0], lambda scores: type(scores[0])(7.5), lambda scores: Score.fromhex("0x1p3"),
        lambda scores: json.loads(json.dumps(scores))[0], lambda scores: yaml.safe_load(yaml.safe_dump(scores))[0],
    ],
)  # fmt: skip
def test_what_is_computed_with_scores_or_written_of_one_is_a_plain_number(compute: Callable[[Any], Any]) -> None:
    found = compute([SCORE, replaced(SCORE, 3.25)])
    assert type(found) in (float, np.float64)
    assert math.isfinite(found)


def replaced(score: Score, value: float) -> Score:
    return Score(value, **vars(score))


@pytest.mark.parametrize("copied", [pickle.loads(pickle.dumps(SCORE)), copy.copy(SCORE), copy.deepcopy(SCORE)])
def test_a_score_survives_pickling_and_copying(copied: Score) -> None:
    assert type(copied) is Score
    assert copied == SCORE
    assert vars(copied) == vars(SCORE)
    with_sample: Any = Score(1.5, metric="ppl", sample=(sample := object()))
    assert copy.copy(with_sample).sample is copy.deepcopy(with_sample).sample is sample
    assert pickle.loads(pickle.dumps(with_sample)).sample is None


def test_a_score_shows_its_interval_and_where_it_comes_from() -> None:
    placed = SCORE.placed(model="int8", dataset="wiki", fingerprint="ab", cached=True, seconds=1.5)
    assert repr(SCORE) == "ppl 12.25 [11.3, 13.3] (1,234 tokens, protocol:sliding)"
    assert repr(placed) == "ppl 12.25 [11.3, 13.3] (1,234 tokens, protocol:sliding, int8 on wiki, cached)"
    assert str(placed) == "12.25"
    assert (placed.fingerprint, placed.seconds, placed.details) == ("ab", 1.5, {"df": 7.0})
    assert SCORE.model == ""
