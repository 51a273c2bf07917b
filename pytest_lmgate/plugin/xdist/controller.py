"""What only the controller of xdist does: it tells workers of the run, learns what they gate, shares tests out."""

from __future__ import annotations

__all__ = ["Controller"]

import tempfile
import uuid
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.plugin.session.ledger import Ledger
from pytest_lmgate.plugin.session.verifying import Verifications
from pytest_lmgate.plugin.xdist.scheduling import by_model


class Controller:
    """Hooks that xdist calls in the controller alone; `told` returns what each worker is told, by name."""

    def __init__(self, ledger: Ledger, verifications: Verifications, told: Callable[[], Mapping[str, Any]]) -> None:
        self._ledger, self._verifications, self._told = ledger, verifications, told
        self._handover: Path | None = None  # where workers write what they expect
        self._collected = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where to write what it expects, and which run it is part of."""
        if self._handover is None:
            self._handover = Path(tempfile.gettempdir()) / f"lmgate-{uuid.uuid4().hex}.json"
        node.workerinput["lmgate_handover"] = str(self._handover)
        node.workerinput["lmgate_by_model"] = node.config.getoption("dist") == "load"
        node.workerinput.update(self._told())

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Have gates of one model run in one worker, where nobody has chosen another way."""
        return by_model((yield), config, log, self._ledger)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Learn what a worker will gate, or that it could not read the markers."""
        assert self._handover is not None
        self._collected = True
        self._ledger.take_over(self._handover)
        if self._ledger.problem:
            self._handover.unlink(missing_ok=True)
            raise pytest.UsageError(self._ledger.problem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn what a worker verified."""
        self._verifications.take_over(node)

    def end(self) -> bool:
        """Learn what workers still had to say, at the end of the session; return whether any that began collected."""
        if self._handover is None:
            return True
        self._ledger.take_over(self._handover)
        self._handover.unlink(missing_ok=True)
        return self._collected
