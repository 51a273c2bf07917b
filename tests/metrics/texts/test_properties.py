"""What holds for any texts: sums of rows, order, constancy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import BLEU, CHRF, TER

from pytest_lmgate.metrics.texts import bleu, chrf, exact, paired_bootstrap, rouge, row_statistics, ter, text_score

METRICS = [bleu(), bleu(tokenize="char", smooth_method="add-k"), chrf(word_order=2), ter(), exact(), rouge("rouge2")]
IDS = [metric.signature for metric in METRICS]

texts = st.lists(st.sampled_from(["a", "b", "the", "cat.", "1,5", "공을", "好", "Cat", "&amp;", ""]), max_size=8).map(
    " ".join
)
rows = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=6)
few = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize("metric", METRICS, ids=IDS)
@few
@given(rows=rows)
def test_statistics_of_a_corpus_are_those_of_its_rows(metric, rows) -> None:
    outputs, references = zip(*rows, strict=True)
    together = row_statistics(metric, outputs, references)
    apart = [row_statistics(metric, [output], [of_row])[0] for output, of_row in rows]
    np.testing.assert_array_equal(together, apart)


@pytest.mark.parametrize(
    ("metric", "oracle"), [(bleu(), BLEU()), (chrf(), CHRF()), (ter(), TER())], ids=["bleu", "chrf", "ter"]
)
@few
@given(rows=rows)
def test_the_value_of_the_sum_is_the_corpus_score(metric, oracle, rows) -> None:
    outputs, references = zip(*rows, strict=True)
    streams = [[of_row[i] if i < len(of_row) else None for of_row in references] for i in range(3)]
    streams[0] = [of_row[0] for of_row in references]
    theirs = oracle.corpus_score([output.rstrip() for output in outputs], streams).score
    total = row_statistics(metric, outputs, references).sum(axis=0)
    assert metric.value(total) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("metric", METRICS, ids=IDS)
@few
@given(rows=rows, shuffle=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(metric, rows, shuffle) -> None:
    shuffled = list(rows)
    shuffle.shuffle(shuffled)
    scores = [text_score(metric, *zip(*order, strict=True)) for order in (rows, shuffled)]
    assert float(scores[0]) == pytest.approx(float(scores[1]), rel=1e-12)
    assert scores[0].signature == scores[1].signature


@pytest.mark.parametrize("metric", METRICS, ids=IDS)
@few
@given(output=texts, references=st.lists(texts, min_size=1, max_size=3), count=st.integers(2, 9))
def test_rows_that_are_all_alike_have_no_noise(metric, output, references, count) -> None:
    score = text_score(metric, [output] * count, [references] * count)
    assert score.stderr == pytest.approx(0, abs=1e-9)
    low, high = score.interval
    if metric.right_or_wrong:  # of so few rows, others may well be otherwise: Wilson's interval
        unseen = 1.959963984540054**2 / (count + 1.959963984540054**2)
        expected = (1 - unseen, 1) if score == 1 else (0, unseen)
        assert (low, high) == pytest.approx(expected, abs=1e-9)
        return
    assert low == pytest.approx(float(score), abs=1e-9)
    assert high - low == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("metric", METRICS, ids=IDS)
@few
@given(rows=rows.filter(lambda rows: len(rows) > 1))
def test_a_system_does_not_differ_from_itself(metric, rows) -> None:
    statistics = row_statistics(metric, *zip(*rows, strict=True))
    result = paired_bootstrap(metric, statistics, statistics, resamples=50)
    assert result.difference == 0
    assert not result.differences.any()
    assert result.p_value == 1 / 51  # none beyond, as the program has it: identical systems do not differ by chance
