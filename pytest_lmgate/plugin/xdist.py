"""pytest-xdist: the controller tells workers of the run, learns which gates they expect, and distributes tests.

All gates of a model go to one worker, so that no other loads the model. This applies to the default ``--dist load``
only, and not if another plugin schedules the tests.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.ledger import VERIFIED, Ledger

_FEWEST = 2  # tests that a worker needs to run one: it waits until it knows the next


class Controller:
    """Hooks that xdist calls in the controller; each worker gets `worker_input`."""

    def __init__(self, ledger: Ledger, worker_input: Mapping[str, Any]) -> None:
        self._ledger, self._worker_input = ledger, worker_input
        self._handover: Path | None = None  # where workers write what they expect
        self._collected = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if self._handover is None:
            self._handover = Path(tempfile.gettempdir()) / f"lmgate-{uuid.uuid4().hex}.json"
        node.workerinput["lmgate_handover"] = str(self._handover)
        node.workerinput["lmgate_by_model"] = node.config.getoption("dist") == "load"
        node.workerinput.update(self._worker_input)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        return by_model((yield), config, log, self._ledger)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        assert self._handover is not None
        self._collected = True
        self._ledger.load(self._handover)
        if self._ledger.problem:
            self._handover.unlink(missing_ok=True)
            raise pytest.UsageError(self._ledger.problem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        if VERIFIED in output:
            self._ledger.verified += output[VERIFIED]
        elif options.text(node.config, "verify"):
            problem = f"--lmgate-verify: the worker {node.gateway.id} ended before it verified its cache hits"
            self._ledger.verified.append({"problems": [problem]})

    def end(self) -> bool:
        """Read what the workers wrote last; return whether any of them finished collecting."""
        if self._handover is None:
            return True
        self._ledger.load(self._handover)
        self._handover.unlink(missing_ok=True)
        return self._collected


def by_model(scheduler: Any, config: pytest.Config, log: Any, ledger: Ledger) -> Any:
    """Return a scheduler that keeps a model's gates together, if xdist's default one was chosen."""
    from xdist.scheduler import LoadScheduling

    if type(scheduler) is not LoadScheduling:
        return scheduler

    class ModelScheduling(LoadScheduling):  # type: ignore[misc]  # xdist has no types
        """Sends all tests of a group to one worker.

        A worker starts a test only when it knows the next one or that there is none, so a worker without tests is shut
        down. Tests of a dead worker go to any other.
        """

        collection: Sequence[str] | None

        def __init__(self, config: pytest.Config, log: Any) -> None:
            super().__init__(config, log)
            self._groups: dict[int, str] = {}  # by test
            self._workers: dict[str, Any] = {}  # by group

        def schedule(self) -> None:
            """Share out the tests. xdist does it if none has a group, and if workers collected different tests."""
            first, *others = self.node2collection.values()
            if self.collection is None and all(tests == first for tests in others):
                groups = groups_of(ledger.models)
                self._groups = {number: groups[test] for number, test in enumerate(first) if test in groups}
                if self._groups:
                    self.collection = first
                    self.pending.extend(range(len(first)))
            super().schedule()
            for node in self.nodes:  # one that got a single test would wait for another
                self.check_schedule(node)

        def check_schedule(self, node: Any, duration: float = 0) -> None:
            own = self.node2pending[node]
            if not self._groups:
                super().check_schedule(node, duration)
            elif not node.shutting_down and len(own) < _FEWEST:
                share = len(self.pending) // len(self.nodes) // 4  # as xdist's first
                most = max(_FEWEST - len(own), min(share, self.maxschedchunk or share))
                tests = _next_tests(self.pending, self._groups, self._workers, node, most)
                if not tests:
                    node.shutdown()
                    return
                own.extend(tests)
                sent = set(tests)
                self.pending[:] = [test for test in self.pending if test not in sent]
                node.send_runtest_some(tests)

        def remove_node(self, node: Any) -> str | None:
            self._workers = {group: owner for group, owner in self._workers.items() if owner is not node}
            died_in: str | None = super().remove_node(node)
            return died_in

    return ModelScheduling(config, log)


def _next_tests(
    pending: Sequence[int], groups: Mapping[int, str], workers: dict[str, Any], node: Any, most: int
) -> list[int]:
    """Return the tests to send to a worker: of its groups, then of none, then of one that is now its own."""
    chosen = [test for test in pending if workers.get(groups.get(test, "")) is node]
    free = [test for test in pending if groups.get(test) not in workers]
    for test in free:
        if len(chosen) >= most:
            break
        group = groups.get(test)
        if group is None:
            chosen.append(test)
        else:
            workers[group] = node
            chosen += [other for other in free if groups.get(other) == group]
            break  # the next model is for the next worker that asks
    return chosen[:most]


def groups_of(models: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the group of each test: connected components of tests that share models."""
    links: dict[str, str] = {}

    def group(model: str) -> str:
        while (other := links.setdefault(model, model)) != model:
            model = other
        return model

    loading = {test: needed for test, needed in models.items() if needed}
    for first, *others in loading.values():
        for other in others:
            links[group(other)] = group(first)
    return {test: group(first) for test, (first, *_) in loading.items()}


def to_builtins(report: pytest.TestReport) -> None:
    """Turn a `Score` and other subclasses of builtins in a report into builtins.

    A worker crashes when it sends anything else, and loses the report: the session could end green.
    A record of this package becomes JSON, in which infinity and half of a surrogate pair are safe.
    """
    for name, value in list(vars(report).items()):
        with contextlib.suppress(RecursionError):  # of a list that contains itself, from another plugin
            setattr(report, name, _plain(value))


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if kind in (list, tuple):
        return kind(map(_plain, value))
    if kind is dict:
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if not kind.__module__.startswith("pytest_lmgate."):
        return value
    import msgspec

    return json.dumps(msgspec.to_builtins(value)) if isinstance(value, msgspec.Struct) else str(value)
