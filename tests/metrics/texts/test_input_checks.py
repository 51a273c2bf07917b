"""Texts that cannot be scored: each error says what was expected, what came, and in which row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.texts import bleu, chrf, exact, rouge, row_statistics, ter, text_score, worst_rows

METRICS = [bleu(), chrf(), ter(), exact(), rouge()]

BAD = {
    "no rows": ([], [], "at least one prediction, got none"),
    "predictions are one string": ("abc", [["abc"]], "predictions to be a list of strings.*got str 'abc'"),
    "predictions are a number": (3, [["abc"]], "predictions to be a list of strings.*got int 3"),
    "predictions are a mapping": ({"a": "b"}, [["abc"]], "predictions to be a list of strings.*got dict"),
    "a prediction is missing": (["a", None], [["a"], ["b"]], "row 1: expected the prediction to be a string, got None"),
    "a prediction is bytes": ([b"a"], [["a"]], "row 0: expected the prediction to be a string, got bytes b'a'"),
    "no references": (["a"], None, "expected references, got None: pass a list"),
    "references are one string": (["a"], "a", "references to be a list of lists.*got str 'a'"),
    "references are strings": (
        ["a", "b"],
        [["a"], "b"],
        r"row 1: expected a list of references, got str 'b'.*\[text\]",
    ),
    "fewer references": (["a", "b"], [["a"]], "got 1 rows of references and 2 predictions"),
    "more references": (["a"], [["a"], ["b", "c"]], "got 2 rows of references and 1 predictions"),
    "references by stream": (["a", "b", "c"], [["a", "b", "c"]], r"one per stream as sacrebleu.*list\(zip"),
    "a row without references": (["a", "b"], [["a"], []], "row 1: expected at least one reference, got none"),
    "a row of missing references": (["a", "b"], [["a"], [None]], "row 1: expected at least one reference, got none"),
    "a row whose references are None": (["a", "b"], [["a"], None], "row 1: expected at least one reference, got none"),
    "a reference is a number": (["a"], [["a", 5]], "row 0: expected reference 1 to be a string, got int 5"),
    "a row's references are a number": (["a"], [5], "row 0: references to be a list of strings, got int 5"),
    "a long value is cut": (["a"], ["b" * 500], r"got str 'bbbbb.*bbb\.\.\.;"),
}


@pytest.mark.parametrize("metric", METRICS, ids=[metric.name for metric in METRICS])
@pytest.mark.parametrize("case", BAD)
def test_bad_texts_are_refused_with_their_row(case: str, metric) -> None:
    predictions, references, message = BAD[case]
    for score in (text_score, row_statistics, worst_rows):
        with pytest.raises(MetricInputError, match=message) as caught:
            score(metric, predictions, references)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [{}]}, "as many rows as predictions, got 1 rows and 2 predictions"),
        ({"rows": [{}, "x"]}, "row 1: expected a mapping from column to value, got str 'x'"),
        ({"rows": {"text": ["a", "b"]}}, "rows to be a list of mappings"),
        ({"clusters": [1]}, "a cluster label for each of 2 rows, got 1"),
        ({"clusters": [1, None]}, "row 1: expected a cluster label such as a string or an integer, got NoneType None"),
        ({"clusters": [[1], 2]}, r"row 0: expected a cluster label .*, got list \[1\]"),
        ({"clusters": "ab"}, "clusters to be a list of labels"),
        ({"statistics": np.ones((3, 2))}, "expected statistics of 2 rows, got 3"),
    ],
)
def test_bad_rows_and_clusters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        text_score(exact(), ["a", "b"], [["a"], ["b"]], **arguments)


def test_any_iterables_of_strings_are_texts() -> None:
    expected = text_score(bleu(), ["a b c d", "e"], [["a b c d"], ["f"]])
    given = text_score(bleu(), np.array(["a b c d", "e"]), (("a b c d",), np.array(["f"])))
    assert float(given) == float(expected)
    assert given.signature == expected.signature


def test_the_callers_lists_are_left_alone() -> None:
    predictions, references = ["a ", "b"], [["a", None], ["b"]]
    text_score(bleu(), predictions, references)
    assert (predictions, references) == (["a ", "b"], [["a", None], ["b"]])
