"""One model in memory at a time, unless the next one fits beside those that are there."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.transformers import loading
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.measure import lookup as pool
from pytest_lmgate.measure.lookup import ModelPool
from pytest_lmgate.windows.tokens import TokenizerFacts


class _Weights(Runner):
    """Takes some of the memory there is, as long as anyone refers to it."""

    tokenizer = TokenizerFacts(lambda text, _: [])

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size


class _Memory:
    """A hundred bytes, a pool, and what was loaded."""

    def __init__(self) -> None:
        self.models: weakref.WeakSet[_Weights] = weakref.WeakSet()
        self.loaded: list[str] = []
        self.pool = ModelPool()

    def free(self, _: str) -> int:
        return 100 - sum(model.size for model in self.models)

    def get(self, name: str, size: int) -> None:
        def load() -> Runner:
            self.loaded.append(name)
            weights = _Weights(name, size)
            self.models.add(weights)
            return weights

        self.pool.get(name, Model(name, load, weight_bytes=size))

    def present(self) -> list[str]:
        return sorted(model.name for model in self.models)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> _Memory:
    memory = _Memory()
    monkeypatch.setattr(pool, "available_bytes", memory.free)
    return memory


def test_the_one_unused_for_longest_goes_first_and_no_more_than_needed(memory: _Memory) -> None:
    for name in ("a", "b", "c"):
        memory.get(name, 20)  # needs 40 free: 100, 80, 60
    memory.get("a", 20)
    memory.get("d", 20)  # 40 free: enough
    assert memory.present() == ["a", "b", "c", "d"]
    memory.get("e", 20)  # 20 free: b goes
    assert memory.present() == ["a", "c", "d", "e"]
    memory.get("b", 20)  # and c for b
    assert memory.present() == ["a", "b", "d", "e"]
    assert memory.loaded == ["a", "b", "c", "d", "e", "b"]


def test_a_large_model_drives_out_all_others_and_is_loaded_even_if_it_seems_too_large(memory: _Memory) -> None:
    for name, size in (("a", 10), ("b", 10), ("c", 10), ("large", 90)):
        memory.get(name, size)
    assert (memory.present(), len(memory.pool)) == (["large"], 1)


def test_a_third_model_drives_out_neither_of_two_that_it_has_to_stand_next_to(memory: _Memory) -> None:
    for name in ("a", "other", "b"):
        memory.get(name, 20)
    third = Model("c", lambda: pytest.fail("loaded"), weight_bytes=25)
    assert memory.pool.fits_beside(["a", "b"], "c", third)  # 40 free, 50 needed: the other one goes
    assert memory.present() == ["a", "b"]
    assert not memory.pool.fits_beside(["a", "b"], "d", replace(third, name="d", weight_bytes=40))
    assert memory.present() == ["a", "b"]


@pytest.mark.parametrize(("room", "most"), [(0, 1), (2**40, 2)])
def test_a_session_holds_as_many_models_as_fit(
    workplace: Any, monkeypatch: pytest.MonkeyPatch, room: int, most: int
) -> None:
    load, at_once = loading.load_checkpoint, list[int]()
    models: weakref.WeakSet[Any] = weakref.WeakSet()

    def watched(checkpoint: Any, **settings: Any) -> LoadedModel:
        gc.collect()
        loaded = load(checkpoint, **settings)
        models.add(loaded.model)
        at_once.append(len(models))
        return loaded

    monkeypatch.setattr(loading, "load_checkpoint", watched)
    monkeypatch.setattr(pool, "available_bytes", lambda _: room)
    session = workplace.session()
    gc.freeze()  # else each of the collections looks at all that was imported
    for model in ("float", "half", "float"):
        session.perplexity(model)
    session.perplexity(dataset="rows")
    assert at_once == {1: [1, 1, 1], 2: [1, 2]}[most]
