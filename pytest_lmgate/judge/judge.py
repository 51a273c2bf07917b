"""From a gate to its verdict: evaluate, and compare with a limit, with another model, or with the baseline."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from pytest_lmgate.errors import ComparisonError, LmgateError, RequirementError, escape_controls
from pytest_lmgate.judge.attribution import attribute
from pytest_lmgate.judge.baseline import BaselineEntry, Baselines
from pytest_lmgate.judge.result import HubDataset, PreviousBaseline, Verdict
from pytest_lmgate.judge.verdict import (
    Samples,
    compare_samples,
    compared_verdict,
    histogram_of,
    is_share,
    judge_bounds,
    judge_limit,
    measured_verdict,
    require_a_limit,
    require_a_share,
    row_changes,
    worst_rows,
)
from pytest_lmgate.measure.binding import Bound, BoundGate, DataRef
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.measurement import same_numbers
from pytest_lmgate.measure.results import ResultScores, require_one_scale
from pytest_lmgate.measure.targets import PlacesCache
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.gates import Gate, LimitGate, NoRegression
from pytest_lmgate.settings.metrics import METRICS
from pytest_lmgate.settings.options import find_project_file
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.stats.paired import known_differences, scored_differently

_UPDATE_HINT = "; if this is intended, update the baseline with --lmgate-update"


class Judge:
    """Measures gates and turns scores into verdicts; the baseline is read for the first gate that uses it."""

    def __init__(self, evaluator: Evaluator, options: Options, baselines: Baselines) -> None:
        self.evaluator, self._options, self.baselines = evaluator, options, baselines
        self._places: PlacesCache = {}
        self.entries: dict[str, BaselineEntry] = {}
        """Entries for the baseline file, by gate."""

    def unmeasured(
        self, gate: Gate, identity: str, test: str, place: tuple[str, int] = ("", 0), message: str = ""
    ) -> Verdict:
        """Return the verdict of a gate that is not measured, which is an error; its `place` is its file and line."""
        what = gate.evaluation
        return Verdict.unmeasured(
            id=identity,
            test=test,
            marker=gate.marker,
            metric=what.metric,
            model=what.model_name,
            dataset=what.dataset_name,
            limit=gate.limit if isinstance(gate, LimitGate) else None,
            advisory=gate.advisory,
            arguments=self._options.arguments,
            file=place[0],
            line=place[1],
            message=message,
        )

    def judge(
        self,
        bound: BoundGate,
        identity: str,
        test: str,
        resolve: Callable[[Any], Any] = lambda given: given,
        place: tuple[str, int] = ("", 0),
    ) -> tuple[Verdict, Exception | None]:
        """Return a gate's verdict, and the exception behind an error if it is a `RequirementError` or not one of ours.

        The test of a gate of lmgate.yaml has the gate's own id, and `resolve` replaces a fixture reference by the
        fixture's value: a gate with fixtures is bound again, now that these have run.
        """
        gate, started, looked_up = bound.gate, time.monotonic(), len(self.evaluator.measurements.lookups)
        blank = self.unmeasured(gate, identity, test, place)
        try:
            if bound.has_fixtures:
                bound = self.evaluator.bind_gate(gate, resolve)
            if isinstance(gate, NoRegression) and bound.reference is None:
                verdict = self._by_baseline(blank, gate, bound)
            else:
                score = self.evaluator.evaluate(bound.bound)
                if isinstance(gate, LimitGate):
                    verdict = self._by_limit(blank, gate, score)
                else:
                    assert bound.reference is not None
                    verdict = self._by_reference(blank, gate, score, bound, bound.reference)
        except LmgateError as error:
            lacking = error if isinstance(error, RequirementError) else None
            return replace(blank, message=str(error), seconds=time.monotonic() - started), lacking
        except Exception as error:
            message = escape_controls(f"{type(error).__name__}: {error}")
            return replace(blank, message=message, seconds=time.monotonic() - started), error
        with contextlib.suppress(Exception):  # of an engine of the user's: the verdict stands without the hint
            verdict = replace(verdict, layers=self._layers(bound) if verdict.failed else "")
        return replace(verdict, cache=self._explained(looked_up), hub=hub_dataset(bound.bound.data)), None

    def _by_limit(self, blank: Verdict, gate: LimitGate, score: Score) -> Verdict:
        if gate.evaluation.metric not in METRICS:  # else it was refused at collection
            require_a_limit(gate.limit, gate.evaluation.metric, score)
        outcome, bounded, blocking = judge_limit(score, gate.limit), None, False
        if gate.confidence is not None:
            fails_if_open = outcome == "fail" or self._options.strict
            outcome, bounded = judge_bounds(score, gate.limit, gate.confidence)
            blocking = fails_if_open and outcome == "inconclusive"
        details: dict[str, Any] = {}
        if gate.evaluation.reference is not None:
            details = {**score.details, "reference": gate.evaluation.reference_name}  # as the user wrote it
        # A percentile of tokens is, unlike their mean, made of no shares of rows.
        is_distance = gate.evaluation.reference is not None and score.sample is not None
        return replace(
            measured_verdict(blank, score),
            verdict=outcome,
            bounded=bounded,
            blocking=blocking,
            message=f"the value is {float(score)}, which cannot be compared with a limit" if outcome == "error" else "",
            details=details,
            worst=worst_rows(score) if outcome == "fail" or blocking else (),
            spread=histogram_of(score, score.require_sample()) if is_distance else None,
        )

    def _by_reference(
        self, blank: Verdict, gate: NoRegression, score: Score, bound: BoundGate, other: Bound
    ) -> Verdict:
        score, reference = self.evaluator.evaluate_beside(bound.bound, other, score)
        name = gate.against_name
        against = f"model {name!r}"
        # Two engines may compute different numbers from the same weights: a gate between them can fail.
        same = bool(score.content) and (score.content, score.fingerprint) == (reference.content, reference.fingerprint)
        if score.weights and score.weights == reference.weights and not gate.same:
            raise ComparisonError(
                f"{gate.evaluation.model_name!r} has the same weights as {name!r}, digest by "
                "digest, and runs in the same way: check the path of both; if this is meant, because only a template "
                "or config.json changed, write same: true"
            )
        samples = score.require_sample(), reference.require_sample()
        found = _compared(gate, samples, against, same=same)
        row = METRICS.get(gate.evaluation.metric)
        of_tokens = row is not None and row.measures in ("likelihoods", "pseudo-likelihoods")
        if of_tokens and not gate.same and np.array_equal(samples[0].sums, samples[1].sums):
            self.evaluator.log.remark(same_numbers(gate.evaluation.model_name, repr(name)))
        if bound.bound.measurement is ResultScores:
            found = replace(found, notes=row_changes(samples, found))
        self._say_parts(score, samples, against)
        seconds, cached = score.seconds + reference.seconds, score.cached and reference.cached
        return replace(self._judged(blank, gate, score, samples, found, bound), seconds=seconds, cached=cached)

    def _by_baseline(self, blank: Verdict, gate: NoRegression, bound: BoundGate) -> Verdict:
        """Judge by the gate's entry for the device that it runs on, or make that entry."""
        found: list[tuple[str, BaselineEntry | None]] = []

        def look(known: Mapping[str, str], device: str) -> None:
            """Find the entry; refuse, before a model runs, a measurement whose known parts differ from it."""
            key, entry = self.baselines.key(blank.id, device), None
            if not self.baselines.is_updated(key):
                entry = self.baselines.require(key, blank, gate.evaluation, known)
                if differs := known_differences(known, entry.identity):
                    raise ComparisonError(
                        f"cannot be compared with the {entry.words}: {'; '.join(differs)}{_UPDATE_HINT}"
                    )
            found[:] = [(key, entry)]

        score = self.evaluator.evaluate(bound.bound, look)
        if not found:  # given texts, which no model writes
            look({}, "")
        ((key, entry),) = found
        if entry is None:
            return self._updated(blank, gate, score, key)
        return self._judged(blank, gate, score, *self._with_entry(gate, score, entry, _UPDATE_HINT), bound)

    def _updated(self, blank: Verdict, gate: NoRegression, score: Score, key: str) -> Verdict:
        try:  # which fails the next session, not the one that writes the entry
            if is_share(score.require_sample(), METRICS.get(gate.evaluation.metric)):
                require_a_share(gate.allowed, score, "baseline", score.direction)
            if gate.allowed.relative and not score > 0:
                raise ComparisonError(
                    f"{gate.allowed.name}: a percentage needs a baseline above 0, got {float(score):g}; use a number "
                    "in the metric's unit"
                )
        except ComparisonError as error:
            self.evaluator.log.remark(f"{blank.id}: the baseline is written, but this gate cannot judge by it: {error}")
        self.entries[key] = self.baselines.entry(score)
        return replace(
            measured_verdict(blank, score),
            verdict="pass",
            message="the baseline is measured again",
            previous=self._previous(gate, score, self.baselines.read().get(key)),
        )

    def _with_entry(
        self, gate: NoRegression, score: Score, entry: BaselineEntry, hint: str = ""
    ) -> tuple[Samples, Comparison]:
        candidate = score.require_sample().merged()
        samples = candidate, self.baselines.reference(entry, score, candidate)
        same = bool(score.content) and score.content == entry.content
        is_read = bool(score.content) and not score.device  # from results, which no hardware of this machine made
        try:
            found = _compared(gate, samples, entry.words, same=same)
            if is_read and candidate.weights is None:  # else sums are not those of scores
                require_one_scale(candidate.direction, *(sample.sums[:, 0] / sample.counts for sample in samples))
        except ComparisonError as error:
            raise type(error)(f"{error}{hint}") from None
        self._say_parts(score, samples, entry.words)
        found = replace(found, varies_by=entry.provenance.varies_by or None)
        return samples, found if is_read else replace(found, notes=self.baselines.notes(entry, score))

    def _previous(self, gate: NoRegression, score: Score, entry: BaselineEntry | None) -> PreviousBaseline:
        if entry is None:
            return PreviousBaseline()
        try:
            return PreviousBaseline(entry.value, self._with_entry(gate, score, entry)[1])
        except LmgateError as error:
            return PreviousBaseline(entry.value, problem=str(error))

    def _say_parts(self, score: Score, samples: Samples, against: str) -> None:
        if scored_differently(*samples):
            ours, theirs = (f"{float(sample.counts.sum()):,.0f} {score.unit}s" for sample in samples)
            self.evaluator.log.remark(
                f"{score.model!r} and the {against} score different parts of the text, {ours} and {theirs}: "
                "protocol='lm-eval' scores all of it"
            )

    def _judged(
        self, blank: Verdict, gate: NoRegression, score: Score, samples: Samples, found: Comparison, bound: BoundGate
    ) -> Verdict:
        where = None
        if found.decision != "pass" and not found.is_failed_gain:
            where = attribute(self.evaluator, bound, samples, found, self._places)
        return compared_verdict(blank, score, samples, found, strict=self._options.strict, where=where)

    def _layers(self, bound: BoundGate) -> str:
        """Return the command `lmgate why` for these models; empty if it does not support them."""
        what = bound.bound.what
        how, reference = what.how, what.reference or (bound.reference.what.model if bound.reference else None)
        names = (what.model, what.dataset, reference)
        if not isinstance(how, WindowProtocol | DivergenceRequest) or not all(isinstance(name, str) for name in names):
            return ""
        other = bound.bound.reference or (bound.reference.model if bound.reference else None)
        ours, theirs = (self.evaluator.resolver.model(ref) for ref in (bound.bound.model, other))
        if any(model.kind != "causal" or "backend" in model.runtime for model in (ours, theirs)):
            return ""  # of another engine, or of two architectures
        if (ours.device, ours.dtype, ours.architecture) != (theirs.device, theirs.dtype, theirs.architecture):
            return ""
        command = ["lmgate", "why", what.model, what.dataset, "--against", reference]
        command += _protocol_options(how.protocol if isinstance(how, DivergenceRequest) else how)
        if (file := self.evaluator.project.file) != find_project_file(Path.cwd()) and file is not None:
            command += ["--config", os.path.relpath(file)]
        return shlex.join(command)

    def _explained(self, begin: int) -> str:
        """Return the cache's explanation of the lookups since `begin`."""
        if not self._options.explain_cache:
            return ""
        if len(self.evaluator.measurements.lookups) == begin:
            return "not looked up: a function has no content to hash, so its texts are not kept"
        return "; ".join(
            "hit" if lookup.hit else f"miss, {', '.join(lookup.changed) or 'no earlier measurement'}"
            for lookup in self.evaluator.measurements.lookups[begin:]
        )


def hub_dataset(data: DataRef | None) -> HubDataset | None:
    """Return where a dataset is on the hub; None for data that is local or in memory."""
    spec = None if data is None else data.spec
    if spec is None or spec.hub is None:
        return None
    is_part = spec.limit is not None or spec.sample is not None
    return HubDataset(spec.hub, spec.name or "", spec.split or "", spec.revision or "", is_part)


def _protocol_options(protocol: WindowProtocol) -> list[str]:
    """Return the options by which a command takes the windows of a protocol."""
    options = ["--protocol", protocol.name]
    for field in structs.fields(WindowProtocol):
        if field.name not in ("name", "unit", "average") and (value := getattr(protocol, field.name)) != field.default:
            has_option = field.name in ("max_length", "stride")
            written = "null" if value is None else str(value).lower()
            options += (
                [f"--{field.name.replace('_', '-')}", written] if has_option else ["-o", f"{field.name}={written}"]
            )
    return options


def _compared(gate: NoRegression, samples: Samples, against: str, *, same: bool) -> Comparison:
    metric = gate.evaluation.metric
    how: dict[str, Any] = {"tolerance": gate.allowed, "confidence": gate.confidence}
    return compare_samples(samples, against, metric=metric, row=METRICS.get(metric), same=same, **how)
