"""What a session would measure: each measurement once, with what the cache has of it, its size, and about how long.

No model is loaded. Speeds are those of earlier measurements in the cache folder: of the same kind, of a model of the
same name, on the same kind of device.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.cache.store import EntryInfo, StoredResult, find_entries
from pytest_lmgate.engines.devices import device_class
from pytest_lmgate.errors import LmgateError, escape_controls
from pytest_lmgate.measure.binding import Bound
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.measurement import Measurement
from pytest_lmgate.measure.results import ResultScores
from pytest_lmgate.measure.texts import GeneratedTexts
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.gates import EvaluationSpec, FixtureReference

# Fields of a signature that are of a metric or its unit, and do not change what is measured.
_OF_SCORES = ("average", "unit", "variant", "version")


@dataclass
class PlannedMeasurement:
    """One measurement."""

    words: str  # models and dataset
    protocol: str  # the protocol, or the generation settings
    is_cached: bool = False
    why: tuple[str, ...] = ()  # why it is not cached, with ``--lmgate-explain-cache``
    done: float = 0.0  # the share that an interrupted run has measured
    tokens: int | None = None  # tokens of the whole measurement; None if only the loaded model can count them
    is_most: bool = False  # whether it may have fewer tokens, because a model may end texts early
    seconds: float | None = None  # estimated time left, without loading; None if the speed is unknown
    # approximate bytes of memory of each of its models, by name; 0 if unknown
    weights: dict[str, int] = field(default_factory=dict)
    is_read: bool = False  # whether it is read from results, so that nothing is left to measure
    metrics: list[str] = field(default_factory=list)  # the metrics that use it, in `gates` gates
    gates: int = 0


class Plan:
    """The measurements that gates need, in order, with the state of the cache."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._planned: dict[str, PlannedMeasurement] = {}
        self.problems: dict[str, None] = {}
        """Sentences on evaluations that cannot be planned, each once."""

    @property
    def measurements(self) -> list[PlannedMeasurement]:
        return list(self._planned.values())

    def add(self, evaluator: Evaluator, what: EvaluationSpec | Bound) -> None:
        bound = evaluator.bind(what)
        found, what = self._found(evaluator, bound), bound.what
        if isinstance(found, str):
            names = f"{what.metric} of {' against '.join(what.model_names)} on {what.dataset_name}"
            self.problems[f"{names}: {found}"] = None
            return
        found.gates += 1
        found.metrics += [what.metric] * (what.metric not in found.metrics)

    def _found(self, evaluator: Evaluator, bound: Bound) -> PlannedMeasurement | str:
        """Return the measurement of an evaluation, or why it cannot be planned."""
        if fixtures := [given.name for given in bound.what.given if isinstance(given, FixtureReference)]:
            return f"not known before the fixture has run ({', '.join(fixtures)})"
        if bound.measurement is None:
            return "a function generates the texts; no model runs"
        try:
            measurement = evaluator.open(bound)
            address = measurement.fingerprint.address
            if address not in self._planned:
                self._planned[address] = self._looked_up(evaluator, measurement)
            return self._planned[address]
        except LmgateError as error:
            return f"cannot be measured: {escape_controls(str(error), line=True)}"
        except Exception as error:  # of a user's engine, say: the rest of the plan is still worth reading
            return escape_controls(f"cannot be planned: {type(error).__name__}: {error}", line=True)

    def _looked_up(self, evaluator: Evaluator, measurement: Measurement[Any]) -> PlannedMeasurement:
        lookup, partial = evaluator.measurements.planned(measurement)
        is_read = isinstance(measurement, ResultScores)
        planned = PlannedMeasurement(
            measurement.words, _protocol(measurement), lookup.hit, lookup.changed, is_read=is_read
        )
        if lookup.hit or is_read:
            return planned
        tokenizer = next((model.tokenizer for model in measurement.models if model.tokenizer), None)
        planned.weights = {model.name: model.weight_bytes for model in measurement.models}
        planned.is_most = isinstance(measurement, GeneratedTexts)
        if tokenizer is not None:
            planned.tokens = measurement.tokens(tokenizer())
        planned.done = 0.0 if partial is None else _share(measurement, partial)
        speed = self._speeds.get(_key(measurement.fingerprint.kind, list(planned.weights), measurement.model.device))
        if planned.tokens is not None and speed:
            planned.seconds = planned.tokens * (1 - planned.done) / speed
        return planned

    @cached_property
    def _speeds(self) -> dict[str, float]:
        """Tokens per second of the latest measurements, by `_key`."""
        latest: dict[str, tuple[float, float]] = {}
        entries: list[EntryInfo] = []
        with contextlib.suppress(OSError):  # a cache that cannot be read is empty
            entries = find_entries(self._folder)
        for entry in entries:
            match entry.facts:
                case {
                    "measured_at": float(when),
                    "models": list(models),
                    "device": str(device),
                    "tokens": int(tokens),
                    "seconds": float(seconds),
                } if entry.state == "whole" and tokens > 0 and 0 < seconds < math.inf:
                    key = _key(entry.kind, models, device)
                    latest[key] = max(latest.get(key, (0.0, 0.0)), (when, tokens / seconds))
        return {key: speed for key, (_, speed) in latest.items()}


def _key(kind: str, models: list[Any], device: str) -> str:
    return repr((kind.partition("/")[0], models, device_class(device)))


def _share(measurement: Measurement[Any], partial: StoredResult) -> float:
    if isinstance(measurement, GeneratedTexts):
        return len(partial.facts.get("texts", ())) / len(measurement.data.task.prompts)
    known = partial.arrays.get("measured")
    return 0.0 if known is None or not known.size else float(np.isfinite(known).mean())


def _protocol(measurement: Measurement[Any]) -> str:
    if isinstance(measurement, GeneratedTexts):
        return str(measurement.settings.signature)
    fields = () if measurement.signature is None else measurement.signature.fields
    return str(Signature(each for each in fields if each[0] not in _OF_SCORES))
