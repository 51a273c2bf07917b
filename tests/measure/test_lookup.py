"""Cache hits that are measured again, rounding of another machine, and files that change after they were hashed."""

import collections
import shutil
import types
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.engines.base import Model, ModelEntry, Runner
from pytest_lmgate.engines.checkpoints import Architecture
from pytest_lmgate.engines.transformers import _dtype
from pytest_lmgate.measure.lookup import Measurements, _rounding, differing_arrays
from pytest_lmgate.settings.entries import ModelSpec
from pytest_lmgate.settings.session import Options
from tests.measure.conftest import around_loading, make_model

ROUNDS = 4000


def _noted(size: int, hits: int) -> Measurements:
    measurements = Measurements(cast(Any, None), Options(cache=Path(), verify=size))
    for hit in range(hits):
        measurements._draw(cast(Any, types.SimpleNamespace(words=str(hit), models=())), None)
    return measurements


@pytest.mark.parametrize(("size", "hits"), [(2, 7), (5, 3)])
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


def _dtype_of(dtype: str = "auto", load: dict[str, Any] | None = None, **config: Any) -> str:
    spec = ModelSpec(path="m", load=load or {})
    entry = ModelEntry(name="m", spec=spec, path=Path, hub_id=lambda _: None, digest=str, dtype=dtype)
    return _dtype(Architecture("model", config), entry)


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [
        (_dtype_of(torch_dtype="float32"), 1e-4),
        (_dtype_of(torch_dtype="bfloat16"), 0.03125),
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
    here, there = (StoredResult({"nll": np.asarray(each)}) for each in (one, other))
    return bool(differing_arrays(here, there, rounding))


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


def test_three_near_ties_may_fall_to_the_other_side_and_four_are_too_many() -> None:
    same_top = np.ones(100)
    for flips, differs in ((3, False), (4, True)):
        assert _differs(np.where(np.arange(100) < flips, 0.0, same_top), same_top) is differs


def test_counts_shapes_names_and_facts_must_be_the_same() -> None:
    assert _differs([3, 4], [4, 3])
    assert _differs([1.0, 2.0], [1.0])
    entry = StoredResult({"nll": np.ones(3)}, {"texts": ["a", "b"], "targets": "ab"})
    assert differing_arrays(entry, entry, 1e-4) == ""
    assert differing_arrays(StoredResult({}, entry.facts), entry, 1e-4).startswith("nll is missing in the cache")
    for facts, said in (
        ({"texts": ["a", "c"], "targets": "ab"}, "texts, row 1, is 'c' in the cache and 'b' when measured again"),
        ({"texts": ["a"], "targets": "ab"}, "texts is ['a'] in the cache and ['a', 'b'] when measured again"),
        ({"texts": ["a", "b"]}, "targets is None in the cache and 'ab' when measured again"),
    ):
        assert differing_arrays(StoredResult(entry.arrays, facts), entry, 1e-4) == said


def test_a_session_that_patched_a_library_meanwhile_verifies_nothing(
    workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.session().perplexity()
    session = workplace.session(verify=1)
    assert session.perplexity().cached
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda self, states: states)
    (problem,) = session.evaluator.measurements.verify().problems
    assert "was not verified: ModelError: this session patched transformers.models" in problem


# Files that change between their digest and the loading are measured again, and kept under their own address.


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Weights of another model of the same size."""
    make_model(seed=1).save_pretrained(tmp_path / "other")
    return tmp_path / "other" / "model.safetensors"


def _replace(target: Path, source: Path) -> None:
    shutil.copyfile(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


def test_weights_that_are_replaced_before_they_are_loaded_are_kept_under_their_own_address(
    workplace: Any, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = workplace.folder / "models" / "float" / "model.safetensors"
    shutil.copyfile(weights, workplace.folder / "first")
    with monkeypatch.context() as patch:
        loads = around_loading(patch, lambda: _replace(weights, other))
        replaced = workplace.session().perplexity()
        assert loads == ["float", "float"]
    assert workplace.session().perplexity() == replaced
    assert workplace.session().perplexity().cached
    _replace(weights, workplace.folder / "first")
    first = workplace.session().perplexity()
    assert not first.cached
    assert abs(first - replaced) > 0.01


def test_weights_that_are_replaced_and_put_back_are_measured_again(
    workplace: Any, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = workplace.session(cache=workplace.folder / "elsewhere").perplexity()
    weights = workplace.folder / "models" / "float" / "model.safetensors"

    def aside() -> None:
        weights.rename(weights.with_suffix(".aside"))
        shutil.copyfile(other, weights)

    loads = around_loading(monkeypatch, aside, lambda: weights.with_suffix(".aside").replace(weights))
    assert workplace.session().perplexity() == expected
    assert len(loads) == 2


def test_a_library_that_is_patched_while_it_is_loaded_is_seen(workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    around_loading(monkeypatch, lambda: monkeypatch.setattr(modeling_llama, "rotate_half", lambda x: x))
    session = workplace.session()
    assert not session.perplexity().cached
    assert list((workplace.folder / ".lmgate_cache").rglob("*.lmgate")) == []
    assert "rotate_half" in session.evaluator.measurements.uncacheable_reasons["float"]
    monkeypatch.undo()
    session.evaluator.forget()
    assert not session.perplexity().cached
