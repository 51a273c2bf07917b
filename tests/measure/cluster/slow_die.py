"""A fair die that takes its time, leaves a trace of each batch, and may end its process over one of its windows."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.engines.base import Backend, Model, ModelEntry
from pytest_lmgate.windows.requests import Request
from tests.engines.fair_die import Dice, Die


class SlowDie(Die):
    """Sleeps `seconds` over each batch, and until `waits_for` processes have had one.

    Its process ends over a window of fewer tokens than `ends_below`.
    """

    def __init__(self, facts: dict[str, Any], traces: Path) -> None:
        super().__init__(facts["sides"])
        self._facts, self._traces = facts, traces
        # One worker makes the trial, of windows of 4 tokens too, while no other has anything to read.
        self.is_tried = not facts.keys().isdisjoint(("waits_for", "ends_below"))

    def score(self, requests: Sequence[Request]) -> list[np.ndarray]:
        time.sleep(self._facts.get("seconds", 0))
        (self._traces / f"{os.getpid()}").touch()
        end = time.monotonic() + 120
        while sum(file.name.isdecimal() for file in self._traces.iterdir()) < self._facts.get("waits_for", 0):
            assert time.monotonic() < end, "never were so many processes there"
            time.sleep(0.05)
        if any(len(each.ids) < self._facts.get("ends_below", 0) for each in requests):
            os._exit(9)
        return super().score(requests)


class SlowDice(Dice):
    """A file of JSON: sides, seconds, waits_for, ends_below; `unknown` where the engine gives no digest of it."""

    name = "slow-die"
    suffixes = (".slow",)

    def describe(self, entry: ModelEntry) -> Model:
        file = entry.path(str(entry.spec.path))
        plain, facts = super().describe(entry), json.loads(file.read_bytes())
        content = None if "unknown" in facts else plain.content
        return replace(plain, open=lambda: SlowDie(json.loads(file.read_bytes()), file.parent), content=content)


def pytest_lmgate_backends() -> list[Backend]:
    """Register the engine."""
    return [SlowDice()]
