"""The loop over batches: several at once in threads, and memory that runs out."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.engines.base import Batching, BatchPolicy, OutOfMemory, Runner
from pytest_lmgate.errors import EngineError
from pytest_lmgate.measure.loop import Batches, Job, Log, halved, score_requests
from pytest_lmgate.windows.requests import Request, Requests
from tests.end_to_end.projects import environment
from tests.warm import warm_python
from tests.windows.documents import document_requests

AT_ONCE = 3
LENGTHS = range(3, 15)


def _requests() -> Requests:
    return document_requests(*(np.arange(length) + 100 * index for index, length in enumerate(LENGTHS)))


class _Crew(Runner):
    """Scores each request by its own targets, `at_once` batches side by side."""

    is_tried, rereads = True, False

    def __init__(
        self, at_once: int, tokens: int = 16, before: Callable[[Sequence[Request]], None] = lambda _: None
    ) -> None:
        self._batching, self._before = Batching(tokens, max_concurrency=at_once), before
        self.threads: set[int] = set()

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        return self._batching

    def score(self, requests: Sequence[Request]) -> list[Any]:
        self.threads.add(threading.get_ident())
        self._before(requests)
        return [np.log(2.0 + each.targets) for each in requests]


def test_the_numbers_are_those_of_one_batch_after_the_other() -> None:
    alone = score_requests(_Crew(1), _requests(), Job(model="m", dataset="d"))
    # The longest come first, and here they come back last.
    crew = _Crew(AT_ONCE, before=lambda some: time.sleep(0.002 * max(len(each.ids) for each in some)))
    together = score_requests(crew, _requests(), Job(model="m", dataset="d"))
    assert np.array_equal(together.nll, alone.nll)
    assert np.isfinite(together.nll).all()
    assert len(crew.threads) == AT_ONCE


@pytest.mark.parametrize("policy", BatchPolicy)
def test_another_order_of_the_requests_changes_no_number(policy: BatchPolicy) -> None:
    def run(shuffle: int | None) -> tuple[list[int], Any]:
        read: list[int] = []
        crew = _Crew(1, before=lambda some: read.extend(len(each.ids) for each in some))
        crew._batching = Batching(40, policy)
        return read, score_requests(crew, requests, Job(model="m", dataset="d", shuffle=shuffle)).nll

    # Each length three times, of which two read the same.
    texts = [np.arange(length) + 100 * index for index in (0, 1) for length in LENGTHS]
    requests = document_requests(*texts, *texts[: len(LENGTHS)])
    (plain, nll), *others = run(None), run(1), run(2)
    assert all(np.array_equal(nll, each) for _, each in others)
    assert all(sorted(read) == sorted(plain) for read, _ in others)
    if policy is BatchPolicy.ANY_LENGTH:
        assert len({str(read) for read in (plain, others[0][0], others[1][0])}) == 3
    else:
        assert all(read == plain for read, _ in others)  # still by length


def test_a_batch_that_does_not_fit_is_halved_in_its_thread() -> None:
    def refuse(some: Sequence[Request]) -> None:
        if len(some) > 1:
            raise OutOfMemory("chip 0", "no room")

    found = score_requests(_Crew(AT_ONCE, tokens=64, before=refuse), _requests(), Job(model="m", dataset="d"))

    assert np.array_equal(found.nll, score_requests(_Crew(1), _requests(), Job(model="m", dataset="d")).nll)


def test_parts_of_a_batch_that_are_begun_give_their_memory_back_before_a_smaller_one_is_tried() -> None:
    requests, held = _requests(), list[int]()  # requests of parts whose results nobody has waited for
    fits = 4

    def begin(some: Sequence[int]) -> Callable[[], Sequence[Any]]:
        if sum(held) + len(some) > fits:
            raise OutOfMemory("chip 0", "no room")
        held.append(len(some))

        def wait() -> Sequence[Any]:
            held.remove(len(some))
            return list(some)

        return wait

    order = requests.order.tolist()
    batches = Batches(requests, Batching(2**20), "auto")
    batch, wait = halved(order, begin, requests, batches, "m")

    assert len(order) > 2 * fits
    assert wait() == batch == order
    assert held == []


def test_a_failure_keeps_what_the_others_measured_and_the_next_run_goes_on_from_there() -> None:
    kept, notes, read = list[StoredResult](), list[str](), list[int]()

    def fail_late(some: Sequence[Request]) -> None:
        read.extend(len(each.ids) for each in some)
        if len(some[0].ids) == 5:
            raise RuntimeError("cut off")

    job = Job(model="m", dataset="d", keep=kept.append, log=Log(note=notes.append))
    with pytest.raises(EngineError, match="RuntimeError: cut off"):
        score_requests(_Crew(AT_ONCE, tokens=1, before=fail_late), _requests(), job)

    measured = kept[-1].arrays["measured"]
    done = int(np.isfinite(measured).sum())
    assert 0 < done < len(measured)
    assert notes == [
        f"m on d: failed at {100 * done // len(measured)}%; this part is kept, and the next run resumes it"
    ]
    again = _Crew(AT_ONCE, tokens=1, before=lambda some: read.append(-len(some[0].ids)))
    found = score_requests(again, _requests(), Job(model="m", dataset="d", partial=kept[-1]))
    assert np.isfinite(found.nll).all()
    assert -5 in read
    assert -max(LENGTHS) not in read


# Memory that really runs out: a process of its own, whose address space is limited while it measures.


ROOT = Path(__file__).resolve().parents[2]
_MEASURE = """
import ctypes, resource

import torch

# What the allocator frees it gives back at once, so that it is missing when it is asked for again (M_MMAP_THRESHOLD).
assert ctypes.CDLL(None).mallopt(-3, 65536) == 1

torch.set_num_threads(1)
from pytest_lmgate.engines import devices
from tests.engines.transformers.measuring import measure_nll
from tests.models.zoo import build, documents, loaded, sliding

# Between the layers, 64 KiB for each token: 16 MiB for a window, 128 MiB for all of them.
model = loaded(build("llama", num_hidden_layers=1, intermediate_size=16384, max_position_embeddings=256))
streams = documents(*[256] * 8)
plan = sliding(streams, 256, 256)
measure = lambda size: measure_nll(model, streams, plan, dataset="d", batch_size=size)
expected = measure(1)

lowered, release = [], devices.release
devices.release = lambda device: (lowered.append(1), release(device))
used = 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize")))
resource.setrlimit(resource.RLIMIT_AS, (used + 130 * 2**20, resource.RLIM_INFINITY))
print(float(abs(measure(8) - expected).max()), len(lowered))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space, as Linux does")
def test_a_batch_too_large_for_the_memory_is_halved_until_it_fits_and_gives_the_same_numbers() -> None:
    command = [warm_python(environment()), "-c", _MEASURE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    difference, lowered = map(float, done.stdout.split()[-2:])
    assert 1 <= lowered <= 2
    assert difference == pytest.approx(0, abs=1e-5)
