"""The markers and fixtures that the table of metrics makes, with the help that ``pytest --markers`` shows."""

from __future__ import annotations

__all__ = ["FIXTURES_HELP", "MARKERS_HELP"]

from collections.abc import Iterator

from pytest_lmgate.metrics.table import MARKERS, METRICS, USERS_METRIC
from pytest_lmgate.spec.arguments import NO_REGRESSION, accepts_texts, arguments_of, shown

_MODEL = (
    "The model is a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline; the dataset a "
    "name, a path, a hub id, a list of texts or of mappings, or a datasets.Dataset."
)
_TEXTS = "In place of model and dataset it takes predictions=[...], references=[[...], ...]."

_TOLERANCE = (
    "'5%' is 5% of the reference's value, which of an accuracy of 0.5 is 2.5 points; a number is in the metric's own "
    "unit, as 1.5 of a perplexity, or 0.02 for 2 points of an accuracy."
)


def _markers() -> Iterator[tuple[str, str]]:
    for marker, row in MARKERS.items():
        side = "above" if marker.endswith("_max") else "below"
        yield marker, f"{shown(marker, arguments_of(row, limit=True))}: limit on {row.description}; fails {side} it."
    call = f"{NO_REGRESSION}(metric, model, dataset, tolerance, *, against='baseline', confidence=0.95, ...)"
    judged = "fails if the metric is worse than in the committed baseline, or than another model's"
    yield NO_REGRESSION, f"{call}: {judged}, by more than the tolerance. {_TOLERANCE}"


def _fixtures() -> Iterator[tuple[str, str]]:
    for row in (*METRICS.values(), USERS_METRIC):
        call = shown(row.fixture, arguments_of(row, limit=False))
        yield row.fixture, f"{call} measures {row.description}.\n\n{_MODEL}{f' {_TEXTS}' if accepts_texts(row) else ''}"


MARKERS_HELP = dict(_markers())
FIXTURES_HELP = dict(_fixtures())
