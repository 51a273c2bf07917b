"""The table of metrics: each row says what its scorer does, and what derives from the rows agrees with them."""

import inspect
from importlib import import_module
from typing import Any

import pytest

from pytest_lmgate.metrics.texts import TextMetric
from pytest_lmgate.settings.metrics import MARKERS, METRICS, Metric, metric_called

TEXTS = [row for row in METRICS.values() if row.measures == "texts"]
# Every option of the metrics of texts with another value than its default.
OPTIONS: dict[str, Any] = {
    "max_ngram_order": 2, "tokenize": "char", "smooth_method": "floor", "smooth_value": 0.5, "lowercase": True,
    "effective_order": True, "char_order": 5, "word_order": 2, "beta": 3, "whitespace": True, "eps_smoothing": True,
    "normalized": True, "no_punct": True, "asian_support": True, "case_sensitive": True, "variant": "majority",
    "stemmer": True, "multi_reference": "average", "tokenizer": "rouge-score", "convention": "rouge-1.5.5",
    "ignore_case": True, "ignore_punctuation": True, "ignore_numbers": True, "ignore": [","], "numeric": True,
    "strip": False,
}  # fmt: skip
OTHERWISE = {("rouge", "variant"): "rouge2"}
NEEDS = {"smooth_value": {"smooth_method": "floor"}}


def scorer(row: Metric) -> Any:
    module, function = row.scored_by.split(":")
    return getattr(import_module(f"pytest_lmgate.metrics.{module}"), function)


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row.name)
def test_a_row_of_a_text_metric_says_what_its_function_says(row: Metric) -> None:
    metric = row.scorer()()
    assert isinstance(metric, TextMetric)
    assert set(row.options) == set(inspect.signature(scorer(row)).parameters)
    assert metric.direction == row.direction
    assert metric.name == (row.usual[1] if row.usual else row.name)


@pytest.mark.parametrize(("row", "option"), [(row, option) for row in TEXTS for option in row.options])
def test_another_value_of_an_option_is_another_signature(row: Metric, option: str) -> None:
    needed, value = NEEDS.get(option, {}), OTHERWISE.get((row.name, option), OPTIONS[option])
    before, after = row.scorer()(**needed), row.scorer()(**needed, **{option: value})
    # The steps of an extraction are part of the score's signature.
    assert (after.signature, after.extraction) != (before.signature, before.extraction)


@pytest.mark.parametrize("row", [row for row in METRICS.values() if row.options], ids=lambda row: row.name)
def test_the_usual_value_of_an_option_is_its_default(row: Metric) -> None:
    parameters = inspect.signature(scorer(row)).parameters
    assert set(row.options) <= set(parameters)
    if row.usual:
        assert parameters[row.usual[0]].default == row.usual[1]


def test_every_marker_names_its_metric_and_the_side_that_fails() -> None:
    assert len(MARKERS) >= 15
    for marker, row in MARKERS.items():
        assert row.direction in (None, "lower" if marker.endswith("_max") else "higher")
    unbounded = {row.name for row in METRICS.values() if row.is_number and row.highest is None}
    assert unbounded == {row.name for row in METRICS.values() if row.direction == "lower"} - {"invalid", "cut"}


@pytest.mark.parametrize("row", METRICS.values(), ids=lambda row: row.name)
def test_a_metric_is_found_by_its_own_name_and_by_every_other_that_people_give_it(row: Metric) -> None:
    assert metric_called(row.name) in (row.name, None)  # digits and hyphens are not looked at
    assert [metric_called(name) for name in row.also_called] == [row.name] * len(row.also_called)
    assert metric_called("R-O_U.G E1") == "rouge"
    assert metric_called("nothing") is None
