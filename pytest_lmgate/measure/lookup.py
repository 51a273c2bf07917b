"""Measure once: address, lock, cache, and only then the engine. What is measured is the caller's business.

``--lmgate-verify`` measures some cache hits of a session again at its end, drawn at random. A checksum shows that an
entry is whole, not that it is true: whoever can write to the cache can write a checksum. Models in memory are not
drawn, since the user's object may have changed by the end of the session.
"""

from __future__ import annotations

import contextlib
import math
import platform
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.cache.store import Fingerprint, Store, StoredResult
from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.devices import available_bytes, hardware_of
from pytest_lmgate.engines.registry import library_warnings, raised
from pytest_lmgate.errors import CacheError, LmgateError, MetricInputError, ModelError, escape_controls
from pytest_lmgate.identity import replaced_in_libraries, summarize
from pytest_lmgate.measure.loop import Job, Log
from pytest_lmgate.measure.measurement import Measurement, MeasurementContext
from pytest_lmgate.settings.session import Options
from pytest_lmgate.windows.tokens import TokenizerFacts

T = TypeVar("T")
# Begin the keys in the pool of a model whose measurements are not kept, and of one that a program of its own runs.
_UNKEPT, _PROCESS = "not kept ", "process "
_ATTEMPTS = 3
_ROOM = 2.0  # besides its weights, a model needs room for activations, and for what loading holds twice
# Mean difference per token, in nats, that the rounding of another machine explains, and a quarter as much for each nat
# of the mean: 4 eps of the dtype, and this at least. Measured between AVX-512 and SSE on two Llamas of 260,000 weights:
# 1e-6 in float32, 2.2 eps in float16, 2.3 eps in bfloat16, where 1.1% of the most likely tokens were others.
_FLOAT32_ROUNDING = 1e-4
_ROUNDINGS = {"bfloat16": 4 * 2.0**-7, "float16": 4 * 2.0**-10}
_NEAR_TIES = 3  # so many values of yes or no, such as whether the most likely token is the same, may differ on any text


class FilesChanged(ModelError):
    """A model's files changed between their digest and the loading."""


class ModelPool:
    """Models in memory by key: one, unless the next also fits. The least recently used go first."""

    def __init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def get(self, key: str, model: Model) -> Runner:
        """Return the model under `key`, loading it if need be; FilesChanged if a file changed after it was hashed."""
        if key in self._runners:
            self._runners[key] = self._runners.pop(key)
            return self._runners[key]
        self._make_room(model)
        self._runners[key] = _opened(model)
        return self._runners[key]

    def opened(self, key: str) -> Runner | None:
        """Return the model under `key` if it is in memory."""
        return self._runners.get(key)

    def drop(self, beginning: str) -> None:
        for key in [key for key in self._runners if key.startswith(beginning)]:
            self._runners.pop(key).close()

    def fits_beside(self, kept: Collection[str], key: str, model: Model) -> bool:
        """Return whether a model fits in memory with those under `kept`; all others go first where they must."""
        return key in self._runners or self._make_room(model, kept)

    def _make_room(self, model: Model, kept: Collection[str] = ()) -> bool:
        # What has no size is elsewhere, and so may its device be.
        while model.weight_bytes and available_bytes(model.device) < _ROOM * model.weight_bytes:
            oldest = next((key for key in self._runners if key not in kept), None)
            if oldest is None:
                return False
            self._runners.pop(oldest).close()
        return True

    def __len__(self) -> int:
        return len(self._runners)


def _opened(model: Model) -> Runner:
    try:
        with library_warnings() as warnings:
            runner = model.open()
    except LmgateError:
        raise
    except Exception as error:  # anything an engine raises
        raise ModelError(f"model {model.name!r}: its engine cannot load it: {raised(error)}") from error
    if not isinstance(tokenizer := getattr(runner, "tokenizer", None), TokenizerFacts):
        raise ModelError(
            f"model {model.name!r}: expected its engine to open a Runner whose tokenizer is a TokenizerFacts, got "
            f"{type(runner).__name__} with {type(tokenizer).__name__}"
        )
    if changed := model.changed():
        runner.close()
        raise FilesChanged(
            f"model {model.name!r}: {', '.join(changed[:3])} changed while the model was loaded: run again when "
            "nothing writes to these files"
        )
    runner.load_warnings = list(warnings)
    return runner


@dataclass(frozen=True)
class Lookup:
    """One lookup of a measurement in the cache.

    On a miss with ``--lmgate-explain-cache``, `changed` has the ingredients that differ from the nearest earlier entry.
    """

    hit: bool
    address: str
    changed: tuple[str, ...] = ()


@dataclass
class Verified:
    """What came of measuring cache hits again."""

    hits: int = 0  # hits that could be drawn
    in_memory: int = 0  # hits of models in memory, which are not drawn
    verified: int = 0  # hits that were measured again
    # a sentence for each hit that is not what the model gives, or cannot be measured again
    problems: list[str] = field(default_factory=list)


class MeasurementResult(NamedTuple):
    """The statistics of a measurement, and whether the session or the cache had them before."""

    measurement: Measurement[Any]
    statistics: Any
    address: str
    cached: bool
    hardware: str  # name of the card or processor that it was measured on; empty if unknown


@dataclass
class Measurements:
    """The measurements of a session, and the models that are in memory for them."""

    store: Store
    options: Options
    log: Log = field(default_factory=Log)
    lookups: list[Lookup] = field(default_factory=list)  # all lookups, in order
    uncacheable_reasons: dict[str, str] = field(default_factory=dict)  # why nothing of a model was kept, by its name
    _known: dict[str, Any] = field(default_factory=dict)
    _hardware: dict[str, str] = field(default_factory=dict)  # by address
    _shared: list[str] = field(default_factory=list)  # addresses of measurements that are not kept
    _pool: ModelPool = field(default_factory=ModelPool)
    # Models that could not be loaded, by key and name: the class of the error and its message.
    _failed: dict[tuple[str, str], tuple[type[ModelError], str]] = field(default_factory=dict)
    _load_warnings: dict[str, Sequence[str]] = field(default_factory=dict)  # by the models' keys
    _replaced: dict[str, Sequence[str]] = field(default_factory=dict)  # by the models' keys
    _hits: Verified = field(default_factory=Verified)
    _drawn: list[tuple[Measurement[Any], Any]] = field(default_factory=list)
    # What earlier sessions have proved of the models that were loaded, by key; None: nothing of it is believed.
    _proofs: dict[str, Mapping[str, Any]] | None = field(default_factory=dict)

    def get_or_measure(
        self, measurement: Measurement[Any], describe: Callable[[], Measurement[Any]] | None = None
    ) -> MeasurementResult:
        """Return the measurement's outcome; concurrent processes measure it only once.

        `describe` makes it again if a model's files change while they are loaded, as when a training run saves a new
        checkpoint.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if found := self._found(measurement):
                return found
            fingerprint, reason = measurement.fingerprint, self._why_uncacheable(measurement)
            wait, speed = partial(self._say_waiting, measurement), dict[str, float]()
            with contextlib.nullcontext() if reason else self.store.lock(fingerprint, wait):
                if found := self._found(measurement):  # another process made it meanwhile
                    return found
                self.lookups.append(self._missed(measurement))
                try:
                    measured = measurement.measure(self._context(measurement, speed, is_kept=not reason))
                    encoded = measurement.encode(measured)
                except FilesChanged:
                    if describe is None or attempt == _ATTEMPTS:
                        raise
                else:
                    self._keep(measurement, measured, encoded, speed, reason)
                    return self._measured(measurement, measured, cached=False)
                finally:
                    self._say(measurement, self._warnings_of(measurement))
            measurement = describe()
        raise AssertionError

    def _say_waiting(self, measurement: Measurement[Any]) -> None:
        self.log.note(f"another process is measuring {measurement.words}; waiting for it")

    def _found(self, measurement: Measurement[Any]) -> MeasurementResult | None:
        """Return what the session knows or the cache has."""
        address = measurement.fingerprint.address
        if address not in self._known:
            # Most lookups hit: no lock is needed to read, since entries appear whole.
            if self._why_uncacheable(measurement) or (entry := self._fresh(measurement)) is None:
                return None
            self._draw(measurement, entry)
            self._known[address] = entry
        self.lookups.append(Lookup(True, address))
        return self._measured(measurement, self._known[address], cached=True)

    def _measured(self, measurement: Measurement[Any], statistics: Any, *, cached: bool) -> MeasurementResult:
        address = measurement.fingerprint.address
        return MeasurementResult(measurement, statistics, address, cached, self._hardware.get(address, ""))

    def _why_uncacheable(self, measurement: Measurement[Any]) -> str:
        """Return why a measurement may not be kept, and note it; empty if it may."""
        for model in measurement.models:
            if model.not_kept:
                self.uncacheable_reasons[model.name] = model.not_kept
                return model.not_kept
        return ""

    def _keep(
        self,
        measurement: Measurement[T],
        measured: T,
        encoded: StoredResult,
        speed: Mapping[str, float],
        uncacheable: str,
    ) -> None:
        address = measurement.fingerprint.address
        # Workers of a cluster are other machines.
        device = measurement.model.device  # empty where no model ran here
        hardware = "" if self.options.executor or not device else hardware_of(device)
        self._hardware[address] = hardware
        if uncacheable:
            self._shared.append(address)
        elif self._runs_other_code(measurement):
            return
        else:
            # What people want to know of an entry; names are of today, and no part of the address.
            about = {
                "measured_at": time.time(),
                "run": self.options.run,
                "metric": measurement.metric,
                "models": [model.name for model in measurement.models],
                "dataset": measurement.data.name,
                "machine": f"{platform.node()}, {platform.system()} {platform.machine()}",
                "device": measurement.model.device,
                "hardware": hardware,
                "load_warnings": self._warnings_of(measurement),
                **speed,
            }
            self.store.put(measurement.fingerprint, replace(encoded, facts={**encoded.facts, **about}))
            for model in measurement.models:
                self._keep_proofs(model)
        self._known[address] = measured

    def again(self, measurement: Measurement[T], *, shuffle: int | None = None) -> T:
        """Measure again completely, ignoring the cache; `shuffle` is the seed of another order of the requests."""
        measured = measurement.measure(self._context(measurement, {}, shuffle=shuffle))
        if reason := self._runs_other_code(measurement):
            raise ModelError(reason)
        return measured

    def known(self, measurement: Measurement[T]) -> T | None:
        """Return what the session has measured or found; None if it has not. No model runs."""
        found: T | None = self._known.get(measurement.fingerprint.address)
        return found

    def planned(self, measurement: Measurement[Any]) -> tuple[Lookup, StoredResult | None]:
        """Return the cache's answer, and the results of an interrupted measurement. No model runs."""
        fingerprint = measurement.fingerprint
        if self._why_uncacheable(measurement):
            return self._missed(measurement), None
        if self._fresh(measurement) is not None:
            return Lookup(True, fingerprint.address), None
        return self._missed(measurement), None if self.options.refresh else self.store.get_partial(fingerprint)

    def forget(self) -> None:
        """Forget uncacheable measurements and their models."""
        for address in self._shared:
            self._known.pop(address, None)
        self._shared.clear()
        self._pool.drop(_UNKEPT)
        self._failed = {known: error for known, error in self._failed.items() if not known[0].startswith(_UNKEPT)}

    def close(self) -> None:
        """End the programs of models at the end of the session."""
        self._pool.drop(_PROCESS)

    def runner(self, model: Model) -> Runner:
        """Return a model in memory: one at a time, unless the next fits too.

        A model that cannot be loaded is not tried again until its files change.
        """
        if model.in_memory:
            return model.open()  # held here, it would stay in memory after the user let it go
        known = (_key(model), model.name)
        if known in self._failed:
            kind, message = self._failed[known]
            raise kind(message)
        try:
            runner = self._opened(known[0], model)
            self._load_warnings[known[0]], self._replaced[known[0]] = runner.load_warnings, runner.replaced
            return runner
        except FilesChanged:
            raise
        except ModelError as error:
            if not model.changed():
                self._failed[known] = (type(error), str(error))
            raise

    def _opened(self, key: str, model: Model) -> Runner:
        is_new, runner = self._pool.opened(key) is None, self._pool.get(key, model)
        if is_new and self._proofs is not None and not model.not_kept and not self.options.refresh:
            runner.proofs = self._proofs[key] = self.store.proofs(_proven(model))
        return runner

    def _keep_proofs(self, model: Model) -> None:
        """Keep what trials have shown of a model in memory, for later sessions."""
        runner = self._pool.opened(key := _key(model))
        if runner is not None and self._proofs is not None and runner.proofs != self._proofs.get(key, {}):
            self._proofs[key] = runner.proofs
            self.store.keep_proofs(_proven(model), runner.proofs)

    def fit_together(self, *models: Model) -> bool:
        """Return whether the last model fits in memory together with the others, which are loaded."""
        *here, other = models
        return other.in_memory or self._pool.fits_beside([_key(each) for each in here], _key(other), other)

    def verify(self) -> Verified:
        """Measure the hits that were drawn again."""
        # Nothing that the cache says is believed, not even what earlier trials have shown of a model.
        for key in self._proofs or ():
            self._pool.drop(key)
        self._proofs = None
        drawn = sorted(self._drawn, key=lambda hit: hit[0].words)  # so that each model is loaded once
        problems = [problem for hit in drawn if (problem := self._problem(*hit))]
        return replace(self._hits, verified=len(drawn), problems=problems)

    def _draw(self, measurement: Measurement[Any], found: Any) -> None:
        """Draw hits to verify; in the end any is drawn as likely as any other (Vitter 1985, algorithm R)."""
        size = self.options.verify
        if not size:
            return
        if any(model.in_memory for model in measurement.models):
            self._hits.in_memory += 1
            return
        self._hits.hits += 1
        place = len(self._drawn) if len(self._drawn) < size else secrets.randbelow(self._hits.hits)
        if place < size:
            self._drawn[place : place + 1] = [(measurement, found)]

    def _problem(self, measurement: Measurement[Any], found: Any) -> str:
        what = f"--lmgate-verify: {measurement.words}"
        try:
            again = measurement.encode(self.again(measurement))
            differs = differing_arrays(measurement.encode(found), again, max(map(_rounding, measurement.models)))
        except Exception as error:  # out of memory, say: the entry is not verified
            why = f"{type(error).__name__}: {error}"
            return escape_controls(f"{what}: cannot be measured again, so it was not verified: {why}", line=True)
        if not differs:
            return ""
        entry = self.store.path(measurement.fingerprint)
        return escape_controls(
            f"{what}: the cache entry does not match the model: {differs}; do not trust the gates that used it; "
            f"identify the writer of {entry} or of the digests in that cache, then delete both",
            line=True,
        )

    def _runs_other_code(self, measurement: Measurement[Any]) -> str:
        """Return, in words, what a loaded model runs in the place of its library's code: its address does not say."""
        patched, reason = replaced_in_libraries(), ""
        for model in measurement.models:
            loaded = () if "revision" in model.ingredients else self._replaced.get(_key(model), ())
            if found := loaded if "patches" in model.ingredients else patched or loaded:
                reason = self.uncacheable_reasons[model.name] = f"this session patched {summarize(found)}"
        return reason

    def close_models(self) -> None:
        """Free the memory of all models; the next measurement opens its own."""
        self._pool.drop("")

    def _context(
        self,
        measurement: Measurement[Any],
        speed: dict[str, float],
        *,
        is_kept: bool = False,
        shuffle: int | None = None,
    ) -> MeasurementContext:
        """Return what a measurement is made with; its jobs write their `speed`."""
        fingerprint = measurement.fingerprint

        def job(model: str, dataset: str, batch_size: int | str) -> Job:
            job = Job(
                model=model,
                dataset=dataset,
                metric=measurement.metric,
                batch_size=batch_size,
                log=self.log,
                shuffle=shuffle,
                speed=speed,
            )
            if not is_kept:
                return job
            known = None if self.options.refresh else self.store.get_partial(fingerprint)
            return replace(job, partial=known, keep=partial(self.store.put_partial, fingerprint))

        def measured(other: Measurement[Any]) -> Any:
            return self.get_or_measure(other).statistics

        return MeasurementContext(self.store.folder, self.runner, self.fit_together, job, measured)

    def _fresh(self, measurement: Measurement[T]) -> T | None:
        fingerprint = measurement.fingerprint
        entry = self.store.get(fingerprint)
        # Not by time: an entry may come from a machine whose clock is fast.
        if entry is None or (self.options.refresh and entry.facts.get("run") != self.options.run):
            return None
        if wrong := impossible(entry):
            raise MetricInputError(
                f"the cache entry {self.store.path(fingerprint)} of {measurement.words} is impossible: {wrong}; "
                "identify its writer, and delete it, or measure again with --lmgate-refresh"
            )
        try:
            found = measurement.decode(entry)
            self._hardware[fingerprint.address] = str(entry.facts.get("hardware", ""))
            self._say(measurement, entry.facts.get("load_warnings", ()))
            return found
        except (KeyError, TypeError, ValueError, LmgateError) as error:
            # Whole and sealed, but not by this code.
            why = CacheError(f"it is not a measurement of {measurement.words} ({error!r})")
            self.store.set_aside(self.store.path(fingerprint), why)
            return None

    def _warnings_of(self, measurement: Measurement[Any]) -> list[list[str]]:
        """Return what was warned of while the models of a measurement were loaded, for each of them."""
        return [list(self._load_warnings.get(_key(model), ())) for model in measurement.models]

    def _say(self, measurement: Measurement[Any], warnings: Sequence[Sequence[str]]) -> None:
        for model, texts in zip(measurement.models, warnings, strict=False):
            for text in texts:
                self.log.remark(f"model {model.name!r} was loaded with a warning of {text}")

    def _missed(self, measurement: Measurement[Any]) -> Lookup:
        fingerprint, changed = measurement.fingerprint, tuple[str, ...]()
        if why := self._why_uncacheable(measurement):
            changed = (f"not kept: {why}",)
        elif self.options.explain_cache:
            if self.options.refresh and self.store.get(fingerprint) is not None:
                changed = ("nothing changed: measured again by --lmgate-refresh",)
            elif not self.options.refresh and self.store.get_partial(fingerprint) is not None:
                changed = ("partial: an interrupted measurement resumes",)
            else:
                changed = tuple(self.store.explain(fingerprint))
        return Lookup(False, fingerprint.address, changed)


def _key(model: Model) -> str:
    if model.process:
        return _PROCESS + model.process
    return (_UNKEPT if model.not_kept else "") + Fingerprint.of("model", model.ingredients).address


def _proven(model: Model) -> Fingerprint:
    """Return what the proofs of a model's trials are kept under. Raise the number whenever a trial changes."""
    return Fingerprint.of("trials/1", model.ingredients)


def differing_arrays(kept: StoredResult, again: StoredResult, rounding: float) -> str:
    """Name the arrays that differ by more than rounding, or that only one of them has."""
    for name in sorted(kept.arrays.keys() | again.arrays.keys()):
        one, other = kept.arrays.get(name), again.arrays.get(name)
        if one is None or other is None or one.shape != other.shape:
            return f"{name} is {_shape(one)} in the cache and {_shape(other)} when measured again"
        if not np.array_equal(one, other) and (said := _beyond(one, other, rounding)):
            return f"{name} {said}"
    for name in sorted(kept.facts.keys() | again.facts.keys()):
        if said := _unequal(kept.facts.get(name), again.facts.get(name)):
            return f"{name}{said}"
    return ""


def _beyond(one: NDArray[Any], other: NDArray[Any], rounding: float) -> str:
    """The mean difference bounds the difference of the means, and so its effect on any value of a gate."""
    is_rounded = other.dtype.kind == "f"
    one, other = one.astype(float), other.astype(float)
    with np.errstate(all="ignore"):
        allowed = rounding * (1 + float(np.abs(other).mean()) / 4) if is_rounded else 0.0
        if is_rounded and np.isin(other, (0, 1)).all():
            allowed += _NEAR_TIES / other.size
        difference = float(np.abs(one - other).mean())
        if difference <= allowed:
            return ""
        return (
            f"is {one.mean():.6g} on average in the cache and {other.mean():.6g} when measured again (mean difference "
            f"{difference:.2g}, rounding explains {allowed:.2g})"
        )


def _unequal(one: Any, other: Any) -> str:
    if one == other:
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        row = next(row for row, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return f", row {row}, is {one[row]!r:.80} in the cache and {other[row]!r:.80} when measured again"
    return f" is {one!r:.80} in the cache and {other!r:.80} when measured again"


def _shape(array: NDArray[Any] | None) -> str:
    return "missing" if array is None else f"of shape {list(array.shape)}"


def _rounding(model: Model) -> float:
    """Return the tolerance for rounding on another machine, by the model's dtype."""
    return max(_FLOAT32_ROUNDING, _ROUNDINGS.get(model.dtype, 0.0))


_POSSIBLE = {
    **dict.fromkeys(("nll", "nll_p", "nll_q", "kl"), (0.0, math.inf)),
    "log_likelihood": (-math.inf, 0.0),
    "dp": (-1.0, 1.0),
    **dict.fromkeys(("same_top", "greedy"), (0.0, 1.0)),
}
_ROUNDING = 1e-3  # beyond these ranges


def impossible(entry: StoredResult) -> str:
    """Return what in a stored entry no model can have given, such as a log-likelihood above 0; empty if nothing is."""
    for name, array in entry.arrays.items():
        low, high = _POSSIBLE.get(name, (-math.inf, math.inf))
        wrong = array[~((array >= low - _ROUNDING) & (array <= high + _ROUNDING) & np.isfinite(array))]
        if wrong.size:
            limits = f"finite numbers from {low:g} to {high:g}"
            return f"{name}: expected {limits}, got {wrong.flat[0]:g} ({wrong.size:,} of {array.size:,})"
    return ""
