"""What goes wrong with servers: passing trouble is waited out, and anything else is one clear error, never a number."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from pytest_lmgate.engines import server
from pytest_lmgate.errors import EngineError, LmgateError, ModelError
from pytest_lmgate.measure.texts import generate
from pytest_lmgate.settings.gate_options import GenerationSettings, WindowProtocol
from tests.engines.numbers import JOB, nll_of, requests_of, texts_of
from tests.engines.projects import CONTEXT
from tests.engines.server import faulty as faults
from tests.engines.server.faulty import NAME, FaultyServer, Spoil, changed_rows, changed_values, first

PROTOCOL = WindowProtocol("disjoint", 128)
PROBE = 6 + 2 * 4  # requests of the experiment: six texts, and four that are drawn and read
QUICK = {"context": 642, "retries": 1, "timeout": 5}


@pytest.fixture(autouse=True)
def no_experiment_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are counted by request, so no experiment is repeated by chance between them; that after the last stays."""
    monkeypatch.setattr(server, "_TRIED_AGAIN", 10**9)


def later(spoil: Spoil) -> Spoil:
    return lambda number, body, answer: spoil(number, body, answer) if number >= PROBE else answer


def expected_nll(faulty: FaultyServer, runner: Any) -> np.ndarray[Any, Any]:
    requests = requests_of(runner, PROTOCOL)
    made = [requests.make(each) for each in range(len(requests))]
    return np.concatenate([-faulty.bigrams.logprobs[each.ids[each.at], each.targets] for each in made])


def test_a_request_is_sent_again_after_the_wait_that_the_server_asks_for(
    faulty: FaultyServer, served: Callable[..., Any]
) -> None:
    begun: list[float] = []

    def busy(number: int, _: Any, answer: Any) -> Any:
        begun.append(time.monotonic())
        return (429, {"error": {"message": "slow down"}}, {"Retry-After": "1.5"}) if number == 0 else answer

    faulty.spoil = busy
    runner = served(faulty.url)
    assert np.abs(nll_of(runner, PROTOCOL) - expected_nll(faulty, runner)).max() < 1e-12
    assert begun[1] - begun[0] >= 1.5


@pytest.mark.parametrize("trouble", [(500, {"error": "boom"}), (503, "<html>starting</html>"), None], ids=str)
def test_passing_trouble_changes_no_number(faulty: FaultyServer, served: Callable[..., Any], trouble: Any) -> None:
    faulty.spoil = lambda number, _, answer: trouble if number % 5 == 1 else answer
    runner = served(faulty.url)
    assert np.abs(nll_of(runner, PROTOCOL) - expected_nll(faulty, runner)).max() < 1e-12


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (later(lambda *_: (500, {"error": {"message": "CUDA error"}})), "HTTP 500: CUDA error (tried 2 times)"),
        (lambda *_: (503, {"detail": "loading"}), "HTTP 503: loading (tried 2 times, up to 1 s each); check that"),
        (lambda *_: (429, {}, {"Retry-After": "900"}), "HTTP 429: {} and asks for a wait of 900 s (tried once"),
        (lambda *_: None, "RemoteProtocolError: Server disconnected without sending a response"),
        (faults.slow(1.5), "ReadTimeout: timed out (tried 2 times, up to 1 s each)"),
        (lambda *_: (401, {"error": {"message": "no key"}}), "HTTP 401: no key; it may need a key:"),
        (lambda *_: (307, {}, {"Location": "http://x/"}), "HTTP 307: {}; it moved to http://x/: check models.m.server"),
        (lambda *_: "<!DOCTYPE html><html>Sign in", "expected a JSON object, got text/html that begins '<!DOCTYPE"),
        (lambda *_: {"choices": []}, "expected one completion under choices, got"),
        (faults.without_echo, "got None; by echo with token ids and echo with text: expected a mapping with token_log"),
        (faults.off_by_one, "expected no change before it; the likelihoods may be off by one token"),
        (faults.without_tops, "it does not say which tokens are the likeliest (top_logprobs)"),
        (faults.constant, "the likelihood of a token does not depend on the tokens before it"),
        (faults.other_tokens, "expected the likelihood of token id"),
        (changed_rows(lambda rows: [*rows, rows[-1]]), "tokens of the prompt, got"),
        (changed_rows(lambda rows: [*rows[:5], None, *rows[6:]]), "token 5 has no likelihood: None"),
        (changed_values(lambda value: round(value, 3)), "the likelihoods are rounded to 4 decimals or fewer, as -"),
        (changed_values(faults.half), "the likelihoods are in half precision, as -"),
        (changed_values(lambda value: -value), "is not a log-likelihood: expected 0 or less; does the server give"),
        (changed_values(lambda value: value - 9), "expected -5.768 or more; does the server give logits"),
        (changed_values(str), "has no likelihood: expected a number, got '-"),
        (changed_values(lambda _: float("nan")), "nan is not a log-likelihood: expected 0 or less"),
        (later(changed_rows(lambda rows: rows[:-1])), "tokens of the prompt, got 1"),
        (later(changed_rows(lambda rows: [*rows[:9], None, *rows[10:]])), "token 9 has no likelihood: None"),
        (later(changed_values(lambda _: float("nan"))), "nan is not a log-likelihood"),
        (later(changed_values(lambda value: -value)), "is not a log-likelihood"),
        (later(changed_values(lambda _: -9999.0)), "infinite log-likelihood of token"),
        (later(lambda *_: (400, {"error": {"message": "too long"}})), "HTTP 400: too long"),
    ],
)
def test_a_spoilt_answer_is_an_error_and_no_number(
    faulty: FaultyServer, served: Callable[..., Any], spoil: Spoil, said: str
) -> None:
    faulty.spoil = spoil
    with pytest.raises(LmgateError) as raised:
        nll_of(served(faulty.url, load={**QUICK, "timeout": 1}), PROTOCOL)
    assert said in str(raised.value)
    assert str(raised.value).startswith("model 'm': ")


DRAWN = "the tokens that it draws at temperature 1 are not those that its log-probabilities make likely"


@pytest.mark.parametrize("way", [lambda spoil: spoil, faults.without_prompt_logprobs], ids=["prompt_logprobs", "echo"])
@pytest.mark.parametrize(
    ("spoil", "temperature", "said"),
    [
        (changed_values(lambda value: value / math.log(10)), 1.0, "tokens in its place sum to"),
        (changed_values(lambda value: value / math.log(2)), 1.0, DRAWN),
        (lambda _, body, answer: answer, 2.0, DRAWN),
    ],
    ids=["base 10", "base 2", "temperature 2"],
)
def test_numbers_that_are_no_natural_logarithms_of_what_is_drawn_are_refused(
    faulty: FaultyServer,
    served: Callable[..., Any],
    way: Callable[[Spoil], Spoil],
    spoil: Spoil,
    temperature: float,
    said: str,
) -> None:
    faulty.bigrams.names_ids = True
    faulty.bigrams.reported = faults.normalized(faulty.bigrams.logprobs / temperature)
    faulty.spoil = way(spoil)
    with pytest.raises(ModelError) as raised:
        nll_of(served(faulty.url, load=QUICK), PROTOCOL)
    assert said in str(raised.value)


def test_numbers_of_every_honest_server_are_accepted(faulty: FaultyServer, served: Callable[..., Any]) -> None:
    scores = np.random.default_rng(1).normal(size=faulty.bigrams.logprobs.shape)
    for spread in (0.3, 20):
        faulty.bigrams.reported = faulty.bigrams.logprobs = faults.normalized(scores * spread + scores[:1])
        for way in (lambda spoil: spoil, faults.without_prompt_logprobs):
            faulty.spoil = way(lambda _, body, answer: answer)
            for faulty.bigrams.names_ids in (False, True):
                runner = served(faulty.url, load=QUICK)
                assert np.abs(nll_of(runner, PROTOCOL) - expected_nll(faulty, runner)).max() < 1e-12


@pytest.mark.parametrize("models", [(404, {}), {"data": [{"id": "large"}, {"id": "xl"}]}], ids=["unlisted", "listed"])
def test_a_model_that_the_server_has_no_longer_is_an_error(
    faulty: FaultyServer, served: Callable[..., Any], models: Any
) -> None:
    runner = served(faulty.url)
    faulty.models = models
    faulty.spoil = lambda *_: (404, {"error": {"message": f"The model `{NAME}` does not exist."}})
    listed = "it has large, xl" if isinstance(models, dict) else f"HTTP 404: The model `{NAME}` does not exist"
    for measure in (lambda: nll_of(runner, PROTOCOL), lambda: texts_of(runner, ["the cat"], max_new_tokens=5)):
        with pytest.raises(LmgateError, match=f"has no model 'tiny'.*{listed}.*: check models.m.model"):
            measure()


def test_so_many_requests_are_on_their_way_at_once_as_the_entry_says(
    faulty: FaultyServer, served: Callable[..., Any]
) -> None:
    faulty.spoil = faults.slow(0.03)
    nll_of(served(faulty.url, load={**QUICK, "concurrency": 3}), PROTOCOL)
    assert faulty.most_at_once == 3


def test_a_server_that_reads_text_alone_is_sent_text(faulty: FaultyServer, served: Callable[..., Any]) -> None:
    refused = (400, {"error": {"message": "expected a string"}})
    faulty.spoil = lambda _, body, answer: answer if isinstance(body["prompt"], str) else refused
    runner = served(faulty.url)
    expected = texts_of(served(faulty.url), ["the cat", "on a log"], max_new_tokens=5)
    assert all(isinstance(body["prompt"], str) for body in faulty.bodies[1:])
    faulty.spoil = lambda _, body, answer: answer
    assert texts_of(served(faulty.url), ["the cat", "on a log"], max_new_tokens=5) == expected
    assert list(runner.tokenizer.encode("on a log", True)) in [body["prompt"] for body in faulty.bodies]


def test_a_text_ends_before_a_stop_string_that_is_a_special_token(
    faulty: FaultyServer, served: Callable[..., Any], tokenizer: Any
) -> None:
    """A server gives token ids, or the text with special tokens, of "the cat</s> sat<pad> on", and stops by itself."""
    ids = tokenizer("the cat</s> sat<pad> on", add_special_tokens=False)["input_ids"]
    assert {"</s>", "<pad>"} <= set(tokenizer.convert_ids_to_tokens(ids))
    # The tokenizer's EOS ends a text in any case where its tokens are known.
    for gives_ids, stop, expected in (
        (True, [], "the cat"),
        (False, [], "the cat</s> sat<pad> on"),
        (False, ["</s>"], "the cat"),
        (False, ["<pad>"], "the cat sat"),
        (False, ["pad>"], "the cat sat<"),
        (False, ["no such"], "the cat sat on"),
    ):

        def written(_: int, body: Any, answer: Any, gives_ids: bool = gives_ids) -> Any:
            choice = first(answer)
            if "token_ids" in choice and body["max_tokens"] == 20:
                choice |= {"token_ids": ids} if gives_ids else {"text": "the cat</s> sat<pad> on", "token_ids": None}
            return answer

        faulty.spoil = written
        assert texts_of(served(faulty.url), ["a"], max_new_tokens=20, stop=stop) == [expected]
        assert faulty.bodies[-1].get("skip_special_tokens") is (False if stop else None)


def test_the_space_before_the_first_word_is_left_out_where_the_tokenizer_leaves_it_out(
    served: Callable[..., Any], tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=200, special_tokens=["<s>"], show_progress=False)
    backend.train_from_iterator(["the cat sat on the mat and a dog ran under the log " * 9], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    tokenizer.save_pretrained(tmp_path)
    faulty = FaultyServer(tokenizer)
    prompts = list("acdeghlmnorstu")

    def written(_: int, body: Any, answer: Any) -> Any:
        """Answer as a server that decodes the whole text, and cuts the prompt off."""
        ids = first(answer).pop("token_ids")
        whole, prompt = (tokenizer.decode(tokens) for tokens in ([*body["prompt"], *ids], body["prompt"]))
        first(answer)["text"] = whole[len(prompt) :]
        return answer

    expected = texts_of(served(faulty.url, tokenizer=str(tmp_path)), prompts, max_new_tokens=5)
    faulty.spoil = lambda _, body, answer: written(_, body, answer) if "token_ids" in first(answer) else answer
    sent = [first(written(0, body, faulty.bigrams.answer(body)))["text"] for body in faulty.bodies[1:]]
    assert any(text.startswith(" ") for text in sent)
    assert texts_of(served(faulty.url, tokenizer=str(tmp_path)), prompts, max_new_tokens=5) == expected
    faulty.close()


LETTER = [{"text": "a", "finish_reason": "length"}]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"usage": {"prompt_tokens": 99}}, "row 0: the prompt has 2 tokens by tokenizer:, but the server counted 99"),
        ({"usage": None}, "but the server counted none"),
        ({"choices": [{"text": "a", "finish_reason": "abort"}]}, "expected finish_reason stop or length, got 'abort'"),
        ({"choices": [{"text": None, "finish_reason": "stop"}]}, "row 0: expected a text, got None"),
        ({"choices": LETTER, "usage": {"prompt_tokens": 2, "completion_tokens": 30}}, "row 0: a text of 30 tokens"),
        ({"choices": [{"text": "the cat " * 9, "finish_reason": "stop"}]}, "tokens, but 5 were asked for"),
        ({"choices": [{"text": "a", "token_ids": [5] * 6, "finish_reason": "stop"}]}, "row 0: a text of 6 tokens"),
    ],
)
def test_a_spoilt_text_is_an_error(faulty: FaultyServer, served: Callable[..., Any], spoil: Any, said: str) -> None:
    faulty.spoil = lambda number, _, answer: {**answer, **spoil} if number else answer
    with pytest.raises(EngineError, match=said):
        texts_of(served(faulty.url), ["t"], max_new_tokens=5)


@pytest.mark.parametrize("usage", [{"completion_tokens": 3}, {}])
def test_a_character_that_the_server_cut_is_a_broken_one_and_its_own_limit_cuts_too(
    faulty: FaultyServer, served: Callable[..., Any], usage: dict[str, int]
) -> None:
    cut = {"choices": [{"text": "a \ud83d", "finish_reason": "length"}], "usage": {"prompt_tokens": 2, **usage}}
    faulty.spoil = lambda number, _, answer: {**answer, **cut} if number else answer
    found = generate(served(faulty.url), ["t"], GenerationSettings(max_new_tokens=5), JOB, context=CONTEXT)
    assert found == (["a \N{REPLACEMENT CHARACTER}"], [True])


def test_nothing_is_left_to_the_defaults_of_a_server(faulty: FaultyServer, served: Callable[..., Any]) -> None:
    texts_of(served(faulty.url), ["the cat"], max_new_tokens=5, stop=["x"])
    texts_of(served(faulty.url), ["the cat"], max_new_tokens=5, seed=3, top_k=4, temperature=0.5)
    greedy, drawn = faulty.bodies[1], faulty.bodies[3]
    plain = {"repetition_penalty": 1, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "min_p": 0}
    said = {"temperature": 0, "top_p": 1, "top_k": 0, "stop": ["x"], "max_tokens": 5, "model": NAME}
    assert (plain | said).items() <= greedy.items()
    assert (plain | {"temperature": 0.5, "top_p": 1, "top_k": 4}).items() <= drawn.items()
    assert "seed" not in greedy
    assert isinstance(drawn["seed"], int)
