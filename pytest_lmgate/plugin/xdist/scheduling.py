"""Which worker of xdist gets which test: all gates of a model go to one worker, so that no other loads the model.

Only plain ``-n``, whose rule is that any worker may get any test, is narrowed so; another ``--dist``, or the scheduler
of another plugin, is the user's choice and stays. Tests without a gate are spread as ever.
"""

from __future__ import annotations

__all__ = ["by_model", "groups_of"]

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_lmgate.plugin.session.ledger import Ledger


def by_model(scheduler: Any, config: pytest.Config, log: Any, ledger: Ledger) -> Any:
    """Return a scheduler that keeps a model's gates together in place of xdist's plain one, and any other as it is.

    The ledger knows the models of each test once the workers have collected.
    """
    from xdist.scheduler import LoadScheduling

    if type(scheduler) is not LoadScheduling:
        return scheduler

    class ModelScheduling(LoadScheduling):  # type: ignore[misc]  # xdist has no types
        """Sends the tests of a group to the worker that got the first of them.

        A worker for which nothing is left is told to end, since a worker of xdist begins a test only when it knows the
        next one or that there is none. What a worker that died has not run goes to any other.
        """

        def __init__(self, config: pytest.Config, log: Any) -> None:
            super().__init__(config, log)
            self._workers: dict[str, Any] = {}  # by group

        def schedule(self) -> None:
            """Begin, or give work to a worker that came later."""
            super().schedule()
            for node in self.nodes:
                self.check_schedule(node)

        def check_schedule(self, node: Any, duration: float = 0) -> None:
            """Send more tests to a worker, or tell it to end."""
            if self.pending and not any(self._may_run(node, test) for test in self.pending):
                node.shutdown()
            else:
                super().check_schedule(node, duration)

        def remove_node(self, node: Any) -> str | None:
            """Forget a worker that ended; return the test in which it died, if it did."""
            self._workers = {group: owner for group, owner in self._workers.items() if owner is not node}
            died_in: str | None = super().remove_node(node)
            return died_in

        def _send_tests(self, node: Any, num: int) -> None:
            groups, workers = self._groups, self._workers
            if not groups:
                super()._send_tests(node, num)
                return
            chosen = [test for test in self.pending if workers.get(groups.get(test, "")) is node]
            free = [test for test in self.pending if groups.get(test) not in workers]
            for test in free:
                if len(chosen) >= num:
                    break
                group = groups.get(test)
                if group is None:
                    chosen.append(test)
                else:
                    workers[group] = node
                    chosen += [each for each in free if groups.get(each) == group]
                    break  # the next model is for the next worker that asks
            if sent := dict.fromkeys(chosen[:num]):
                self.pending[:] = [test for test in self.pending if test not in sent]
                self.node2pending[node].extend(sent)
                node.send_runtest_some(list(sent))

        def _may_run(self, node: Any, test: int) -> bool:
            return self._workers.get(self._groups.get(test, ""), node) is node

        @functools.cached_property
        def _groups(self) -> Mapping[int, str]:
            """The group of each test that has one, by its number in the collection."""
            groups = groups_of(ledger.models)
            return {number: groups[test] for number, test in enumerate(self.collection or ()) if test in groups}

    return ModelScheduling(config, log)


def groups_of(models: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the group of each test: tests that share a model are of one group, also where others link them.

    A test that loads no model is of no group.
    """
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
