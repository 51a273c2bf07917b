"""Beginnings that requests share are read once, and every number is that of the model's own pass over each request."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers import beginnings
from pytest_lmgate.engines.transformers import runner as transformers_runner
from pytest_lmgate.engines.transformers.decoding import Decoding
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.measure.cluster import outline
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import Requests, window_requests
from pytest_lmgate.windows.tokens import PromptIds, Streams
from tests.models.zoo import ARCHITECTURES, VOCABULARY, build, loaded, naive_nll, word_tokenizer

JOB = Job(model="m", dataset="d")


def of_texts(texts: list[Any], first: Any) -> tuple[Streams, WindowPlan]:
    """Whole texts, each scored from one of its tokens on."""
    ends, zero = np.array([len(text) for text in texts]), np.zeros(len(texts), dtype=np.int64)
    return Streams(texts, None), WindowPlan(np.arange(len(texts)), zero, ends, np.array(first), zero.astype(bool))


def few_shot(questions: int = 7) -> tuple[Streams, WindowPlan]:
    """Questions with three choices each: all but two come after the same examples."""
    drawn = np.random.default_rng(4)

    def tokens(count: int) -> list[int]:
        return drawn.integers(3, VOCABULARY - 4, count).tolist()

    begun, texts, first = tokens(24), [], []
    for question in range(questions):
        asked = [*(begun if question < questions - 2 else tokens(12)), *tokens(3 + question)]
        for size in (1, 1, 2 + question):
            texts.append(np.array([*asked, *tokens(size)]))
            first.append(len(asked))
    return of_texts(texts, first)


def measured(runner: TransformersRunner, questions: int = 7) -> tuple[Requests, np.ndarray]:
    requests = window_requests(*few_shot(questions), "d")
    return requests, score_requests(runner, requests, JOB).nll


def long_questions_first() -> tuple[Streams, WindowPlan]:
    """Long questions that share nothing and come first in the order of tokens, and short ones after one example."""
    drawn = np.random.default_rng(0)
    example, asked = drawn.integers(20, VOCABULARY - 4, 30), [np.array([3 + at]) for at in range(12)]
    questions = [np.append(each, drawn.integers(20, VOCABULARY - 4, 50)) for each in asked]
    questions += [np.concatenate([[90], example, drawn.integers(20, VOCABULARY - 4, 1 + at // 3)]) for at in range(12)]
    texts = [np.append(each, drawn.integers(20, VOCABULARY - 4, 2)) for each in questions]
    return of_texts(texts, [len(text) - 2 for text in texts])


def _ignores_its_cache() -> Any:
    model = build("llama")
    own = model.forward
    model.forward = lambda input_ids, past_key_values=None, use_cache=False: own(input_ids=input_ids, use_cache=False)
    return model


def _with_virtual_tokens() -> Any:
    with quiet():
        import peft  # and with it bitsandbytes and torch's compiler, for 2 s

        how = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
        return peft.get_peft_model(build("llama"), how).eval()


MODELS = {name: functools.partial(build, name) for name in ("llama", "mamba", "recurrent_gemma")}
MODELS |= {"ignores its cache": _ignores_its_cache, "virtual tokens": _with_virtual_tokens}


@pytest.mark.parametrize("name", MODELS)
def test_a_beginning_is_tried_even_if_the_longest_requests_share_none(name: str) -> None:
    model = MODELS[name]()
    runner = TransformersRunner(loaded(model), None)
    found = score_requests(runner, window_requests(*long_questions_first(), "d"), JOB).nll
    np.testing.assert_allclose(found, naive_nll(model, *long_questions_first()), rtol=2e-5, atol=2e-5)
    assert (runner._beginnings is not None) == (name == "llama")


def batches_of(runner: TransformersRunner, requests: Requests) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Score in the order that the engine wants; return the shape of each pass, and the NLLs."""
    shapes: list[tuple[int, int]] = []
    with runner.measuring():
        batching = runner.prepare(requests)
        assert batching.order is not None
        handle = runner.loaded.model.model.register_forward_pre_hook(
            lambda *given: shapes.append(tuple(given[2]["input_ids"].shape)), with_kwargs=True
        )
        found = runner.score([requests.make(int(index)) for index in batching.order])
        handle.remove()
    return shapes, np.concatenate([found[index] for index in np.argsort(batching.order)])


def test_few_tokens_are_read_and_keys_and_values_of_a_pass_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, requests = TransformersRunner(loaded(build("llama")), None), window_requests(*few_shot(), "d")
    shapes, _ = batches_of(runner, requests)
    assert sum(rows * tokens for rows, tokens in shapes) < requests.tokens / 2
    # Two layers with keys and values of two heads of 8 numbers: 256 bytes a token, and room for two rows of 41 tokens.
    monkeypatch.setattr(beginnings, "_MOST_KEPT", 256 * 2 * int(requests.lengths.max()))
    shapes, found = batches_of(runner, requests)
    assert max(rows for rows, _ in shapes) == 2
    np.testing.assert_allclose(found, naive_nll(build("llama"), *few_shot()), rtol=2e-5, atol=2e-5)


def test_half_precision_shares_beginnings_too() -> None:
    model = build("llama", dtype=torch.bfloat16)
    runner = TransformersRunner(loaded(model), None)
    np.testing.assert_allclose(measured(runner)[1], naive_nll(model, *few_shot()), rtol=0.1, atol=0.1)
    assert runner._beginnings is not None


def test_a_resumed_measurement_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_runner, "_MOST_SHARING", 4)
    model, kept = build("llama"), list[StoredResult]()
    requests, whole = measured(TransformersRunner(loaded(model), None))
    stopped = replace(JOB, keep=kept.append, stop_when=lambda _: len(kept) == 0)
    assert np.isnan(score_requests(TransformersRunner(loaded(model), None), requests, stopped).nll).any()
    resumed = score_requests(TransformersRunner(loaded(model), None), requests, replace(JOB, partial=kept[-1])).nll
    np.testing.assert_array_equal(resumed, whole)


def test_greedy_targets_are_told_from_shared_beginnings() -> None:
    model = build("llama")
    runner = TransformersRunner(loaded(model), None)
    requests = window_requests(*few_shot(), "d", greedy=True)
    found = score_requests(runner, requests, JOB)
    assert runner._beginnings is not None
    expected = []
    for index in range(len(requests)):
        request = requests.make(index)
        with torch.no_grad():
            tops = model(torch.from_numpy(request.ids)[None]).logits[0].argmax(-1).numpy()
        expected += (tops[request.at] == request.targets).tolist()
    assert found.greedy.tolist() == expected


def test_windows_of_a_text_and_the_outline_of_requests_are_read_whole() -> None:
    runner = TransformersRunner(loaded(build("llama")), None)
    streams, plan = few_shot()
    whole = replace(plan, first=np.ones_like(plan.first))
    for requests in (window_requests(streams, whole, "d"), outline(window_requests(streams, plan, "d"))):
        with runner.measuring():
            assert runner.prepare(requests).order is None


_WINDOW = {**ARCHITECTURES["llama"], "sliding_window": 42, "head_dim": 8}


def _texts(name: str, *, share: bool, config: dict[str, Any] | None = None, **how: Any) -> tuple[Decoding, list[Any]]:
    """What a model writes after prompts of one beginning, two at a time."""
    drawn = np.random.default_rng(2)
    begun = drawn.integers(3, VOCABULARY - 4, 30).tolist()
    prompts = [(*begun, *drawn.integers(3, VOCABULARY - 4, size).tolist()) for size in (9, 7, 6, 2, 1)]
    ready = loaded(build(name, **(config or {})), word_tokenizer())
    runner = TransformersRunner(ready, None)
    with runner.measuring():
        decoding = Decoding(ready, GenerationSettings(**{"max_new_tokens": 6} | how))
        if share:
            decoding.batching([PromptIds(row, "", ids) for row, ids in enumerate(prompts)], None)
        texts = [decoding.texts(prompts[at : at + 2], range(at, min(at + 2, 5))) for at in range(0, 5, 2)]
    return decoding, [text for some in texts for text in some]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, {}) for name in ("gpt2", "jamba")),
        *((name, how) for name in ("llama", "mamba") for how in ({"seed": 3, "temperature": 1.0}, {"stop": ("w1",)})),
        # 42 is beyond the longest prompt and what a trial writes after it: only longer texts leave the window.
        *((name, {"config": _WINDOW, "max_new_tokens": 20}) for name in ("mistral", "gemma2")),
    ],
)
def test_texts_after_a_shared_beginning_are_those_of_whole_prompts(name: str, how: dict[str, Any]) -> None:
    decoding, texts = _texts(name, share=True, **how)
    assert texts == _texts(name, share=False, **how)[1]
    assert bool(decoding._beginning) == (name not in ("mamba", "jamba"))
