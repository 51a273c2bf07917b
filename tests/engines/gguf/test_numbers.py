"""One float32 model through transformers and llama.cpp: the same NLL of each token, divergences of nothing, texts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import window_requests
from pytest_lmgate.windows.tokens import Streams
from tests.engines.projects import text_of

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from pytest_lmgate.engines.base import COLUMNS
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job, Log
from pytest_lmgate.measure.scoring import score
from tests.engines.numbers import (
    CORPUS,
    JOB,
    PROTOCOLS,
    WAYS,
    nll_of,
    requests_of,
    require_same_nll,
    require_same_texts,
    require_sampled,
    texts_of,
)


@pytest.fixture(scope="module")
def exact(opened: Callable[..., Any]) -> Any:
    return opened("f32.gguf")


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: f"{each.name}-{each.max_length}")
def test_every_token_has_the_nll_of_transformers(reference: Any, exact: Any, protocol: Protocol) -> None:
    # llama.cpp rounds the angles of late positions more: 0.0003 nats at position 600 of a model with random weights.
    require_same_nll(exact, reference, protocol, most=1e-3)


def test_what_it_draws_has_the_likelihoods_that_it_wrote_by(reference: Any, exact: Any) -> None:
    require_sampled(exact, reference)


def test_the_tokenizer_of_the_folder_gives_the_same_numbers(exact: Any, opened: Callable[..., Any], files: Any) -> None:
    beside = opened("f32.gguf", tokenizer=str(files / "float"))
    protocol = Protocol("sliding", 96, 32)
    assert np.array_equal(nll_of(beside, protocol), nll_of(exact, protocol))
    assert texts_of(beside, ["the cat"], max_new_tokens=9) == texts_of(exact, ["the cat"], max_new_tokens=9)


@pytest.mark.parametrize(("name", "limit"), [("f32.gguf", 1e-8), ("f16.gguf", 1e-4)])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_the_divergence_from_the_float_model_is_nothing(
    reference: Any, opened: Callable[..., Any], name: str, limit: float, side_by_side: bool
) -> None:
    candidate = opened(name)
    pair = ModelPair(("p", "q"), lambda: reference, lambda: candidate, side_by_side=side_by_side)
    found = compare(pair, requests_of(reference, Protocol("sliding", 128, 64)), JOB)
    assert 0 <= found[:, COLUMNS.index("kl")].mean() < limit
    assert found[:, COLUMNS.index("same_top")].mean() > 0.98


def test_a_gguf_is_the_reference_of_another(opened: Callable[..., Any]) -> None:
    p, q = opened("f32.gguf"), opened("q8_0.gguf")
    found = compare(ModelPair(("p", "q"), lambda: p, lambda: q), requests_of(p, Protocol("disjoint", 128)), JOB)
    assert 1e-8 < found[:, COLUMNS.index("kl")].mean() < 0.1


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_texts_are_those_of_transformers(reference: Any, exact: Any, how: dict[str, Any]) -> None:
    require_same_texts(exact, reference, **how)


@pytest.mark.parametrize("skip_special", [True, False])
def test_the_text_of_tokens_is_that_of_transformers(reference: Any, exact: Any, skip_special: bool) -> None:
    for text in ("the cat</s> sat<pad> on", "<s>the cat", "🙂 é", ""):
        ids = reference.tokenizer.encode(text, False)
        expected = reference.loaded.tokenizer.decode(ids, skip_special_tokens=skip_special)
        assert exact._tokens.decode(ids, skip_special) == expected


def test_a_chat_is_put_into_the_template_of_the_file(reference: Any, exact: Any) -> None:
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    assert exact.tokenizer.chat(messages) == reference.tokenizer.chat(messages)
    assert exact.tokenizer.chat(messages).startswith("<s>user: the cat\n")


def test_the_template_of_the_file_reads_its_variables_and_no_others(reference: Any, exact: Any) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    for variables in ({}, {"thinks": 3}, {"thinks": False}):
        assert exact.tokenizer.chat(messages, **variables) == reference.tokenizer.chat(messages, **variables)
    assert exact.tokenizer.chat(messages, thinks=3) == "<s>user: the cat\nthinks 3"
    with pytest.raises(ValueError, match="chat_template_kwargs: the template has no variable 'think'"):
        exact.tokenizer.chat(messages, think=3)


@pytest.mark.parametrize("text", ["", " ", "a", "<s>the cat</s>", "\n\n tab\t", "🙂 é 猫", "the cat " * 50])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_transformers(reference: Any, exact: Any, text: str, special: bool) -> None:
    assert list(exact.tokenizer.encode(text, special)) == list(reference.tokenizer.encode(text, special))
    assert (exact.tokenizer.bos, exact.tokenizer.eos, exact.tokenizer.adds_bos) == (1, 2, True)


@pytest.mark.parametrize("name", ["f32.gguf", "f16.gguf", "q8_0.gguf"])
def test_the_number_of_threads_changes_no_number(opened: Callable[..., Any], name: str) -> None:
    one, three = (opened(name, load={"n_threads": count}) for count in (1, 3))
    # 513 tokens are a batch and one more, which flash attention would share among the threads.
    corpus = Corpus("d", (text_of(500),))
    both = [score(each, requests_of(each, Protocol("sliding", 514, 100), corpus), JOB).nll for each in (one, three)]
    assert np.array_equal(*both)
    written = [texts_of(each, [text_of(400)], max_new_tokens=60, truncate="left") for each in (one, three)]
    assert written[0] == written[1]


def test_a_row_has_the_same_number_in_any_batch(opened: Callable[..., Any]) -> None:
    runner = opened("q8_0.gguf")
    requests = requests_of(runner, Protocol("document"))
    together = score(runner, requests, JOB).nll
    alone = score(runner, requests, Job(model="m", dataset="d", batch_size=1)).nll
    assert np.array_equal(together, alone)


def test_the_factors_of_longrope_go_by_the_length_of_a_row_and_of_no_other(opened: Callable[..., Any]) -> None:
    reference, runner = opened("longrope"), opened("longrope.gguf")
    rows, protocol = (text_of(185), *CORPUS.rows), Protocol("document")
    assert len(runner.tokenizer.encode(rows[0], True)) > 512 > len(runner.tokenizer.encode(rows[1], True))
    said: list[str] = []
    requests = requests_of(runner, protocol, Corpus("d", rows))
    together = score(runner, requests, Job(model="m", dataset="d", log=Log(remark=said.append))).nll
    alone = [score(runner, requests_of(runner, protocol, Corpus("d", (row,))), JOB).nll for row in rows]
    assert np.array_equal(together, np.concatenate(alone))
    assert np.abs(together - score(reference, requests, JOB).nll).max() < 1e-3
    assert said == [
        "model 'longrope.gguf': its numbers depend on the size of llama.cpp's context (as with longrope), so each row "
        "is read in a context of its own size"
    ]
    pair = ModelPair(("p", "q"), lambda: reference, lambda: runner)
    assert 0 <= compare(pair, requests, JOB)[:, COLUMNS.index("kl")].mean() < 1e-8

    prompts = [rows[0], text_of(9), text_of(30, 3)]
    how = {"max_new_tokens": 9, "truncate": "left"}
    expected = [texts_of(reference, [prompt], **how)[0] for prompt in prompts]
    assert texts_of(runner, prompts, **how) == expected


def test_a_text_that_outgrows_the_short_factors_of_longrope_is_read_again(opened: Callable[..., Any]) -> None:
    reference, runner = opened("longrope"), opened("longrope.gguf")
    ids = list(reference.tokenizer.encode(text_of(190, 2), True))[:508]
    prompt = reference.loaded.tokenizer.decode(ids[1:])
    assert list(runner.tokenizer.encode(prompt, True)) == ids
    for _ in range(10):
        logits = reference.loaded.model(torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    expected = reference.loaded.tokenizer.decode(ids[508:])
    assert texts_of(runner, [text_of(9), prompt], max_new_tokens=10)[1] == expected


def test_a_question_is_read_once_for_all_choices_of_one_token(
    reference: Any, exact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [exact.tokenizer.encode(text_of(length, seed), True) for seed, length in enumerate((40, 40, 25, 9, 40))]
    ids = [np.append(question, letter) for question in questions for letter in (5, 6, 7, 8)]
    streams = Streams(tuple(ids), None)
    ends = np.array([len(each) for each in ids])
    plan = WindowPlan(
        document=np.arange(20), begin=np.zeros_like(ends), end=ends, first=ends - 1, prefix=np.zeros(20, dtype=np.bool_)
    )
    read, plain = list[int](), exact._read
    monkeypatch.setattr(exact, "_read", lambda request: read.append(len(request.ids)) or plain(request))
    monkeypatch.setattr(exact, "is_tried", True)  # the trials read too

    found = score(exact, window_requests(streams, plan, "d"), JOB).nll

    assert sorted(read) == sorted(map(len, questions))
    assert found == pytest.approx(score(reference, window_requests(streams, plan, "d"), JOB).nll, abs=1e-3)


def test_logits_come_a_batch_at_a_time(opened: Callable[..., Any]) -> None:
    runner = opened("f32.gguf", load={"n_batch": 32})
    request = requests_of(runner, Protocol("disjoint", 128)).make(0)
    runner.prepare(requests_of(runner, Protocol("disjoint", 128)))
    parts = [len(logits) for _, _, logits in runner._read(request)]
    assert parts == [32, 32, 32, 31]
