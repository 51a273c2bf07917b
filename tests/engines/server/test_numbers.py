"""One float32 model through transformers and behind real servers: the same NLL of each token, answers, texts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.settings.requests import Protocol
from tests.engines.numbers import (
    PROMPTS,
    PROTOCOLS,
    nll_of,
    require_same_nll,
    require_same_texts,
    require_sampled,
    texts_of,
)
from tests.engines.projects import Project, text_of
from tests.engines.server.conftest import entry_of

pytestmark = pytest.mark.xdist_group("server of vllm")

BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: f"{each.name}-{each.max_length}")
def test_every_token_behind_vllm_has_the_nll_of_transformers(
    reference: Any, vllm_server: str, served: Callable[..., Any], protocol: Protocol
) -> None:
    require_same_nll(served(vllm_server), reference, protocol)


def test_what_vllm_draws_has_the_likelihoods_that_it_wrote_by(
    reference: Any, vllm_server: str, served: Callable[..., Any]
) -> None:
    require_sampled(served(vllm_server), reference)


@pytest.mark.parametrize("how", [{}, {"stop": "the"}], ids=str)
def test_texts_behind_vllm_are_those_of_transformers(
    reference: Any, vllm_server: str, served: Callable[..., Any], how: dict[str, Any]
) -> None:
    require_same_texts(served(vllm_server), reference, **how)


@pytest.mark.parametrize("how", [{}, {"stop": "the"}], ids=str)
def test_texts_behind_llama_cpp_are_those_of_transformers(
    reference: Any, llama_cpp_server: str, served: Callable[..., Any], how: dict[str, Any]
) -> None:
    expected = [text.replace(BROKEN, "") for text in texts_of(reference, PROMPTS, max_new_tokens=40, **how)]
    # That server leaves out the bytes of broken characters, of which a model of random weights writes many, and does
    # not stop within one.
    found = [text.replace(BROKEN, "") for text in texts_of(served(llama_cpp_server), PROMPTS, max_new_tokens=40, **how)]
    assert [text[: len(other)] for text, other in zip(found, expected, strict=True)] == expected
    assert all(len(text) <= len(other) + 3 for text, other in zip(found, expected, strict=True))
    assert len(set(expected)) > 1


@pytest.mark.parametrize("server", ["vllm_server", "llama_cpp_server"])
@pytest.mark.parametrize("how", [{"temperature": 0.8}, {"top_k": 7}, {"top_p": 0.7, "temperature": 1.3}], ids=str)
def test_a_sample_depends_on_its_seed_and_row(
    request: pytest.FixtureRequest, served: Callable[..., Any], server: str, how: dict[str, Any]
) -> None:
    runner = served(request.getfixturevalue(server))
    equal = [PROMPTS[0]] * 3
    one, again, other = (texts_of(runner, equal, max_new_tokens=20, seed=seed, **how) for seed in (1, 1, 2))
    assert one == again
    assert not set(one) & set(other)
    assert len(set(one)) == 3


@pytest.mark.parametrize("server", ["vllm_server", "llama_cpp_server"])
def test_multiple_choice_is_that_of_the_float_model_in_every_answer(
    request: pytest.FixtureRequest, opened: Callable[..., Any], served: Callable[..., Any], server: str
) -> None:
    from pytest_lmgate.measure.scoring import score
    from pytest_lmgate.windows.choices import Question, plan_choices
    from pytest_lmgate.windows.requests import window_requests
    from tests.engines.numbers import JOB

    questions = [
        Question((text_of(12, row),), tuple(text_of(4, 100 * row + k) for k in range(4)), (0,)) for row in range(20)
    ]
    found = []
    for runner in (opened("float"), served(request.getfixturevalue(server))):
        plan = plan_choices(questions, runner.tokenizer, delimiter=" ", max_length=600, name="d", model="m")
        requests = window_requests(*plan, "d")
        nll = score(runner, requests, JOB).nll
        found.append((nll, np.add.reduceat(nll, requests.offsets[:-1]).reshape(20, 4).argmin(1)))
    (expected, best), (nll, chosen) = found
    assert np.abs(nll - expected).max() < 1e-4
    assert chosen.tolist() == best.tolist()
    assert len(set(best.tolist())) > 1


def test_llama_cpp_reads_text_alone_which_most_windows_are_not(
    llama_cpp_server: str, served: Callable[..., Any]
) -> None:
    runner = served(llama_cpp_server)
    with pytest.raises(
        ModelError, match=r"its server takes text, not token ids, and no text is cut into the 96 tokens"
    ):
        nll_of(runner, Protocol("sliding", 96, 32))
    with pytest.raises(
        EngineError, match=r"gives no likelihood of the first token after a BOS, which this protocol scores"
    ):
        nll_of(runner, Protocol("lm-eval"))


@pytest.mark.parametrize("server", ["vllm_server", "llama_cpp_server"])
def test_gates_of_a_served_model_are_those_of_the_float_model(
    request: pytest.FixtureRequest, project: Project, server: str
) -> None:
    gates = ["accuracy_min: {model: MODEL, dataset: quiz, limit: 0.001}"]
    gates += ["chrf_min: {model: MODEL, dataset: chats, limit: 0.001, max_new_tokens: 24}"] * (server == "vllm_server")
    gates += ["ppl_max: {model: MODEL, dataset: text, limit: 999999, max_length: 96, stride: 32}"] * (
        server == "vllm_server"
    )
    both = [gate.replace("MODEL", model) for gate in gates for model in ("float", "served")]
    url = request.getfixturevalue(server)
    said = project.run(both, {"served": entry_of(url, load={"context": 642})})
    assert project.status == 0, said
    values = project.values
    assert len(values) == len(both)
    for gate, value in values.items():
        assert value == pytest.approx(values[gate.replace("[served-", "[float-")], rel=1e-5), gate
