"""Engines of one's own whose numbers would pass a gate: what the loop tries out before it believes them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.engines.base import Batching, OutOfMemory, Runner
from pytest_lmgate.errors import EngineError, LmgateError, ModelError, UnreliableError
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.windows.requests import Request
from tests.windows.documents import document_requests

SIZE = 50
Floats = np.ndarray[Any, np.dtype[np.float64]]
IDS = np.random.default_rng(0).integers(0, SIZE, 40)


class Mixing(Runner):
    """A model of numpy: the distribution after a token depends on all tokens before it, and on `ahead` after it."""

    rereads = False

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
    return score_requests(
        runner, document_requests(IDS[:length], IDS[::-1][:length], length=40), Job(model="m", dataset="d")
    )


@pytest.mark.parametrize("make", [Mixing, Declared])
def test_a_causal_model_is_tried_once_and_has_its_own_numbers(make: Callable[[], Mixing]) -> None:
    runner = make()
    expected = np.ravel([-runner.log_probabilities(ids[:-1])[range(39), ids[1:]] for ids in (IDS, IDS[::-1].copy())])
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
        (lambda nll: nll + 0j, r"in nats, got complex128 \["),
        (lambda nll: nll[:-1], r"expected NLLs of the shapes \[\(1,\), \(1,\), \(1,\)\]\.\.\., got \[\(0,\)"),
        (lambda nll: None, r"in nats, got object \[None\]"),
        (lambda nll: -nll, "a negative log-likelihood of"),
        (lambda nll: np.full(len(nll), np.nan), "NaN log-likelihood of token 1 in document"),
    ],
)
def test_numbers_that_cannot_be_likelihoods_are_refused(answer: Callable[[Floats], Any], message: str) -> None:
    with pytest.raises(LmgateError, match=message):
        scored(Answering(answer))


class Recalling(Mixing):
    """Keeps the blocks of tokens that it has read, and answers what begins with them as told, as a server does.

    `answer` makes the NLLs of such tokens of what they are and of what the last request that was read had there.
    """

    rereads, any_target = True, False

    def __init__(self, block: int, answer: Callable[[Floats, Floats], Any]) -> None:
        super().__init__()
        self.is_tried, self.answer, self.block = True, answer, block
        self.read: set[bytes] = set()
        self.last = np.zeros(4096)

    def nll(self, request: Request) -> Any:
        ids = np.append(request.ids[: request.at.max() + 1], request.targets[-1])
        own = -self.log_probabilities(ids[:-1])[np.arange(len(ids) - 1), ids[1:]]
        ends = range(self.block, len(ids), self.block)
        known = max((end for end in ends if ids[:end].tobytes() in self.read), default=0)
        self.read |= {ids[:end].tobytes() for end in ends}
        given = np.append(self.answer(own[:known], self.last[:known]), own[known:])
        self.last[known : len(own)] = own[known:]
        return given[request.at]


LONG = np.random.default_rng(3).integers(0, SIZE, (3, 700))
LONG[:, :400] = LONG[0, :400]  # rows with a common beginning
STALE: dict[str, Callable[[Floats, Floats], Any]] = {
    "zeros": lambda own, last: own * 0,
    "of the last request": lambda own, last: last,
    "of the token before": lambda own, last: np.roll(own, 1),
}


def read_again(runner: Runner, length: int = 700, **job: Any) -> Any:
    rows = [each[:length] for each in LONG]
    return score_requests(runner, document_requests(*rows, length=length), Job(model="m", dataset="d", **job))


@pytest.mark.parametrize("fault", STALE)
@pytest.mark.parametrize("block", [16, 650])
def test_numbers_that_an_engine_gives_wrongly_from_what_it_has_read_are_refused_and_not_kept(
    fault: str, block: int
) -> None:
    runner, kept = Recalling(block, STALE[fault]), list[StoredResult]()
    for _ in range(2):  # the second time it has read all of the dataset, and what was read of the trial before
        with pytest.raises(UnreliableError, match="model 'm': the likelihoods of one text changed by"):
            read_again(runner, keep=kept.append)
        assert kept.pop() == StoredResult({})
    runner.rereads = False
    assert read_again(runner).nll.min() >= 0, "nothing else sees it"


def test_an_engine_that_takes_no_tokens_but_the_datasets_reads_these_again() -> None:
    class Strict(Recalling):
        def nll(self, request: Request) -> Any:
            if not any(np.array_equal(request.ids, each[: len(request.ids)]) for each in LONG):
                raise ModelError("no text is cut into these tokens")
            return super().nll(request)

    assert read_again(Strict(48, lambda own, last: own)).nll.min() >= 0
    with pytest.raises(UnreliableError, match="changed by"):
        read_again(Strict(48, STALE["of the last request"]))


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
