"""What travels to a worker, tried without one: a recipe that makes the same model, or says how it differs."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.engines.base import Batching, Runner
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.measure.cluster import Recipe, Worker, _words, outline
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.session import Options
from pytest_lmgate.windows.requests import Requests
from tests.engines.fair_die import Dice
from tests.windows.documents import document_requests


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Of a die of six sides, as it would travel."""
    (tmp_path / "six.die").write_text('{"sides": 6}')
    (tmp_path / "lmgate.yaml").write_text("models: {six: {path: six.die}}")
    found: list[Recipe] = []
    evaluator = Evaluator(
        load_project(tmp_path), Options(cache=tmp_path / "cache"), users_backends={"fair-die": Dice()}
    )

    class _Here:
        """In the place of the cluster: takes the recipe that the cluster would be given."""

        def moved(self, model: Any, backend: Any, entry: Any) -> Any:
            found.append(Recipe.of(model, backend, entry))
            return model

    monkeypatch.setattr(evaluator.resolver, "_cluster", _Here())
    evaluator.resolver.model("six")
    travelled: Recipe = pickle.loads(pickle.dumps(found[0]))  # our own bytes, within one process
    return travelled


def test_a_worker_makes_the_model_that_was_described_or_says_how_it_differs(recipe: Recipe, tmp_path: Path) -> None:
    model = recipe.model("node-1")
    assert model.ingredients == recipe.ingredients
    assert isinstance(model.open(), Runner)
    (tmp_path / "six.die").write_text('{"sides": 8}')
    with pytest.raises(ModelError, match=r"model 'six' differs on the node node-1 \(die: \w+.* -> \w+.*\)"):
        recipe.model("node-1")


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(EngineError, match=r"here it is 0\.0\.1: expected one version on all nodes"):
        Worker().ready("0.0.1")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("The actor died.\n\tclass_name: Worker\n", "The actor died."),
        (
            "Version mismatch: here it is:\n  Python: 3.11\n  Ray: 2\n",
            "Version mismatch: here it is: Python: 3.11 Ray: 2",
        ),
        (
            "Failure:\nTraceback (most recent call last):\n  File x\nValueError: no room\n",
            "Failure: ValueError: no room",
        ),
        ("", "RuntimeError"),
    ],
)
def test_what_ray_says_is_one_line_with_its_reason(said: str, words: str) -> None:
    assert _words(RuntimeError(said)) == words


REQUESTS = document_requests(*map(np.arange, (4, 7, 7, 5)))  # the two of 7 tokens are equal


def test_an_outline_has_the_lengths_of_all_and_the_text_of_few() -> None:
    requests, found = REQUESTS, outline(REQUESTS)
    assert found.lengths.tolist() == requests.lengths[requests.order].tolist() == sorted(found.lengths, reverse=True)
    assert (found.highest, found.tokens) == (requests.highest, requests.tokens)
    assert found.order.tolist() == list(range(len(found)))
    for at in (0, 1, -1):
        mine, its = found.make(int(found.order[at])), requests.make(int(requests.order[at]))
        assert np.array_equal(mine.ids, its.ids)
        assert np.array_equal(mine.targets, its.targets)


def test_an_outline_leads_an_engine_to_the_same_batches() -> None:
    class _Looks(Runner):
        def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
            ends = [requests.make(int(requests.order[at])).ids.sum() for at in (0, 1, -1)]
            return Batching(int(requests.lengths.max()) * 2, remark=f"{ends} {requests.may_pad}")

    assert _Looks().prepare(outline(REQUESTS)) == _Looks().prepare(REQUESTS)
