"""Tests of a model go to one worker, every test runs once, and what a report carries is plain before it travels."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScheduling

from pytest_lmgate.plugin.ledger import Ledger
from pytest_lmgate.plugin.xdist import by_model, groups_of, to_builtins

LOG = Producer("", enabled=False)


def of_xdist(config: pytest.Config) -> LoadScheduling:
    """Return the scheduler that xdist makes for plain ``-n``."""
    return LoadScheduling(config, LOG)


class Worker:
    """A worker as xdist's: it begins a test once it knows the next one, or that there is none."""

    def __init__(self) -> None:
        self.queue, self.ran, self.shutting_down = list[int](), list[int](), False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down, "a worker that was told to end gets no more tests"
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.queue) >= (1 if self.shutting_down else 2)


class Session:
    """What xdist's controller does with a scheduler."""

    def __init__(self, config: pytest.Config, models: dict[str, list[str]], tests: Sequence[str], count: int) -> None:
        ledger = Ledger()
        ledger.models = models
        self.sched = by_model(of_xdist(config), config, LOG, ledger)
        self.tests, self.crashed = list(tests), list[int]()
        self.workers, self.gone = [Worker() for _ in range(count)], list[Worker]()
        for worker in self.workers:
            self.sched.add_node(worker)
        for worker in self.workers:
            self.sched.add_node_collection(worker, self.tests)
        self.sched.schedule()
        self._end_if_finished()

    def run(self, draw: random.Random, crashes: int = 0) -> None:
        while self.workers:
            ready = [worker for worker in self.workers if worker.can_run or (worker.shutting_down and not worker.queue)]
            assert ready, f"all wait: {[worker.queue for worker in self.workers]}, pending {self.sched.pending}"
            worker = draw.choice(ready)
            if not worker.queue:
                self._leave(worker)
                assert self.sched.remove_node(worker) is None
            elif crashes and draw.random() < 0.2:
                crashes -= 1
                self._crash(worker)
            else:
                test = worker.queue.pop(0)
                worker.ran.append(test)
                self.sched.mark_test_complete(worker, test, draw.choice([0.0, 0.5]))
            self._end_if_finished()

    def _crash(self, worker: Worker) -> None:
        self.crashed.append(worker.queue[0])
        self._leave(worker)
        assert self.sched.remove_node(worker) == self.tests[self.crashed[-1]]
        self.workers.append(other := Worker())
        self.sched.add_node(other)
        self.sched.add_node_collection(other, self.tests)
        self.sched.schedule()

    def _leave(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.gone.append(worker)

    def _end_if_finished(self) -> None:
        if self.sched.tests_finished:
            for worker in self.workers:
                worker.shutdown()


def suite(draw: random.Random) -> tuple[list[str], dict[str, list[str]]]:
    """Return tests, of which some have gates of one model or of two."""
    tests = [f"test_{number}" for number in range(draw.randrange(30))]
    names = [f"model_{number}" for number in range(draw.randrange(1, 6))]
    gated = [test for test in tests if draw.random() < draw.choice([0.2, 0.6, 1.0])]
    return tests, {test: draw.sample(names, min(len(names), draw.choice([1, 1, 1, 2]))) for test in gated}


@pytest.fixture
def config(pytester: pytest.Pytester) -> pytest.Config:
    return pytester.parseconfig("-p", "xdist", "--tx", "3*popen", "--dist", "load")


@pytest.mark.parametrize("crashes", [0, 3])
def test_every_test_runs_once_and_no_model_is_loaded_by_two(config: pytest.Config, crashes: int) -> None:
    for seed in range(200):
        draw = random.Random(seed)
        tests, models = suite(draw)
        session = Session(config, models, tests, 3)
        session.run(draw, crashes)
        ran = [test for worker in session.gone for test in worker.ran]
        assert sorted([*ran, *session.crashed]) == list(range(len(tests))), seed
        if not session.crashed:
            groups = groups_of(models)
            of_worker = [{groups.get(tests[test], "") for test in worker.ran} - {""} for worker in session.gone]
            assert sum(map(len, of_worker)) == len(set().union(*of_worker)), seed


def test_tests_without_gates_are_sent_as_xdist_sends_them(config: pytest.Config) -> None:
    tests = [f"test_{number}" for number in range(100)]
    sched, workers = of_xdist(config), [Worker() for _ in range(3)]
    for worker in workers:
        sched.add_node(worker)
        sched.add_node_collection(worker, tests)
    sched.schedule()
    assert [worker.queue for worker in Session(config, {}, tests, 3).workers] == [worker.queue for worker in workers]


class Number(float):
    """As a `Score` is."""


class Name(str):
    __slots__ = ()


def plain(value: Any) -> Any:
    report: Any = SimpleNamespace(value=value)
    to_builtins(report)
    return report.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Number(1.5), 1.5), (Name("die"), "die"), (np.float64(0.25), 0.25), (True, True), (None, None)],
)
def test_numbers_and_texts_of_other_classes_become_builtins_also_within_others(value: Any, expected: Any) -> None:
    within = plain([("lmgate", {Name("value"): [value]})])
    for found in (plain(value), within[0][1]["value"][0]):
        assert (found, type(found)) == (expected, type(expected))
    assert (type(within[0]), [type(key) for key in within[0][1]]) == (tuple, [str])
