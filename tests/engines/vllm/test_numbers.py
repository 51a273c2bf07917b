"""One float32 model through transformers and vLLM: the same NLL of each token, the same greedy texts."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import EngineError
from pytest_lmgate.measure.loop import Job
from pytest_lmgate.measure.scoring import score
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.windows.requests import Request
from tests.engines.numbers import (
    JOB,
    PROMPTS,
    PROTOCOLS,
    requests_of,
    require_same_nll,
    require_same_texts,
    require_sampled,
    texts_of,
)

# The session itself never imports vLLM.
pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is NOT installed; make test-vllm runs these tests"),
    pytest.mark.xdist_group("vllm"),
]


@pytest.fixture(scope="module")
def served(opened: Callable[..., Any]) -> Iterator[Any]:
    runner = opened("float", backend="vllm")
    yield runner
    runner.close()


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: f"{each.name}-{each.max_length}")
def test_every_token_has_the_nll_of_transformers(reference: Any, served: Any, protocol: Protocol) -> None:
    require_same_nll(served, reference, protocol)


def test_a_number_is_the_same_each_time_and_in_any_batch_to_within_rounding(served: Any) -> None:
    requests = requests_of(served, Protocol("document"))
    together = score(served, requests, JOB).nll
    assert np.array_equal(together, score(served, requests, JOB).nll)
    alone = score(served, requests, Job(model="m", dataset="d", batch_size=1)).nll
    assert np.abs(together - alone).max() < 1e-5


def test_targets_may_be_few_and_out_of_order(reference: Any, served: Any) -> None:
    ids = np.arange(3, 43)
    at = np.array([20, 5, 39])
    request = Request(ids, at, np.append(ids[1:], 7)[at])
    requests = requests_of(served, Protocol("disjoint", 128))
    with reference.measuring():
        reference.prepare(requests)
        (expected,) = reference.score([request])
    (found,) = served.score([request])
    assert np.abs(found - expected).max() < 1e-4
    with pytest.raises(EngineError, match="scores only the token that follows a position"):
        served.score([Request(ids, at, np.array([1, 1, 1]))])


def test_what_it_draws_has_the_likelihoods_that_it_wrote_by(reference: Any, served: Any) -> None:
    require_sampled(served, reference)


@pytest.mark.parametrize("how", [{}, {"stop": "the"}], ids=str)
def test_greedy_texts_are_those_of_transformers(reference: Any, served: Any, how: dict[str, Any]) -> None:
    require_same_texts(served, reference, **how)


@pytest.mark.parametrize(
    "how", [{"seed": 3, "temperature": 0.8}, {"seed": 4, "top_k": 7}, {"seed": 5, "top_p": 0.7}], ids=str
)
def test_a_sample_depends_on_its_seed_and_row_alone(served: Any, how: dict[str, Any]) -> None:
    found = texts_of(served, PROMPTS, max_new_tokens=30, **how)
    assert texts_of(served, PROMPTS[:2], max_new_tokens=30, **how) == found[:2]
    assert texts_of(served, PROMPTS, max_new_tokens=30, **{**how, "seed": 9}) != found
    assert texts_of(served, [PROMPTS[0]] * 2, max_new_tokens=30, **how)[1] != found[0]


def test_the_context_may_be_filled_to_the_last_token(reference: Any, served: Any) -> None:
    ids = np.arange(640) % 300 + 3
    request = Request(ids, np.array([639]), np.array([11]))
    with reference.measuring():
        reference.prepare(requests_of(served, Protocol("disjoint", 128)))
        (expected,) = reference.score([request])
    assert served.score([request])[0] == pytest.approx(expected, abs=1e-4)
