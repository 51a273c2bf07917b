"""Arguments of markers and fixtures, as the table of metrics has them and as help shows them."""

from __future__ import annotations

import pytest

from pytest_lmgate.metrics.table import METRICS, USERS_METRIC, Metric
from pytest_lmgate.spec.arguments import TEXTS, arguments_of, shown

ROWS = pytest.mark.parametrize("row", [*METRICS.values(), USERS_METRIC], ids=lambda row: row.name)


@ROWS
def test_a_fixture_takes_what_the_marker_takes_less_the_limit_and_texts_where_texts_are_scored(row: Metric) -> None:
    marker = [each.name for each in arguments_of(row, limit=True)]
    fixture = [each.name for each in arguments_of(row, limit=False)]

    texts = list(TEXTS) if row.measures == "texts" else []
    assert sorted(fixture) == sorted([name for name in marker if name not in ("limit", "confidence")] + texts)
    assert len(set(marker)) == len(marker)
    assert set(row.options) <= set(marker)
    assert not set(marker) & {name for name, _ in row.fixed}


def test_help_shows_a_call_as_it_is_written() -> None:
    assert shown("pppl_max", arguments_of(METRICS["pppl"], limit=True)) == (
        "pppl_max(model, dataset, limit, *, max_length, confidence)"
    )
    assert shown("rouge_of", arguments_of(METRICS["rouge"], limit=False)).startswith(
        "rouge_of(model, dataset, variant='rougeL', *, stemmer, multi_reference, tokenizer, convention, "
    )
