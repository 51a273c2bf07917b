"""The rows that people are shown when a gate fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_lmgate.metrics.texts import TextMetric, bleu, chrf, exact, rouge, row_statistics, ter, worst_rows
from pytest_lmgate.metrics.texts.text_metric import ratio

OUTPUTS = ["a b c d", "x", "a b c x", "a b c d", "", "x y"]
REFERENCES = [["a b c d"], ["a b c d"], ["a b c d", "z"], ["q"], ["a b c d"], ["a b c d"]]


@pytest.mark.parametrize("metric", [bleu(), chrf(), rouge("rouge1")], ids=["bleu", "chrf", "rouge"])
def test_the_worst_come_first_and_equals_in_the_order_of_the_data(metric: TextMetric) -> None:
    worst = worst_rows(metric, OUTPUTS, REFERENCES)
    assert [found.row for found in worst] == [1, 3, 4, 5, 2]
    assert [found.score for found in worst[:4]] == [0, 0, 0, 0]
    assert 0 < worst[4].score < metric.scale
    assert worst[4].prediction == "a b c x"
    assert worst[4].references == ("a b c d", "z")


def test_a_high_edit_rate_is_worse() -> None:
    worst = worst_rows(ter(), OUTPUTS, REFERENCES, 3)
    assert [(found.row, found.score) for found in worst] == [(3, 400), (1, 100), (4, 100)]


def test_a_short_row_that_is_right_is_not_shown_as_worst_by_bleu() -> None:
    # Without its effective order, BLEU of a row under four words is zero.
    assert [found.row for found in worst_rows(bleu(), ["yes", "no way"], [["yes"], ["no hay"]])] == [1, 0]


def test_no_more_rows_are_given_than_there_are_or_were_asked_for() -> None:
    assert len(worst_rows(exact(), OUTPUTS, REFERENCES)) == 5
    assert len(worst_rows(exact(), OUTPUTS, REFERENCES, 100)) == 6
    assert worst_rows(exact(), OUTPUTS, REFERENCES, 0) == []


def test_texts_that_were_read_are_not_read_again() -> None:
    read: list[int] = []

    def counting(make: Callable[[], TextMetric]) -> TextMetric:
        inner = make()
        return TextMetric(
            "counted",
            "higher",
            "counted",
            lambda *texts: read.append(1) or inner.statistics(*texts),  # type: ignore[func-returns-value]
            ratio,
        )

    metric = counting(exact)
    statistics = row_statistics(metric, OUTPUTS, REFERENCES)
    assert len(worst_rows(metric, OUTPUTS, REFERENCES, statistics=statistics)) == 5
    assert len(read) == 1
