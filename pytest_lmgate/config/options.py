"""`Options`: what a session was told besides lmgate.yaml, wherever it was said."""

from __future__ import annotations

__all__ = ["Options"]

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from pytest_lmgate.config.cache_key import CacheKey
from pytest_lmgate.config.executor import Executor
from pytest_lmgate.config.specs import check_device


@dataclass(frozen=True)
class Options:
    """Options of a session.

    Attributes:
        cache: Cache folder.
        remote_cache: Address of a second level of the cache, as fsspec reads it; None without.
        remote_cache_readonly: Write nothing to it.
        run: Id of the run, the same in all its processes; kept with what it measures.
        refresh: Measure again whatever was not measured in this run.
        offline: Forbid the network.
        device: Device for models whose entry names none; None for the project's default.
        executor: Where models run; None for this process.
        fail_fast: Stop a measurement once a partial sum proves the limit broken.
        workers: Processes that measure side by side and share the processors.
        worker: The number of this process among them, which chooses a GPU where there are several; None where there is
            one process.
        explain_cache: Say per gate what changed since the nearest earlier entry.
        strict: Fail by every inconclusive gate.
        verify: How many cache hits of this process to measure again at its end.
        cache_key: Signs the cache; None without.
        arguments: Of the command line, those that decide what is measured, for those who want to see it again.

    Raises:
        ConfigError: There is no such device.
    """

    cache: Path
    remote_cache: str | None = None
    remote_cache_readonly: bool = False
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    refresh: bool = False
    offline: bool = False
    device: str | None = None
    executor: Executor | None = None
    fail_fast: bool = False
    workers: int = 1
    worker: int | None = None
    explain_cache: bool = False
    strict: bool = False
    verify: int = 0
    cache_key: CacheKey | None = None
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.device is not None:
            check_device(self.device)
