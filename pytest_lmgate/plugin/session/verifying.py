"""``--lmgate-verify`` at the end of a session: each process measures hits again, the controller adds them up."""

from __future__ import annotations

__all__ = ["Verifications"]

from typing import Any

import pytest

from pytest_lmgate.plugin import options

_OUTPUT = "lmgate_verified"
"""Key of what a worker found, in the output that xdist sends to the controller."""


class Verifications:
    """What processes found when they measured cache hits again.

    Attributes:
        problems: A sentence for each hit that is not verified, and for each worker that ended without a word.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.problems: list[str] = []
        self._asked = False
        self._counts = {"verified": 0, "hits": 0, "in_memory": 0}

    def add(self, found: dict[str, Any]) -> None:
        """Add what a process found; see `evaluate.verification`."""
        self._asked |= found.get("asked", True)
        self.problems += found["problems"]
        for name in self._counts:
            self._counts[name] += found[name]

    def hand_over(self, config: pytest.Config) -> None:
        """Send what this worker found to the controller."""
        config.workeroutput[_OUTPUT] = {**self._counts, "problems": self.problems, "asked": self._asked}  # type: ignore[attr-defined]

    def take_over(self, node: Any) -> None:
        """Add what a worker found; one that died has not said."""
        output: dict[str, Any] = getattr(node, "workeroutput", {})
        if _OUTPUT in output:
            self.add(output[_OUTPUT])
        elif options.text(node.config, "verify"):
            self.problems.append(
                f"--lmgate-verify: the worker {node.gateway.id} ended before it verified its cache hits"
            )

    @property
    def note(self) -> str:
        """Say in a sentence how many hits were measured again; empty if none was to be."""
        verified, hits, in_memory = self._counts.values()
        if not self._asked:
            return ""
        agree = ", all agree" if verified and not self.problems else ""
        left_out = f"; not drawn: {in_memory} of models in memory" if in_memory else ""
        return f"--lmgate-verify: {verified} of {hits} cache hits measured again{agree}{left_out}"
