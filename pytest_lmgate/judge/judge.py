"""From a gate to its verdict: evaluate, and compare with a limit, with another model, or with the baseline."""

from __future__ import annotations

__all__ = ["Judge", "Resolve"]

import contextlib
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.hf.models.device import device_class
from pytest_lmgate.config import find_project_file
from pytest_lmgate.config.options import Options
from pytest_lmgate.errors import ComparisonError, LmgateError, MetricInputError, harmless
from pytest_lmgate.evaluate.evaluator import Evaluator
from pytest_lmgate.evaluate.targets import Shelf
from pytest_lmgate.gates.baseline import BaselineEntry
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.comparisons.paired import compare, differences
from pytest_lmgate.gates.spread import Spread, spread_of
from pytest_lmgate.gates.tagged import with_rows
from pytest_lmgate.gates.verdict import Former, Verdict, judge_bounds, judge_limit
from pytest_lmgate.judge.baselines import Baselines
from pytest_lmgate.judge.where import locate
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.score import Score, sample_of
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.gates import Gate, NoRegression
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import DivergenceRequest

_ANEW = "; if this is intended, measure the baseline anew with --lmgate-update"
Resolve = Callable[[Any], Any]
_Samples = tuple[Sample, Sample]  # of the candidate and of the reference


class _NoneOfTheseError(ComparisonError):
    """None of some entries can be a gate's own."""


class Judge:
    """Measures gates and turns scores into verdicts.

    Args:
        evaluator: Of the session.
        options: Of the session.
        baselines: The committed baseline; read for the first gate that is judged by it.
    """

    def __init__(self, evaluator: Evaluator, options: Options, baselines: Baselines) -> None:
        self._evaluator, self._options, self._baselines = evaluator, options, baselines
        self._shelf: Shelf = {}
        self.entries: dict[str, str] = {}
        """Entries for the baseline file, in JSON, by gate."""

    def judge(
        self, gate: Gate | NoRegression, identity: str, test: str, resolve: Resolve = lambda given: given
    ) -> tuple[Verdict, Exception | None]:
        """Return a gate's verdict, and the exception behind an error if it is not one of ours.

        Args:
            gate: The gate.
            identity: Id of the gate.
            test: Id of the test that carries it; of a gate of lmgate.yaml its own.
            resolve: Returns for a reference to a fixture what the fixture returned, and all else as it is.
        """
        what, started, looked_up = gate.evaluation, time.monotonic(), len(self._evaluator.lookups)
        blank = Verdict(
            id=identity,
            test=test,
            marker=gate.marker,
            metric=what.metric,
            model=what.model_name,
            dataset=what.dataset_name,
            verdict="error",
            value=None,
            limit=gate.limit if isinstance(gate, Gate) else None,
            arguments=self._options.arguments,
        )
        try:
            if isinstance(gate, Gate):
                verdict = self._by_limit(blank, gate, resolve)
            elif gate.reference is None:
                verdict = self._by_baseline(blank, gate, resolve)
            else:
                verdict = self._by_reference(blank, gate, resolve)
        except LmgateError as error:
            return replace(blank, message=str(error), seconds=time.monotonic() - started), None
        except Exception as error:
            message = harmless(f"{type(error).__name__}: {error}")
            return replace(blank, message=message, seconds=time.monotonic() - started), error
        with contextlib.suppress(Exception):  # of an engine of the user's: the verdict stands without the hint
            verdict = replace(verdict, layers=self._layers(gate) if verdict.failed else "")
        return replace(verdict, cache=self._explained(looked_up)), None

    def _by_limit(self, blank: Verdict, gate: Gate, resolve: Resolve) -> Verdict:
        # A sum that proves the value to be above the limit says nothing of its bounds.
        stop_above = gate.limit if self._options.fail_fast and gate.confidence is None else None
        score = self._evaluator.evaluate(gate.evaluation.resolved(resolve), stop_above=stop_above)
        outcome, bounded, blocking = judge_limit(score, gate.limit), None, False
        if gate.confidence is not None:
            fails_if_open = outcome == "fail" or self._options.strict
            outcome, bounded = judge_bounds(score, gate.limit, gate.confidence)
            blocking = fails_if_open and outcome == "inconclusive"
        details: dict[str, Any] = {}
        if gate.evaluation.reference is not None:
            details = {**score.details, "reference": gate.evaluation.reference_name}  # as the user wrote it
            if isinstance(gate.evaluation.model, str) and gate.evaluation.model == gate.evaluation.reference:
                self._say_same(*gate.evaluation.model_names)
        # A percentile of tokens is, unlike their mean, made of no shares of rows.
        is_distance = gate.evaluation.reference is not None and score.sample is not None
        return replace(
            _measured(blank, score),
            verdict=outcome,
            bounded=bounded,
            blocking=blocking,
            at_least=bool(score.details.get("at_least")),
            message=f"the value is {float(score)}, which no limit can judge" if outcome == "error" else "",
            details=tuple(details.items()),
            worst=_worst(score) if outcome == "fail" or blocking else (),
            spread=_spread(score, sample_of(score)) if is_distance else None,
        )

    def _by_reference(self, blank: Verdict, gate: NoRegression, resolve: Resolve) -> Verdict:
        assert gate.reference is not None
        score = self._evaluator.evaluate(gate.evaluation.resolved(resolve))
        reference = self._evaluator.evaluate(gate.reference.resolved(resolve))
        against = f"model {gate.reference.model_name!r}"
        # Two engines may compute different numbers from the same weights: a gate between them can fail.
        same = bool(score.content) and (score.content, score.fingerprint) == (reference.content, reference.fingerprint)
        if same:
            self._say_same(gate.evaluation.model_name, gate.reference.model_name)
        samples = sample_of(score), sample_of(reference)
        found = _compared(gate, samples, against, same=same)
        seconds, cached = score.seconds + reference.seconds, score.cached and reference.cached
        return replace(self._judged(blank, gate, score, samples, found, resolve), seconds=seconds, cached=cached)

    def _by_baseline(self, blank: Verdict, gate: NoRegression, resolve: Resolve) -> Verdict:
        baselines = self._baselines
        if names := baselines.former_names(blank.id):
            self._move(blank.id, gate, names, resolve)
        if baselines.is_updated(blank.id):
            score = self._evaluator.evaluate(gate.evaluation.resolved(resolve))
            if gate.tolerance.relative and not score > 0:
                raise ComparisonError(
                    f"a tolerance in percent needs a baseline above 0, got {float(score):g}; "
                    "use a tolerance in the metric's unit"
                )
            _require_a_share(gate, score, "baseline")
            self.entries[blank.id] = baselines.entry(score)
            former = self._former(gate, score, baselines.read().get(blank.id))
            return replace(
                _measured(blank, score), verdict="pass", message="the baseline is measured anew", former=former
            )
        entry = baselines.require(blank.id, blank.test, gate.evaluation)
        with self._evaluator.expecting(lambda known: _require_same(known, entry.identity, entry.words)):
            score = self._evaluator.evaluate(gate.evaluation.resolved(resolve))
        samples, found = self._with_entry(gate, score, entry, _ANEW)
        return self._judged(blank, gate, score, samples, found, resolve)

    def _move(self, identity: str, gate: NoRegression, names: Sequence[str], resolve: Resolve) -> None:
        """Find a gate's entry under a former name; no model runs where none of the `names` can be its own."""
        identities = [self._baselines.read()[name].identity for name in names]

        def require_any(known: Mapping[str, str]) -> None:
            if all(_known_differences(known, each) for each in identities):
                raise _NoneOfTheseError("no entry is of this data and protocol")

        with contextlib.suppress(_NoneOfTheseError), self._evaluator.expecting(require_any):
            self._baselines.move(identity, self._evaluator.evaluate(gate.evaluation.resolved(resolve)), names)

    def _with_entry(
        self, gate: NoRegression, score: Score, entry: BaselineEntry, hint: str = ""
    ) -> tuple[_Samples, Comparison]:
        candidate = sample_of(score).merged()
        samples = candidate, self._baselines.reference(entry, score, candidate)
        same = bool(score.content) and score.content == entry.content
        try:
            found = _compared(gate, samples, entry.words, same=same)
        except ComparisonError as error:
            raise type(error)(f"{error}{hint}") from None
        return samples, replace(found, notes=self._baselines.notes(entry, score))

    def _former(self, gate: NoRegression, score: Score, entry: BaselineEntry | None) -> Former:
        if entry is None:
            return Former()
        try:
            return Former(entry.value, self._with_entry(gate, score, entry)[1])
        except LmgateError as error:
            return Former(entry.value, problem=str(error))

    def _say_same(self, model: str, other: str) -> None:
        both = f"{model!r} is compared with itself" if model == other else f"{model!r} and {other!r} are the same model"
        self._evaluator.remark(f"{both}: this gate can never fail")

    def _judged(
        self, blank: Verdict, gate: NoRegression, score: Score, samples: _Samples, found: Comparison, resolve: Resolve
    ) -> Verdict:
        where = None
        if found.decision != "pass":
            against = None if gate.reference is None else gate.reference.resolved(resolve)
            where = locate(self._evaluator, gate.evaluation.resolved(resolve), against, samples, found, self._shelf)
        fails = found.fails_build(strict=self._options.strict)
        if found.needed is not None:  # what is compared may be counted otherwise than what is scored: tokens, bytes
            found = replace(found, needed=math.ceil(found.needed * score.n / found.n))
        worse = found.tolerance.size * (abs(found.reference) if found.tolerance.relative else 1)
        return replace(
            _measured(blank, score),
            verdict=found.decision,
            blocking=fails,
            limit=found.reference + worse if score.direction == "lower" else found.reference - worse,
            comparison=found,
            worst=_worst(score) if fails else (),
            where=where,
            spread=_spread(score, *samples),
        )

    def _layers(self, gate: Gate | NoRegression) -> str:
        """Return the command that says which layers cost what; empty where `lmgate why` would refuse the models."""
        what, how = gate.evaluation, gate.evaluation.how
        reference = what.reference or (gate.against if isinstance(gate, NoRegression) else None)
        names = (what.model, what.dataset, reference)
        if not isinstance(how, Protocol | DivergenceRequest) or not all(isinstance(name, str) for name in names):
            return ""
        ours, theirs = (self._evaluator.resolver.model(name) for name in (what.model, reference))
        if any(model.kind != "causal" or "backend" in model.runtime for model in (ours, theirs)):
            return ""  # of another engine, or of two architectures
        if (ours.device, ours.dtype, ours.architecture) != (theirs.device, theirs.dtype, theirs.architecture):
            return ""
        command = ["lmgate", "why", what.model, what.dataset, "--against", reference]
        protocol = how.protocol if isinstance(how, DivergenceRequest) else how
        command += ["--max-length", str(protocol.max_length)] if protocol.max_length else []
        if (file := self._evaluator.project.file) != find_project_file(Path.cwd()) and file is not None:
            command += ["--config", os.path.relpath(file)]
        return shlex.join(command)

    def _explained(self, begin: int) -> str:
        """Return what the cache said of the lookups since `begin`."""
        if not self._options.explain_cache:
            return ""
        if len(self._evaluator.lookups) == begin:
            return "not looked up: a function has no content to hash, so nothing is kept of it"
        return "; ".join(
            "hit" if lookup.hit else f"miss, {', '.join(lookup.changed) or 'no earlier measurement'}"
            for lookup in self._evaluator.lookups[begin:]
        )


def _measured(blank: Verdict, score: Score) -> Verdict:
    identity = {"protocol": score.signature.compared} if score.sample is None else score.sample.identity
    return replace(
        blank,
        value=float(score) if score.is_finite else None,
        stderr=score.stderr,
        interval=score.interval,
        n=score.n,
        unit=score.unit,
        signature=str(score.signature),
        iid=score.iid,
        fingerprint=score.fingerprint,
        cached=score.cached,
        seconds=score.seconds,
        direction=score.direction,
        device=device_class(score.device),
        identity=tuple(identity.items()),
    )


def _compared(gate: NoRegression, samples: _Samples, against: str, *, same: bool) -> Comparison:
    try:
        found = compare(*samples, tolerance=gate.tolerance, confidence=gate.confidence, same=same)
    except ComparisonError as error:
        raise ComparisonError(f"cannot be compared with the {against}: {error}") from None
    _require_a_share(gate, found.reference, against)
    return replace(found, against=against)


def _require_a_share(gate: NoRegression, reference: float, against: str) -> None:
    """Refuse a number as tolerance that is more than the reference itself; of a KL divergence or TER it may be."""
    row = METRICS.get(gate.evaluation.metric)
    if gate.tolerance.relative or row is None or row.lowest <= 0 or not 0 < reference < gate.tolerance.size:
        return
    raise ComparisonError(
        f"tolerance: expected at most 100% of the {against}, {reference:.6g}, got {gate.tolerance}: a number is in the "
        'metric\'s own unit; write a percentage as "5%"'
    )


def _spread(score: Score, candidate: Sample, reference: Sample | None = None) -> Spread | None:
    known = None if reference is None else with_rows(reference, candidate)
    try:
        return spread_of(candidate, known, metric=score.metric, unit=score.unit)
    except MetricInputError:  # a metric of the user's own that has no number for a row alone
        return None


def _require_same(known: Mapping[str, str], identity: Mapping[str, str], against: str) -> None:
    """Refuse, before a model runs, a measurement that differs from the baseline in a part that is already known."""
    if found := _known_differences(known, identity):
        raise ComparisonError(f"cannot be compared with the {against}: {'; '.join(found)}{_ANEW}")


def _known_differences(known: Mapping[str, str], identity: Mapping[str, str]) -> list[str]:
    both = known.keys() & identity.keys()
    return differences({part: known[part] for part in both}, {part: identity[part] for part in both})


def _worst(score: Score) -> tuple[tuple[int, float, str, str, str], ...]:
    worst = score.details.get("worst", ())
    return tuple((each.row, each.score, each.prompt, " | ".join(each.references), each.prediction) for each in worst)
