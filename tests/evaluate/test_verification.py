"""Which cache hits are measured again, and which differences another machine's rounding explains."""

from __future__ import annotations

import collections
import types
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pytest_lmgate.backends.base import Entry as ModelEntry
from pytest_lmgate.backends.base import Model, Runner
from pytest_lmgate.backends.hf.backend import _dtype
from pytest_lmgate.backends.hf.models.checkpoint import Architecture
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.evaluate.verification import Verification, _difference, _rounding
from pytest_lmgate.spec.protocol import Protocol
from tests.evaluate.entries import perplexity

ROUNDS = 4000


def _noted(size: int, hits: int) -> Verification:
    verification = Verification(size)
    for hit in range(hits):
        verification.note(cast(Any, types.SimpleNamespace(words=str(hit), models=())), None)
    return verification


@pytest.mark.parametrize(("size", "hits"), [(1, 3), (2, 7), (3, 3), (5, 3)])
def test_any_hit_is_drawn_as_likely_as_any_other(size: int, hits: int) -> None:
    drawn: collections.Counter[str] = collections.Counter()
    for _ in range(ROUNDS):
        found = [measurement.words for measurement, _ in _noted(size, hits)._drawn]
        assert len(found) == len(set(found)) == min(size, hits)
        drawn.update(found)
    share = min(size, hits) / hits
    for hit in range(hits):
        # Five standard errors of a share: one run in a hundred thousand fails by chance.
        assert drawn[str(hit)] / ROUNDS == pytest.approx(share, abs=5 * (share * (1 - share) / ROUNDS) ** 0.5)


def test_without_the_option_nothing_is_held() -> None:
    assert _noted(0, 5) == Verification(0)


def _dtype_of(dtype: str = "auto", load: dict[str, Any] | None = None, **config: Any) -> str:
    entry = ModelEntry(
        name="model",
        spec=ModelSpec(path="m", load=load or {}),
        path=Path,
        hub_id=lambda _: None,
        digest=str,
        dtype=dtype,
    )
    return _dtype(Architecture("model", config), entry)


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [
        (_dtype_of(**{"torch_dtype": "float32"}), 1e-4),
        (_dtype_of("float32"), 1e-4),
        (_dtype_of(torch_dtype="bfloat16"), 0.03125),
        (_dtype_of(torch_dtype="float16"), 0.00390625),
        (_dtype_of("float16", torch_dtype="float32"), 0.00390625),
        (_dtype_of("float64", torch_dtype="bfloat16"), 1e-4),
        (_dtype_of("float32", quantization_config={}), 0.03125),
        (_dtype_of("float32", load={"quantization_config": {}}), 0.03125),
        (_dtype_of(), 1e-4),
    ],
)
def test_rounding_is_that_of_the_dtype_a_model_computes_in(dtype: str, rounding: float) -> None:
    assert _rounding(Model("model", Runner, dtype=dtype)) == rounding


def _differs(one: Any, other: Any, rounding: float = 1e-4) -> bool:
    return bool(_difference(Entry({"nll": np.asarray(one)}), Entry({"nll": np.asarray(other)}), rounding))


def test_a_mean_difference_within_rounding_is_none_and_beyond_it_is_one() -> None:
    nll = np.linspace(0.0, 8.0, 101)  # of mean 4, so that twice the rounding of a value near 0 is allowed
    assert not _differs(nll, nll)
    assert not _differs(nll + 1.9e-4, nll)
    assert _differs(nll + 2.1e-4, nll)
    assert not _differs(nll + 2.1e-4, nll, rounding=0.03125)
    # Differences of both signs do not cancel out, one large one counts, and so does another order.
    assert _differs(nll + 2.1e-4 * (-1.0) ** np.arange(101), nll)
    assert _differs(np.where(np.arange(101) == 50, nll + 0.05, nll), nll)
    assert _differs(nll[::-1], nll)
    # Of values near 0, the difference itself counts.
    assert not _differs(nll / 1000 + 0.9e-4, nll / 1000)
    assert _differs(nll / 1000 + 1.1e-4, nll / 1000)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_differs(value: float) -> None:
    assert _differs([value, 1.0], [1.0, 1.0])


def test_three_near_ties_may_fall_to_the_other_side_and_four_are_too_many() -> None:
    same_top = np.ones(100)
    for flips, differs in ((3, False), (4, True)):
        assert _differs(np.where(np.arange(100) < flips, 0.0, same_top), same_top) is differs


def test_counts_shapes_names_and_facts_must_be_the_same() -> None:
    assert _differs([3, 4], [4, 3])
    assert _differs([1.0, 2.0], [1.0])
    entry = Entry({"nll": np.ones(3)}, {"texts": ["a", "b"], "targets": "ab"})
    assert _difference(entry, entry, 1e-4) == ""
    assert (
        _difference(Entry({}, entry.facts), entry, 1e-4)
        == "nll is missing in the cache and of shape [3] when measured again"
    )
    for facts, said in (
        ({"texts": ["a", "c"], "targets": "ab"}, "texts, row 1, is 'c' in the cache and 'b' when measured again"),
        ({"texts": ["a"], "targets": "ab"}, "texts is ['a'] in the cache and ['a', 'b'] when measured again"),
        ({"texts": ["a", "b"]}, "targets is None in the cache and 'ab' when measured again"),
    ):
        assert _difference(Entry(entry.arrays, facts), entry, 1e-4) == said


def test_a_session_that_patched_a_library_meanwhile_verifies_nothing(
    workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = Protocol(max_length=16, stride=8)
    perplexity(workplace.session().evaluator, "float", "text", protocol)
    evaluator = workplace.session(verify=1).evaluator
    assert perplexity(evaluator, "float", "text", protocol).cached

    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda self, states: states)
    (problem,) = evaluator.verify()["problems"]
    assert "cannot be measured again, so nothing is verified: ModelError: this session patched a library" in problem
