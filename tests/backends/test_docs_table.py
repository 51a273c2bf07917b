"""The docs' table of engines and metrics is what the code says."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_lmgate.backends.base import Backend, Kind, Offer
from pytest_lmgate.backends.table import BACKENDS
from pytest_lmgate.metrics.table import METRICS, Statistics

DOCS = Path(__file__).parents[2] / "docs" / "engines.md"
# What a measurement asks of an engine, and the kinds of models that it is defined for; see `require` in evaluate/.
NEEDS: Mapping[Statistics, tuple[Offer, set[Kind]]] = {
    "likelihoods": ("score", {"causal", "encoder-decoder"}),
    "pseudo-likelihoods": ("score", {"masked"}),
    "choices": ("score", {"causal"}),
    "divergences": ("compare", {"causal"}),
    "texts": ("generate", {"causal", "encoder-decoder"}),
}


def engine(name: str) -> type[Backend]:
    module, _, attribute = BACKENDS[name][0].partition(":")
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found


def rendered() -> str:
    engines = [engine(name) for name in BACKENDS]
    lines = [["metric", *(f"`{name}`" for name in BACKENDS)], ["---"] * (1 + len(engines))]
    for metric in METRICS.values():
        offer, kinds = NEEDS[metric.measures]
        cells = ["yes" if offer in each.offers and kinds & each.kinds else "" for each in engines]
        lines.append([f"`{metric.name}`, {metric.title}", *cells])
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_engine_says_what_it_offers(name: str) -> None:
    assert "offers" in vars(engine(name)), "the table in the docs needs it"


def test_the_table_in_the_docs_is_up_to_date() -> None:
    assert rendered() in DOCS.read_text(encoding="utf-8"), f"put this table into {DOCS.name}:\n\n{rendered()}"
