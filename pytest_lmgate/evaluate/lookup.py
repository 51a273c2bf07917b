"""Measure once: address, lock, cache, and only then the engine. What is measured is the caller's business."""

from __future__ import annotations

__all__ = ["Lookup", "Measurements"]

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pytest_lmgate.backends.base import Model, Runner
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry, Store
from pytest_lmgate.config.options import Options
from pytest_lmgate.engine.loop import Job, Progress
from pytest_lmgate.engine.pool import FilesChanged, ModelPool
from pytest_lmgate.errors import CacheError, LmgateError, ModelError
from pytest_lmgate.evaluate.measurements.measurement import AtLeast, Bench, Measurement
from pytest_lmgate.evaluate.verification import Verification
from pytest_lmgate.identity.code import find_patched_libraries

T = TypeVar("T")
_UNKEPT = "not kept "  # begins the key of a model in the pool whose measurements are not kept


@dataclass(frozen=True)
class Lookup:
    """One lookup of a measurement in the cache.

    Attributes:
        hit: Whether it was found.
        address: Its address.
        changed: On a miss, with ``--lmgate-explain-cache``: ingredients that differ from the nearest earlier entry.
    """

    hit: bool
    address: str
    changed: tuple[str, ...] = ()


@dataclass
class Measurements:
    """The measurements of a session, and the models that are in memory for them; it reports as `Evaluator` says.

    Attributes:
        lookups: All lookups, in order.
        expect: Called with a sample's identity before a model runs; it may raise.
        not_kept: Models of which nothing was kept, by name, with the reason.
        verification: The hits, of which some are measured again.
    """

    store: Store
    options: Options
    report: Callable[[Progress], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    remark: Callable[[str], None] = lambda _: None
    lookups: list[Lookup] = field(default_factory=list)
    expect: Callable[[Mapping[str, str]], None] = lambda _: None
    not_kept: dict[str, str] = field(default_factory=dict)
    verification: Verification = field(init=False)
    _known: dict[str, Any] = field(default_factory=dict)
    _shared: list[str] = field(default_factory=list)  # addresses of measurements that are not kept
    _pool: ModelPool = field(default_factory=ModelPool)
    # Models that could not be loaded, by key and name: the class of the error and its message.
    _failed: dict[tuple[str, str], tuple[type[ModelError], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.verification = Verification(self.options.verify)

    def once(self, measurement: Measurement[T], stop_above: float | None = None) -> tuple[T | AtLeast, str, bool]:
        """Return a measurement's statistics, their address, and whether they were known; two processes measure once.

        Args:
            measurement: What to measure.
            stop_above: See `Bench`. A measurement that ended early is not kept.

        Raises:
            LmgateError: It cannot be measured.
        """
        fingerprint = measurement.fingerprint
        address = fingerprint.address
        if address in self._known:
            self.lookups.append(Lookup(True, address))
            return self._known[address], address, True
        for model in measurement.models:
            if model.not_kept:
                self.not_kept[model.name] = model.not_kept
                self.lookups.append(Lookup(False, address, (f"not kept: {model.not_kept}",)))
                measured = measurement.measure(self._bench(None, stop_above, {}))
                if not isinstance(measured, AtLeast):
                    self._known[address] = measured
                    self._shared.append(address)
                return measured, address, False
        # Most lookups hit: no lock is needed to read, since entries appear whole.
        if (found := self._fresh(fingerprint, measurement)) is None:
            waiting = f"another process is measuring {measurement.words}; waiting for it"
            with self.store.lock(fingerprint, lambda: self.note(waiting)):
                found = self._fresh(fingerprint, measurement)
                if found is None:
                    self.lookups.append(Lookup(False, address, self._explained(fingerprint)))
                    pace: dict[str, float] = {}
                    measured = measurement.measure(self._bench(fingerprint, stop_above, pace))
                    if not isinstance(measured, AtLeast) and not self.was_patched(measurement):
                        self._keep(fingerprint, measurement, measured, pace)
                    return measured, address, False
        self.lookups.append(Lookup(True, address))
        self.verification.note(measurement, found)
        self._known[address] = found
        return found, address, True

    def _keep(
        self, fingerprint: Fingerprint, measurement: Measurement[T], measured: T, pace: Mapping[str, float]
    ) -> None:
        whole = measurement.encode(measured)
        # What people want to know of an entry; names are of today, and no part of the address.
        about = {
            "measured_at": time.time(),
            "run": self.options.run,
            "metric": measurement.metric,
            "models": [model.name for model in measurement.models],
            "dataset": measurement.data.name,
            "machine": f"{platform.node()}, {platform.system()} {platform.machine()}",
            "device": measurement.model.device,
            **pace,
        }
        self.store.put(fingerprint, replace(whole, facts={**whole.facts, **about}))
        self._known[fingerprint.address] = measured

    def again(self, measurement: Measurement[T]) -> T:
        """Measure what the cache has already, whole, keeping nothing.

        Raises:
            LmgateError: It cannot be measured.
        """
        measured = measurement.measure(self._bench(None, None, {}))
        assert not isinstance(measured, AtLeast)
        if self.was_patched(measurement):
            raise ModelError("this session patched a library while the model was loaded")
        return measured

    def known(self, measurement: Measurement[T]) -> T | None:
        """Return what the session has measured or found already; None where it has not. No model runs."""
        found: T | None = self._known.get(measurement.fingerprint.address)
        return found

    def planned(self, measurement: Measurement[Any]) -> tuple[Lookup, Entry | None]:
        """Return what the cache would say, and what an interrupted measurement had. No model runs."""
        fingerprint = measurement.fingerprint
        if why := next((model.not_kept for model in measurement.models if model.not_kept), ""):
            return Lookup(False, fingerprint.address, (f"not kept: {why}",)), None
        if self._fresh(fingerprint, measurement) is not None:
            return Lookup(True, fingerprint.address), None
        partial = None if self.options.refresh else self.store.get_partial(fingerprint)
        return Lookup(False, fingerprint.address, self._explained(fingerprint)), partial

    def forget(self) -> None:
        """Let go of measurements that are not kept, and of their models."""
        for address in self._shared:
            self._known.pop(address, None)
        self._shared.clear()
        self._pool.drop(_UNKEPT)
        self._failed = {known: error for known, error in self._failed.items() if not known[0].startswith(_UNKEPT)}

    def runner(self, model: Model) -> Runner:
        """Return a model in memory: one at a time, unless the next fits beside those that are there.

        Raises:
            ModelError: It cannot be loaded. Until its files change, the session says so again without another try.
            FilesChanged: Another file stands in the place of one that its content tells of.
        """
        if model.in_memory:
            return model.open()  # held here, it would stay in memory after the user let it go
        known = (_key(model), model.name)
        if known in self._failed:
            kind, message = self._failed[known]
            raise kind(message)

        try:
            return self._pool.get(known[0], model)
        except FilesChanged:
            raise
        except ModelError as error:
            if not model.changed():
                self._failed[known] = (type(error), str(error))
            raise

    def fit_together(self, here: Model, other: Model) -> bool:
        """Whether another model fits in memory beside one that is there."""
        return other.in_memory or self._pool.fits_beside(_key(here), _key(other), other)

    def was_patched(self, measurement: Measurement[T]) -> bool:
        """Whether a library was patched while it was loaded: the address does not tell of it."""
        found = find_patched_libraries()
        if not found or any("patches" in model.ingredients for model in measurement.models):
            return False
        for model in measurement.models:
            self.not_kept[model.name] = f"this session patched {found[0]} while the model was loaded"
        return True

    def _bench(self, fingerprint: Fingerprint | None, stop_above: float | None, pace: dict[str, float]) -> Bench:
        """Return what a measurement is made with; without a fingerprint nothing is kept.

        The tokens of this run and the seconds that they took are put into `pace`.
        """

        def report(progress: Progress) -> None:
            pace.update(tokens=progress.tokens, seconds=progress.seconds)
            self.report(progress)

        def job(model: str, dataset: str, batch_size: int | str) -> Job:
            job = Job(
                model=model, dataset=dataset, batch_size=batch_size, report=report, note=self.note, remark=self.remark
            )
            if fingerprint is None:
                return job
            partial = None if self.options.refresh else self.store.get_partial(fingerprint)
            return replace(job, partial=partial, keep=lambda entry: self.store.put_partial(fingerprint, entry))

        return Bench(self.store.folder, self.runner, self.fit_together, job, stop_above)

    def _fresh(self, fingerprint: Fingerprint, measurement: Measurement[T]) -> T | None:
        entry = self.store.get(fingerprint)
        # Not by time: an entry may come from a machine whose clock is fast.
        if entry is None or (self.options.refresh and entry.facts.get("run") != self.options.run):
            return None
        try:
            return measurement.decode(entry)
        except (KeyError, TypeError, ValueError, LmgateError) as error:
            # Whole and sealed, but not by this code.
            self.store.set_aside(fingerprint, CacheError(f"it is no measurement of {measurement.words} ({error!r})"))
            return None

    def _explained(self, fingerprint: Fingerprint) -> tuple[str, ...]:
        if not self.options.explain_cache:
            return ()
        if self.options.refresh and self.store.get(fingerprint) is not None:
            return ("nothing changed: measured again by --lmgate-refresh",)
        if not self.options.refresh and self.store.get_partial(fingerprint) is not None:
            return ("partial: an interrupted measurement goes on",)
        return tuple(self.store.explain(fingerprint))


def _key(model: Model) -> str:
    return (_UNKEPT if model.not_kept else "") + Fingerprint.of("model", model.ingredients).address
