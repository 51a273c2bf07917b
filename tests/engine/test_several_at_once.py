"""A runner that takes several batches at a time gets them in threads; what comes back is the same, in any order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.backends.base import Batching, OutOfMemory, Runner
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.engine.loop import Job
from pytest_lmgate.engine.scoring import score
from pytest_lmgate.errors import EngineError
from tests.data.documents import document_requests

AT_ONCE = 3
LENGTHS = range(3, 15)


def _requests() -> Requests:
    return document_requests(*(np.arange(length) + 100 * index for index, length in enumerate(LENGTHS)))


def _nll(request: Request) -> Any:
    return np.log(2.0 + request.targets)


class _Crew(Runner):
    """Scores each request by its own targets, `at_once` batches side by side."""

    is_tried = True

    def __init__(
        self, at_once: int, tokens: int = 16, before: Callable[[Sequence[Request]], None] = lambda _: None
    ) -> None:
        self._batching, self._before = Batching(tokens, at_once=at_once), before
        self.threads: set[int] = set()

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        return self._batching

    def score(self, requests: Sequence[Request]) -> list[Any]:
        self.threads.add(threading.get_ident())
        self._before(requests)
        return [_nll(each) for each in requests]


def test_the_numbers_are_those_of_one_batch_after_the_other() -> None:
    alone = score(_Crew(1), _requests(), Job(model="m", dataset="d"))
    # The longest come first, and here they come back last.
    crew = _Crew(AT_ONCE, before=lambda some: time.sleep(0.002 * max(len(each.ids) for each in some)))

    together = score(crew, _requests(), Job(model="m", dataset="d"))

    assert np.array_equal(together.nll, alone.nll)
    assert together.is_whole
    assert len(crew.threads) == AT_ONCE


def test_as_many_batches_as_asked_for_are_read_at_the_same_time() -> None:
    # Each batch waits until two others are being read: 12 requests make four rounds of three.
    meet = threading.Barrier(AT_ONCE, timeout=30)

    found = score(_Crew(AT_ONCE, tokens=1, before=lambda _: meet.wait()), _requests(), Job(model="m", dataset="d"))

    assert found.is_whole


def test_a_batch_that_does_not_fit_is_halved_in_its_thread() -> None:
    def refuse(some: Sequence[Request]) -> None:
        if len(some) > 1:
            raise OutOfMemory("chip 0", "no room")

    found = score(_Crew(AT_ONCE, tokens=64, before=refuse), _requests(), Job(model="m", dataset="d"))

    assert np.array_equal(found.nll, score(_Crew(1), _requests(), Job(model="m", dataset="d")).nll)


def test_a_failure_keeps_what_the_others_measured_and_the_next_run_goes_on_from_there() -> None:
    kept: list[Entry] = []
    notes: list[str] = []
    read: list[int] = []

    def fail_late(some: Sequence[Request]) -> None:
        read.extend(len(each.ids) for each in some)
        if len(some[0].ids) == 5:
            raise RuntimeError("cut off")

    job = Job(model="m", dataset="d", keep=kept.append, note=notes.append)
    with pytest.raises(EngineError, match="RuntimeError: cut off"):
        score(_Crew(AT_ONCE, tokens=1, before=fail_late), _requests(), job)

    measured = kept[-1].arrays["measured"]
    done = int(np.isfinite(measured).sum())
    assert 0 < done < len(measured)
    assert notes == [
        f"m on d: failed at {100 * done // len(measured)} %; this part is kept, and the next run goes on from there"
    ]
    again = _Crew(AT_ONCE, tokens=1, before=lambda some: read.append(-len(some[0].ids)))
    found = score(again, _requests(), Job(model="m", dataset="d", partial=kept[-1]))
    assert found.is_whole
    assert -5 in read
    assert -max(LENGTHS) not in read


def test_a_measurement_that_may_end_early_ends() -> None:
    found = score(_Crew(AT_ONCE, tokens=1), _requests(), Job(model="m", dataset="d", stop_when=lambda total: total > 1))

    assert not found.is_whole
