"""A score is a float in everything but what it carries."""

import copy
import math
import pickle

import pytest

from pytest_lmgate.metrics.score import Score

SCORE = Score(
    12.25, metric="ppl", n=1234, signature="protocol:sliding", stderr=0.5, interval=(11.3, 13.3), details={"df": 7.0}
)


def test_a_score_compares_and_computes_as_its_value() -> None:
    assert isinstance(SCORE, float)
    assert SCORE < 16.5
    assert SCORE == 12.25
    assert pytest.approx(12.25) == SCORE
    assert math.log2(SCORE * 2) == math.log2(24.5)
    assert max(SCORE, 3.0) is SCORE
    assert f"{SCORE:.1f}" == "12.2"
    assert SCORE.value == 12.25
    assert type(SCORE.value) is float
    assert hash(SCORE) == hash(12.25)


@pytest.mark.parametrize("copied", [pickle.loads(pickle.dumps(SCORE)), copy.deepcopy(SCORE)])
def test_a_score_survives_pickling_and_copying(copied: Score) -> None:
    assert type(copied) is Score
    assert copied == SCORE
    assert vars(copied) == vars(SCORE)


def test_a_score_shows_its_interval_and_where_it_comes_from() -> None:
    placed = SCORE.placed(model="int8", dataset="wiki", fingerprint="ab", cached=True, seconds=1.5)

    assert repr(SCORE) == "ppl 12.25 [11.3, 13.3] (1,234 tokens, protocol:sliding)"
    assert repr(placed) == "ppl 12.25 [11.3, 13.3] (1,234 tokens, protocol:sliding, int8 on wiki, cached)"
    assert str(placed) == "12.25"
    assert (placed.fingerprint, placed.seconds, placed.details) == ("ab", 1.5, {"df": 7.0})
    assert SCORE.model == ""


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (math.nan, False), (math.inf, False)])
def test_a_score_knows_whether_it_can_be_judged(value: float, finite: bool) -> None:
    assert Score(value, metric="ppl", n=1, signature="").is_finite is finite
