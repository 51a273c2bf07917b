"""Measure once: address, lock, cache, and only then the engine. What is measured is the caller's business."""

from __future__ import annotations

__all__ = ["FilesChanged", "Lookup", "Measurements", "Recipe"]

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry, Store
from pytest_lmgate.config.options import Options
from pytest_lmgate.engine.device import require_device, share_processors
from pytest_lmgate.errors import CacheError, LmgateError, ModelError
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.evaluate.verification import Verification
from pytest_lmgate.identity.patches import patches

if TYPE_CHECKING:
    from pytest_lmgate.engine.loading import LoadedModel
    from pytest_lmgate.engine.pool import ModelPool

T = TypeVar("T")
_UNKEPT = "not kept "  # begins the key of a model in the pool whose measurements are not kept


@dataclass(frozen=True)
class Lookup:
    """What the cache said of one measurement.

    Attributes:
        hit: Whether it was there.
        address: Where it was looked for.
        changed: On a miss, with ``--lmgate-explain-cache``: ingredients that differ from the nearest earlier entry.
    """

    hit: bool
    address: str
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe(Generic[T]):
    """One kind of measurement, for `Measurements.once`.

    Attributes:
        what: In words, for messages.
        models: The models that are measured.
        measure: Runs the model. It is given what an interrupted run left, and a function that keeps more of it. What it
            raises leaves nothing in the cache but that.
        encode: To arrays and facts.
        decode: And back; raises KeyError, TypeError, ValueError or LmgateError where the entry is of another kind.
    """

    what: str
    models: tuple[ModelSource, ...]
    measure: Callable[[Entry | None, Callable[[Entry], None]], T]
    encode: Callable[[T], Entry]
    decode: Callable[[Entry], T]


@dataclass
class Measurements:
    """The measurements of a session, and the models that are in memory for them.

    Attributes:
        store: The cache.
        options: The session's options.
        note: Told in one sentence what is worth saying, such as waiting for another process.
        remark: Told in one sentence what the session's summary should say of a measurement that was made.
        lookups: What the cache said, in order.
        expect: Told what a measurement is of, as in a sample's identity, before a model runs; it may raise.
        not_kept: Models of which nothing was kept, by name, with the reason.
        verification: The hits, of which some are measured again.
    """

    store: Store
    options: Options
    note: Callable[[str], None] = lambda _: None
    remark: Callable[[str], None] = lambda _: None
    lookups: list[Lookup] = field(default_factory=list)
    expect: Callable[[Mapping[str, str]], None] = lambda _: None
    not_kept: dict[str, str] = field(default_factory=dict)
    verification: Verification = field(init=False)
    _known: dict[str, Any] = field(default_factory=dict)
    _shared: list[str] = field(default_factory=list)  # addresses of measurements that are not kept
    _pool: ModelPool | None = None

    def __post_init__(self) -> None:
        self.verification = Verification(self.options.verify)

    def once(self, fingerprint: Fingerprint, recipe: Recipe[T]) -> tuple[T, bool]:
        """Return the measurement and whether it was there; locked, so that two processes measure once."""
        address = fingerprint.address
        if address in self._known:
            self.lookups.append(Lookup(True, address))
            return self._known[address], True
        for source in recipe.models:
            if source.not_kept:
                self.not_kept[source.name] = source.not_kept
                return self._unkept(address, recipe, source.not_kept), False
        # Most lookups hit: no lock is needed to read, since entries appear whole.
        if (found := self._fresh(fingerprint, recipe)) is None:
            waiting = f"another process is measuring {recipe.what}; waiting for it"
            with self.store.lock(fingerprint, lambda: self.note(waiting)):
                found = self._fresh(fingerprint, recipe)
                if found is None:
                    self.lookups.append(Lookup(False, address, self._explained(fingerprint)))
                    partial = None if self.options.refresh else self.store.get_partial(fingerprint)
                    measured = recipe.measure(partial, lambda entry: self.store.put_partial(fingerprint, entry))
                    if self.was_patched(recipe):
                        return measured, False
                    whole = recipe.encode(measured)
                    run = {"measured_at": time.time(), "run": self.options.run}
                    self.store.put(fingerprint, replace(whole, facts={**whole.facts, **run}))
                    self._known[address] = measured
                    return measured, False
        self.lookups.append(Lookup(True, address))
        self.verification.note(fingerprint, recipe, found)
        self._known[address] = found
        return found, True

    def forget(self) -> None:
        """Let go of measurements that are not kept, and of their models."""
        for address in self._shared:
            self._known.pop(address, None)
        self._shared.clear()
        if self._pool is not None:
            self._pool.drop(_UNKEPT)

    def model(self, source: ModelSource) -> LoadedModel:
        """Return a model in memory: one at a time, unless the next fits beside those that are there.

        Raises:
            FilesChanged: Another file stands in the place of one that the ingredients tell of.
        """
        pool = self._models()
        if source.in_memory:
            return source.load()  # held here, it would stay in memory after the user let it go
        require_device(source.device, model=source.name)

        def load() -> LoadedModel:
            loaded = source.load()
            if changed := source.changed():
                raise FilesChanged(
                    f"model {source.name!r}: {', '.join(changed[:3])} changed while the model was loaded, three times: "
                    "expected files that stay as they are; run again when nothing writes to them"
                )
            return loaded

        return pool.get(_key(source), load=load, weight_bytes=source.weight_bytes, device=source.device)

    def fit_together(self, here: ModelSource, other: ModelSource) -> bool:
        """Whether another model fits in memory beside one that is there."""
        if other.in_memory:
            return True
        require_device(other.device, model=other.name)
        return self._models().fits_beside(_key(here), _key(other), weight_bytes=other.weight_bytes, device=other.device)

    def _models(self) -> ModelPool:
        if self._pool is None:
            from pytest_lmgate.engine.pool import ModelPool

            share_processors(self.options.workers)
            self._pool = ModelPool()
        return self._pool

    def _unkept(self, address: str, recipe: Recipe[T], reason: str) -> T:
        self.lookups.append(Lookup(False, address, (f"not kept: {reason}",)))
        measured = recipe.measure(None, lambda _: None)
        self._known[address] = measured
        self._shared.append(address)
        return measured

    def was_patched(self, recipe: Recipe[T]) -> bool:
        """Whether a library was patched while it was loaded: the address does not tell of it."""
        found = patches()
        if not found or any("patches" in source.ingredients for source in recipe.models):
            return False
        for source in recipe.models:
            self.not_kept[source.name] = f"this session patched {found[0]} while the model was loaded"
        return True

    def _fresh(self, fingerprint: Fingerprint, recipe: Recipe[T]) -> T | None:
        entry = self.store.get(fingerprint)
        # Not by time: an entry may come from a machine whose clock is fast.
        if entry is None or (self.options.refresh and entry.facts.get("run") != self.options.run):
            return None
        try:
            return recipe.decode(entry)
        except (KeyError, TypeError, ValueError, LmgateError) as error:
            # Whole and sealed, but not by this code.
            self.store.set_aside(fingerprint, CacheError(f"it is no measurement of {recipe.what} ({error!r})"))
            return None

    def _explained(self, fingerprint: Fingerprint) -> tuple[str, ...]:
        if not self.options.explain_cache:
            return ()
        if self.options.refresh and self.store.get(fingerprint) is not None:
            return ("nothing changed: measured again by --lmgate-refresh",)
        return tuple(self.store.explain(fingerprint))


class FilesChanged(ModelError):
    """A model's files changed between their digest and the loading."""


def _key(source: ModelSource) -> str:
    return (_UNKEPT if source.not_kept else "") + Fingerprint.of("model", source.ingredients).address
