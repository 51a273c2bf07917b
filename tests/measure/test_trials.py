"""Engines of one's own whose numbers would pass a gate: what the loop tries out before it believes them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.engines.base import Batching, OutOfMemory, Runner
from pytest_lmgate.errors import EngineError, LmgateError
from pytest_lmgate.measure.loop import Job
from pytest_lmgate.measure.scoring import score
from pytest_lmgate.windows.requests import Request
from tests.windows.documents import document_requests

SIZE = 50
Floats = np.ndarray[Any, np.dtype[np.float64]]
IDS = np.random.default_rng(0).integers(0, SIZE, 40)


class Mixing(Runner):
    """A model of numpy: the distribution after a token depends on all tokens before it, and on `ahead` after it."""

    def __init__(self, ahead: int = 0, exponent: float = 1.0) -> None:
        self.ahead, self.exponent, self.most, self.asked = ahead, exponent, 10_000, 0
        self.vectors = np.random.default_rng(1).normal(size=(2, SIZE, 8))

    def log_probabilities(self, ids: Sequence[int]) -> Floats:
        """Shape ``[tokens, vocabulary]``."""
        reads, writes = self.vectors
        mixed = np.cumsum(reads[ids], 0) / np.sqrt(np.arange(1, len(ids) + 1))[:, None]
        mixed = mixed + reads[ids]
        if self.ahead:
            mixed[: -self.ahead] += 0.3 * reads[ids][self.ahead :]
        logits = mixed @ writes.T
        shifted = logits - logits.max(1, keepdims=True)
        found: Floats = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return found

    def score(self, requests: Sequence[Request]) -> Sequence[Any]:
        self.asked += 1
        if sum(len(each.ids) for each in requests) > self.most:
            raise OutOfMemory("chip 0")
        return [self.nll(each) for each in requests]

    def nll(self, request: Request) -> Any:
        return -self.log_probabilities(request.ids)[request.at, request.targets] * self.exponent


class Following(Mixing):
    """Scores the token that follows a position alone, whatever the target is, as the API of a server does."""

    def nll(self, request: Request) -> Any:
        follows = np.append(request.ids, request.targets[-1])[request.at + 1]
        return -self.log_probabilities(request.ids)[request.at, follows]


class Declared(Following):
    any_target = False


def scored(runner: Runner, *, length: int = 40) -> Any:
    return score(runner, document_requests(IDS[:length], IDS[::-1][:length], length=40), Job(model="m", dataset="d"))


@pytest.mark.parametrize("make", [Mixing, Declared])
def test_a_causal_model_is_tried_once_and_has_its_own_numbers(make: Callable[[], Mixing]) -> None:
    runner = make()
    expected = np.concatenate(
        [-runner.log_probabilities(ids[:-1])[range(39), ids[1:]] for ids in (IDS, IDS[::-1].copy())]
    )
    assert scored(runner).nll == pytest.approx(expected)
    first = runner.asked
    assert scored(runner).nll == pytest.approx(expected)
    assert runner.asked - first == 1, "the trial is made once"
    scarce = make()
    scarce.most = 200  # tokens: the rows of the trial do not fit in one batch, and are read alone
    assert scored(scarce).nll == pytest.approx(expected)
    assert scarce.asked > first
    short = make()
    scored(short, length=5)
    assert not short.is_tried, "few tokens show little"


@pytest.mark.parametrize("ahead", [1, 2, 8])
def test_a_model_that_looks_ahead_is_refused(ahead: int) -> None:
    with pytest.raises(LmgateError, match="perplexity is undefined for the model 'm': its likelihood of a token depen"):
        scored(Mixing(ahead))
    scarce = Mixing(ahead)
    scarce.most = 200
    with pytest.raises(LmgateError, match="depends on the tokens after it"):
        scored(scarce)
    if ahead > 1:  # a token that follows is known to whoever asks for its likelihood
        with pytest.raises(LmgateError, match="depends on the tokens after it"):
            scored(Declared(ahead))


class Answering(Mixing):
    """Answers with something else than its numbers."""

    def __init__(self, answer: Callable[[Floats], Any]) -> None:
        super().__init__()
        self.answer = answer

    def nll(self, request: Request) -> Any:
        return self.answer(super().nll(request))


DRAWN = np.random.default_rng(2)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda nll: nll * 0, "the probabilities of 37 different tokens after one text sum to 37: expected 1 or less"),
        (lambda nll: nll * 0 + 2, "tokens after one text sum to 5.007: expected 1 or less; its engine has to give"),
        (lambda nll: nll / np.log(10), "different tokens after one text sum to"),
        (lambda nll: nll + DRAWN.random(len(nll)) + 1, "model 'm' is not deterministic: it gave two different"),
        (lambda nll: nll.round().astype(int), "expected real floating-point numbers, the NLLs of a request's targets"),
        (lambda nll: nll > 3, r"in nats, got bool \["),
        (lambda nll: nll + 0j, r"in nats, got complex128 \["),
        (lambda nll: nll.astype(str), r"in nats, got <U32 \['"),
        (
            lambda nll: nll[:-1],
            r"model 'm': expected NLLs of the shapes \[\(1,\), \(1,\), \(1,\)\]\.\.\., got \[\(0,\)",
        ),
        (lambda nll: None, r"in nats, got object \[None\]"),
        (lambda nll: -nll, "a negative log-likelihood of"),
        (lambda nll: np.full(len(nll), np.nan), "NaN log-likelihood of token 1 in document"),
    ],
)
def test_numbers_that_cannot_be_likelihoods_are_refused(answer: Callable[[Floats], Any], message: str) -> None:
    with pytest.raises(LmgateError, match=message):
        scored(Answering(answer))


@pytest.mark.parametrize(
    ("found", "message"),
    [(None, "expected a list of arrays of NLLs, got NoneType"), ("text", "expected a list of arrays of NLLs, got str")],
)
def test_something_else_than_a_list_is_refused(found: Any, message: str) -> None:
    runner = Mixing()
    runner.score = lambda requests: found  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=f"model 'm': {message}"):
        scored(runner)


def test_an_engine_that_does_not_look_at_targets_has_to_say_so() -> None:
    with pytest.raises(EngineError, match=r"different tokens are equally likely at each position.*any_target = False"):
        scored(Following())

    class Strict(Mixing):
        def nll(self, request: Request) -> Any:
            assert np.array_equal(np.append(request.ids, request.targets[-1])[request.at + 1], request.targets)
            return super().nll(request)

    with pytest.raises(EngineError, match="targets that are not the tokens that follow failed: AssertionError"):
        scored(Strict())


def test_an_engine_that_reads_once_what_reads_the_same_is_tried_so() -> None:
    class Once(Mixing):
        def prepare(self, requests: Any, *, compare: bool = False) -> Batching:
            return Batching(dedup_reads=True)

    runner = Once()
    assert np.isfinite(scored(runner).nll).all()
    with pytest.raises(EngineError, match="different tokens after one text sum to"):
        scored(Once(exponent=0.3))
