"""Engines that break their promise are errors that say so, never numbers."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.engines.base import Batching, BatchPolicy, OutOfMemory, Runner
from pytest_lmgate.engines.registry import raised
from pytest_lmgate.errors import EngineError, ModelError, NonFiniteError
from pytest_lmgate.measure.loop import Job, Log, Progress, score_requests
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts
from tests.engines.numbers import texts_of
from tests.windows.documents import document_requests


def _requests(*lengths: int) -> Requests:
    return document_requests(*(np.arange(length) + 100 * index for index, length in enumerate(lengths)))


class _Engine(Runner):
    """Says what it was given; answers as it is told to, and is not tried out before."""

    is_tried, rereads = True, False

    def __init__(self, answer: Callable[[Request], Any], batching: Batching | None = None, most: int = 1000) -> None:
        self._answer, self._batching, self._most = answer, batching or Batching(), most
        self.batches: list[list[int]] = []

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        return self._batching

    def score(self, requests: Sequence[Request]) -> list[Any]:
        self.batches.append([len(each.ids) for each in requests])
        if len(requests) > self._most:
            raise OutOfMemory("chip 0", "no room")
        return [self._answer(each) for each in requests]


def _certain(request: Request) -> Any:
    return np.zeros(len(request.targets))


def _full(value: float) -> Callable[[Request], Any]:
    return lambda request: np.full(len(request.targets), value)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (_full(np.nan), NonFiniteError, "NaN log-likelihood of token 1 in document 0"),
        (_full(-2.0), EngineError, "a negative log-likelihood of -2 nats in a window"),
        (lambda each: np.zeros(len(each.targets) + 1), EngineError, "expected 15 numbers of a window of 15 tokens"),
        (lambda each: 1 / 0, EngineError, "running a window of 15 tokens failed: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_a_likelihood_is_an_error(
    answer: Callable[[Request], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        score_requests(_Engine(answer), _requests(16, 9), Job(model="m", dataset="d", batch_size=1))


@pytest.mark.parametrize("given", [0, 1, 3])
def test_results_for_too_few_or_too_many_requests_are_an_error(given: int) -> None:
    engine = _Engine(_certain)
    engine.score = lambda requests: [_certain(requests[0])] * given  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=f"'m': expected a result for each of 2 requests, got {given}"):
        score_requests(engine, _requests(16, 9), Job(model="m", dataset="d"))


def test_a_batch_is_halved_where_memory_runs_out_and_stays_so() -> None:
    for batching in (Batching(), Batching(dispatch_async=True)):
        engine = _Engine(_certain, batching, most=2)
        score_requests(engine, _requests(*[9] * 7), Job(model="m", dataset="d"))
        assert [len(batch) for batch in engine.batches] == [7, 3, *[1] * 7]
    with pytest.raises(EngineError, match=r"out of memory with a window of 8 tokens alone on chip 0.*no room"):
        score_requests(_Engine(_certain, most=0), _requests(9), Job(model="m", dataset="d"))


def test_an_engine_may_fill_the_same_array_for_each_batch() -> None:
    filled = np.zeros(100)

    def fill(request: Request) -> Any:
        filled[: len(request.targets)] = request.targets
        return filled[: len(request.targets)]

    requests = _requests(*[9] * 6)
    found = score_requests(_Engine(fill, most=1), requests, Job(model="m", dataset="d"))
    assert found.nll.sum() == sum(requests.make(index).targets.sum() for index in range(6))


def test_an_engine_whose_results_come_one_by_one_is_halved_too() -> None:
    engine = _Engine(_certain)

    def yielded(requests: Sequence[Request]) -> Any:
        for index, each in enumerate(requests):
            if index == 2:
                raise OutOfMemory("chip 0", "no room")
            yield _full(-1e-7)(each)  # a rounding below zero, which is no error

    engine.score = yielded  # type: ignore[method-assign,assignment]
    assert np.isfinite(score_requests(engine, _requests(*[9] * 6), Job(model="m", dataset="d")).nll).all()


@pytest.mark.parametrize(
    ("policy", "batches"),
    [
        (BatchPolicy.ANY_LENGTH, [[8, 8, 4]]),
        (BatchPolicy.SAME_LENGTH, [[4], [8, 8]]),
        (BatchPolicy.SINGLE, [[4], [8], [8]]),
    ],
)
def test_requests_share_a_batch_as_the_engine_wants(policy: BatchPolicy, batches: list[list[int]]) -> None:
    said: list[str] = []
    engine = _Engine(_certain, Batching(policy=policy, remark="slow"))
    score_requests(engine, _requests(9, 5, 9), Job(model="m", dataset="d", log=Log(remark=said.append)))
    assert engine.batches == batches
    assert said == ["slow"]


def test_equal_requests_are_run_once_and_count_each_time() -> None:
    engine, told = _Engine(lambda each: np.full(len(each.targets), 1 + float(each.ids[0]))), list[Progress]()
    requests = document_requests(np.arange(9), np.arange(9), np.arange(9) + 1)
    found = score_requests(engine, requests, Job(model="m", dataset="d", log=Log(progress=told.append)))
    assert engine.batches == [[8, 8]]
    assert found.nll.tolist() == [1.0] * 16 + [2.0] * 8
    assert (told[-1].done, told[-1].of, told[-1].total) == (24, 24, 32)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_begins_before_the_results_of_the_one_before_are_waited_for_where_the_engine_says_so(
    ahead: bool,
) -> None:
    engine, log = _Engine(_certain, Batching(tokens=8, dispatch_async=ahead)), list[str]()
    begin = engine.begin

    def logged(requests: Sequence[Request]) -> Any:
        log.append("begun")
        wait = begin(requests)
        return lambda: log.append("waited for") or wait()

    engine.begin = logged  # type: ignore[method-assign]
    score_requests(engine, _requests(*[9] * 3), Job(model="m", dataset="d"))
    both = ["begun", "begun", "waited for", "begun", "waited for", "waited for"]
    assert log == (both if ahead else ["begun", "waited for"] * 3)


class _Writer(Runner):
    tokenizer = TokenizerFacts(lambda text, special: [-1 if letter == "-" else ord(letter) for letter in text])

    def __init__(self, written: Any) -> None:
        self._written = written

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Any:
        return self._written and [self._written] * len(prompts)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (("number 1 " * 9, 5), "row 0: a text of 81 tokens, but 32 were asked for .max_new_tokens."),
        (("a", 33), "row 0: a text of 33 tokens, but 32 were asked for .max_new_tokens."),
        ([None], "model 'm': row 0: expected a text and its number of tokens, got .None."),
        (None, "model 'm': expected a list of texts with their numbers of tokens, got NoneType"),
    ],
)
def test_texts_that_would_pass_are_errors(written: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        texts_of(_Writer(written), ["a prompt"], max_new_tokens=32)


def test_a_token_id_below_zero_is_an_error() -> None:
    with pytest.raises(ModelError, match="model 'm': its tokenizer gives token id -1: expected 0 or more"):
        texts_of(_Writer(("a", 1)), ["-"], max_new_tokens=32)


def test_what_was_raised_is_told_with_the_line_of_the_users_own_code_but_a_library_has_none() -> None:
    def refuse() -> None:
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting property name") as found:
        refuse()
    line = refuse.__code__.co_firstlineno + 1
    assert raised(found.value) == f"JSONDecodeError: {found.value} ({__file__}:{line})"
    while found.value.__traceback__ is not None and found.value.__traceback__.tb_frame.f_code.co_filename == __file__:
        found.value.__traceback__ = found.value.__traceback__.tb_next
    assert raised(found.value) == f"JSONDecodeError: {found.value}"
