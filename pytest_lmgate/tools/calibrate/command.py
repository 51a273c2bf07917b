"""``lmgate calibrate``: what a gate's limit or tolerance is worth for a model that gives other numbers in each run.

The unchanged model is measured several times past the cache. The first run is that of a session; the others have other
batch sizes, another order of the requests and, for sampled texts, another seed. Each run opens the model again.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from msgspec import structs

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, DeviceOption, OfflineOption, flow, root, show
from pytest_lmgate.cli.measure import measuring
from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.report.text import counted, table
from pytest_lmgate.settings.decoding import check_limit, parse_marker
from pytest_lmgate.settings.file import YamlGate
from pytest_lmgate.settings.gates import Gate, LimitGate, NoRegression, Tolerance
from pytest_lmgate.settings.metrics import MARKERS
from pytest_lmgate.settings.options import read_project_file
from pytest_lmgate.tools.parts.gates import find_gate

if TYPE_CHECKING:
    from pytest_lmgate.cache.store import StoredResult
    from pytest_lmgate.measure.binding import Bound
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.metrics.score import Score
    from pytest_lmgate.settings.entries import Project
    from pytest_lmgate.tools.calibrate.power import Calibration

_BATCH_SIZES = (8, 32, 3, 16)
_ROUNDING = 1e-5  # nats per token by which equal numbers differ in batches of other sizes
_PAIRS = 10  # of runs that are compared
_MARK = "# lmgate calibrate"


@dataclass(frozen=True)
class CalibrationRun:
    """One run of a model: its settings and its score."""

    batch_size: int | str
    seed: int | None
    score: Score
    entry: StoredResult


@dataclass(frozen=True)
class Calibrated:
    """A gate's runs and their statistics."""

    gate: Gate
    runs: Sequence[CalibrationRun]
    references: Sequence[CalibrationRun]  # runs of the model that the gate compares with
    is_deterministic: bool
    worth: Calibration
    verdicts: Mapping[str, int]
    repeats: int
    strict: float | None = None  # how often an unchanged model fails with --lmgate-strict; None if that changes nothing
    device: str = ""  # where the model ran
    content: str = ""  # its digest

    @property
    def holds(self) -> bool:
        from pytest_lmgate.tools.calibrate.power import HEALTHY_FAILS

        return self.worth.fails <= HEALTHY_FAILS


def calibrate(
    gate: Annotated[str | None, typer.Argument(metavar="[GATE]", help="Gate of lmgate.yaml, by its id.")] = None,
    runs: Annotated[int, typer.Option(min=2, help="How often to measure the unchanged model.")] = 5,
    limit: Annotated[
        float | None, typer.Option(help="Without GATE: the minimum accuracy to test, as a share of rows.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=2, help="Without GATE: rows, each right or wrong.")] = None,
    share: Annotated[float | None, typer.Option(min=0, max=1, help="Without GATE: the healthy model's share.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write what holds into lmgate.yaml, with the reason.")] = False,
    config: ConfigOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    as_json: AsJson = False,
) -> None:
    """Measure an unchanged model several times: how often it fails a gate, and which damage the gate sees.

    Each run has another batch size, order of requests and seed. With --limit and --rows instead of a gate nothing is
    measured: how often models fail a floor, by their true share of right rows.
    """
    if gate is None:
        if limit is None or rows is None:
            raise typer.BadParameter("expected a GATE, or --limit with --rows for a floor without measuring")
        if not 0 < limit <= 1:
            raise typer.BadParameter(f"--limit: expected a share of rows above 0 and at most 1, got {limit:g}")
        if share == 0:
            raise typer.BadParameter("--share: expected a share above 0, since no model is worse than one of 0")
        if write:
            raise typer.BadParameter("--write: expected a GATE, whose limit or tolerance is written")
        show(*_floor(limit, rows, share), as_json=as_json)
        return
    if (limit, rows, share) != (None, None, None):
        raise typer.BadParameter("--limit, --rows and --share ask about a floor without measuring: leave out the GATE")
    with measuring(config=config, cache=cache, device=device, offline=offline) as session:
        if session.project.file is None:
            raise ConfigError(f"{session.project.origin}; lmgate calibrate needs a gate of an lmgate.yaml")
        entry, name = find_gate(session.project.file, gate)
        calibration = calibrated(session.evaluator, entry.gate, runs)
    lines, facts = _report(calibration, name)
    if write:
        lines.append(_write(entry, calibration))
        if isinstance(entry.gate, NoRegression) and entry.gate.uses_baseline and not calibration.is_deterministic:
            lines.append(_keep_variation(entry, name, calibration, session.project))
        facts["written"] = str(entry.file)
    show(facts, "\n".join(lines), as_json=as_json)


def calibrated(evaluator: Evaluator, gate: Gate, runs: int) -> Calibrated:
    """Measure the models of a gate `runs` times, or twice if they are deterministic."""
    from pytest_lmgate.measure.lookup import differing_arrays
    from pytest_lmgate.measure.measurement import identity_of
    from pytest_lmgate.stats.paired import compare
    from pytest_lmgate.tools.calibrate.power import calibrate_limit, calibrate_tolerance

    if isinstance(gate, NoRegression) and gate.within is not None:
        raise ConfigError.of("within", "lmgate calibrate looks at losses only: calibrate the gate with a tolerance")
    bound = evaluator.bind_gate(gate)
    if bound.bound.model is not None and bound.bound.model.is_results:
        raise ConfigError(f"{gate.label}: it needs a model to run again, but {bound.bound.model.name!r} is results")
    sides: list[list[CalibrationRun]] = [[] for _ in bound.sides]
    is_deterministic = False
    for number in range(runs):
        for side, one in zip(sides, bound.sides, strict=True):
            evaluator.log.note(f"run {number + 1} of {runs}: {one.what.model_name} on {one.what.dataset_name}")
            side.append(_run(evaluator, one, number))
            _require_noise(side[-1].score, gate)
        if number == 1 and not any(differing_arrays(side[0].entry, side[1].entry, _ROUNDING) for side in sides):
            is_deterministic = True
            sides = [[side[0], replace(side[1], score=side[0].score)] for side in sides]  # less their rounding
            break
    ours, theirs = sides[0], sides[1] if len(sides) > 1 else []
    samples, references = ([run.score.require_sample() for run in side] for side in (ours, theirs))
    verdicts: Counter[str] = Counter()
    bounded: list[tuple[float, float]] = []  # the badness of a run, and its bound that has to pass
    if isinstance(gate, LimitGate):
        rows = [run.score.stderr or 0.0 for run in ours]
        worth = calibrate_limit(samples, gate.limit, math.sqrt(sum(stderr**2 for stderr in rows) / len(rows)))
        if gate.confidence is not None:
            for sample in samples:
                if (bounds := sample.bounds(gate.confidence)) is not None:
                    is_lower = sample.direction == "lower"
                    bounded.append((sample.value(), bounds.upper) if is_lower else (-sample.value(), -bounds.lower))
    else:
        pairs = zip(samples, references, strict=True) if references else itertools.combinations(samples, 2)
        for pair in itertools.islice(pairs, _PAIRS):
            both = [pair] if references else [pair, pair[::-1]]
            compared = [compare(*pair, tolerance=gate.allowed, confidence=gate.confidence) for pair in both]
            verdicts[compared[0].decision] += 1
            bounded += [
                (float(comparison.degradation), comparison.upper)
                for comparison in compared
                if comparison.upper is not None
            ]
        worth = calibrate_tolerance(samples, gate.allowed, references or None)
    settings = _drawing(evaluator.open(bound.bound))
    repeats = settings.repeats if settings is not None else 0
    strict = worth.fails_by_bound(bounded) if bounded else None
    model = evaluator.open(bound.bound).model
    where = model.device, identity_of(model)
    return Calibrated(gate, ours, theirs, is_deterministic, worth, verdicts, repeats, strict, *where)


def _drawing(measurement: Any) -> Any:
    """Return the settings by which a gate's texts are drawn; None for other measurements, whose seed is fixed."""
    settings = measurement.settings if hasattr(measurement.asked, "generation") else None
    return settings if settings is not None and settings.is_sampling else None


def _run(evaluator: Evaluator, bound: Bound, number: int) -> CalibrationRun:
    """Open the model again and measure once, past the cache."""
    measurement = evaluator.open(bound)
    settings = _drawing(measurement)
    seed = settings.seed + number if settings is not None else None
    if number:
        model = replace(measurement.model, batch_size=_BATCH_SIZES[(number - 1) % len(_BATCH_SIZES)])
        request = measurement.asked
        if seed is not None:
            request = structs.replace(request, generation=structs.replace(request.generation, seed=seed))
        measurement = replace(measurement, model=model, asked=request)
    evaluator.measurements.close_models()
    statistics = evaluator.measurements.again(measurement, shuffle=number or None)
    return CalibrationRun(
        measurement.model.batch_size, seed, measurement.score(statistics), measurement.encode(statistics)
    )


def _require_noise(score: Score, gate: Gate) -> None:
    from pytest_lmgate.stats.means import INTERVAL_NEEDS

    if score.sample is None:
        raise MetricInputError(
            f"{gate.label}: this statistic is not made of rows, so its noise is not known: calibrate a gate on the mean"
        )
    if score.stderr is None or not score.is_finite:
        raise MetricInputError(
            f"{gate.label}: expected a finite value with a known noise, which needs {INTERVAL_NEEDS}; got "
            f"{float(score)} on {score.n:,} {score.unit}s"
        )
    if float(score) == 0 and score.direction == "higher":
        raise MetricInputError(f"{gate.label}: the value is 0, which no damage makes worse: look at the texts first")


def _floor(limit: float, rows: int, share: float | None) -> tuple[dict[str, Any], str]:
    """Say how often models fail a floor, by their true share of right rows."""
    from pytest_lmgate.tools.calibrate.power import calibrate_floor

    shares = sorted({round(limit + step * math.sqrt(limit * (1 - limit) / rows), 4) for step in range(-3, 4)})
    shares = [share for share in shares if 0 <= share <= 1] if share is None else [share]
    floors = {share: calibrate_floor(rows, limit, share) for share in shares}
    lines = [f"a floor of {limit:g} on {counted(rows, 'row')}, each right or wrong; each run draws its own rows"]
    lines += table(
        ("true share", "fails"), [(f"{share:g}", _percent(of.fails)) for share, of in floors.items()], names=()
    )
    facts: dict[str, Any] = {
        "limit": limit,
        "rows": rows,
        "fails": {f"{share:g}": of.fails for share, of in floors.items()},
    }
    if share is not None:
        worth = floors[share]
        times, holding = worth.times(worth.badness), -worth.holding()
        can_fail, needed = holding > 0, times and math.ceil(times * rows)
        facts |= {"seen": worth.seen(), "holding": {"limit": holding if can_fail else None, "rows": needed}}
        lines.append(f"smallest damage that fails in 80% of runs: {worth.seen():.3g}")
        remedies = [f"limit {holding:.4g}"] * can_fail + ([f"{needed:,} rows"] if needed else [])
        lines.append(
            f"to fail a model of {share:g} in at most 1% of runs, use: {', or '.join(remedies) or 'more rows'}"
        )
    return facts, "\n".join(lines)


def _report(calibration: Calibrated, name: str) -> tuple[list[str], dict[str, Any]]:
    from pytest_lmgate.report.wording import number

    gate, worth, first = calibration.gate, calibration.worth, calibration.runs[0].score
    evaluation = gate.evaluation
    of = " and ".join(evaluation.model_name for evaluation in gate.evaluations)
    runs = counted(len(calibration.runs), "run")
    lines = [f"{name}: {runs} of {of} on {evaluation.dataset_name}, {first.n:,} {first.unit}s"]
    sides = [calibration.runs, *([calibration.references] if calibration.references else [])]
    header = ["run", "batch size", *(["seed"] if calibration.runs[0].seed is not None else [])]
    header += [evaluation.metric, *(f"{evaluation.metric} of {gate.evaluations[1].model_name}" for _ in sides[1:])]
    lines += table(
        header,
        [
            [
                str(at + 1),
                str(run.batch_size),
                *([str(run.seed)] if run.seed is not None else []),
                *(number(side[at].score) for side in sides),
            ]
            for at, run in enumerate(calibration.runs)
        ],
        names=(),
    )
    if calibration.is_deterministic:
        lines.append("deterministic: another batch size, another order and opening the model again changed no number")
    stderr = first.stderr or 0.0
    lines += [
        f"rows that change between two runs: {_percent(worth.changed)}",
        f"noise: {worth.between_runs:.3g} between runs, {stderr:.3g} between rows",
        *(["the runs differ as a whole, by more than their rows explain"] if worth.as_a_whole else []),
    ]
    low, high = worth.badness.failing_between(worth.threshold)
    sentence = f"{_judged(calibration, worth.threshold)}: an unchanged model fails in {_percent(worth.fails)} of runs"
    if _percent(low) != _percent(high):
        sentence += f" ({_percent(low)} to {_percent(high)}, as far as its mean is known)"
    if worth.other_rows is not None:
        sentence += f"; on other rows of this kind in {_percent(worth.other_rows.fails(worth.threshold))}"
    lines.append(sentence)
    if calibration.strict is not None:
        lines.append(f"with --lmgate-strict, which fails INCONCLUSIVE too, in {_percent(calibration.strict)} of runs")
    lines.append(f"smallest damage that fails in 80% of runs: {_size(calibration, worth.seen())}")
    if calibration.verdicts:
        counts = ", ".join(f"{count} {verdict.upper()}" for verdict, count in calibration.verdicts.items())
        lines.append(f"verdicts of {counted(sum(calibration.verdicts.values()), 'pair')} of runs: {counts}")
    lines += _remedies(calibration)
    return lines, _facts(calibration, name)


def _facts(calibration: Calibrated, name: str) -> dict[str, Any]:
    worth, holding = calibration.worth, _holding(calibration)
    low, high = worth.badness.failing_between(worth.threshold)
    return {
        "gate": name,
        "runs": [
            {"value": float(run.score), "batch_size": run.batch_size, "seed": run.seed} for run in calibration.runs
        ],
        "references": [float(run.score) for run in calibration.references],
        "deterministic": calibration.is_deterministic,
        "changed": worth.changed,
        "between_runs": worth.between_runs,
        "between_rows": calibration.runs[0].score.stderr or 0.0,
        "as_a_whole": worth.as_a_whole,
        "fails": worth.fails,
        "fails_between": [low, high],
        "fails_on_other_rows": worth.other_rows and worth.other_rows.fails(worth.threshold),
        "fails_strict": calibration.strict,
        "seen": worth.seen(),
        "holds": calibration.holds,
        "holding": None if _refused(calibration, holding) else _judged(calibration, holding),
        "verdicts": dict(calibration.verdicts),
    }


def _remedies(calibration: Calibrated) -> list[str]:
    """Return the tightest threshold that holds, and other remedies; nothing if the gate holds without noise."""
    worth, score, lines = calibration.worth, calibration.runs[0].score, []
    if not (calibration.is_deterministic and calibration.holds):
        holding, remedies = _holding(calibration), list[str]()
        if not (refused := _refused(calibration, holding)):
            remedies.append(f"{_judged(calibration, holding)} (sees {_size(calibration, worth.seen(holding))})")
        if not calibration.holds and (times := worth.times(worth.badness)) is not None:
            remedies.append(f"{math.ceil(times * score.n):,} {score.unit}s")
            if calibration.repeats:
                remedies.append(f"repeats: {math.ceil(times * calibration.repeats)}")
        if refused:
            lines.append(f"too few rows: the noise asks for {refused}")
        if remedies:
            lines.append(f"to fail an unchanged model in at most 1% of runs, use: {', or '.join(remedies)}")
    if (other := worth.other_rows) is not None:
        threshold = _rounded(worth.holding(other), other.stderr)
        if not _refused(calibration, threshold):
            lines.append(f"on other rows of this kind, use: {_judged(calibration, threshold)}")
    return lines


def _refused(calibration: Calibrated, threshold: float) -> str:
    """Return a threshold that no gate can have with the reason, such as a limit that all values pass; else nothing."""
    gate, sample = calibration.gate, calibration.runs[0].score.require_sample()
    key, value = _argument(calibration, threshold)
    try:
        if isinstance(gate, LimitGate):
            check_limit(gate.marker, MARKERS[gate.marker], value)
        else:
            span = sample.span if math.isfinite(sample.span) else None
            allowed = Tolerance(threshold, gate.allowed.relative)
            allowed.require_that_it_can_fail(gate.evaluation.metric, sample.direction, span)
    except ConfigError as error:
        return f"{key} {value} ({error})"
    return ""


def _holding(calibration: Calibrated) -> float:
    return _rounded(calibration.worth.holding(), calibration.worth.badness.stderr)


def _rounded(threshold: float, noise: float) -> float:
    """Round a threshold to a hundredth of the noise, to the side that fails less often."""
    unit = 10.0 ** (math.floor(math.log10(noise or abs(threshold) or 1.0)) - (2 if noise else 5))
    return float(f"{math.ceil(threshold / unit - 1e-6) * unit:.12g}")


def _judged(calibration: Calibrated, threshold: float) -> str:
    """Return a limit or a tolerance as a gate has it: ``limit 0.71``, ``tolerance 1.5%``."""
    key, value = _argument(calibration, threshold)
    return f"{key} {value}"


def _argument(calibration: Calibrated, threshold: float) -> tuple[str, Any]:
    if isinstance(calibration.gate, LimitGate):
        sign = 1 if calibration.runs[0].score.direction == "lower" else -1
        return "limit", float(f"{sign * threshold:.12g}")
    tolerance = Tolerance(threshold, calibration.gate.allowed.relative)
    return "tolerance", str(tolerance) if tolerance.relative else tolerance.size


def _size(calibration: Calibrated, value: float) -> str:
    tolerance = getattr(calibration.gate, "tolerance", None)
    return f"{100 * value:.3g}%" if tolerance is not None and tolerance.relative else f"{value:.3g}"


def _percent(share: float) -> str:
    if 0 < share < 1e-4:
        return "less than 0.01%"
    return f"{100 * share:.3g}%" if share >= 0.1 else f"{100 * share:.2g}%"


def _write(entry: YamlGate, calibration: Calibrated) -> str:
    """Write a threshold that holds into a gate of lmgate.yaml, and the reason above it; return a sentence about it."""
    from pytest_lmgate.cache.files import write_kept

    worth = calibration.worth
    threshold = worth.threshold if calibration.holds else _holding(calibration)
    key, value = _argument(calibration, threshold)
    if not calibration.holds:
        parse_marker(entry.marker, (), {**entry.arguments, key: value})  # its errors are told before it is written
    reason = (
        f"{_MARK}, {len(calibration.runs)} runs: an unchanged model fails {key} {value} in "
        f"{_percent(worth.badness.fails(threshold))} of runs; "
        f"damage of {_size(calibration, worth.seen(threshold))} fails in 80%; "
        f"{_percent(worth.changed)} of the rows change between two runs"
    )
    try:
        text = read_project_file(entry.file)
        write_kept(entry.file, edited(text, entry, key, None if calibration.holds else value, reason))
    except OSError as error:
        raise ConfigError(f"{entry.file} cannot be written: {error}") from error
    what = "the reason, since the gate holds" if calibration.holds else f"{key} {value} with the reason"
    return f"written into {entry.file.name}: {what}"


def _keep_variation(entry: YamlGate, name: str, calibration: Calibrated, project: Project) -> str:
    """Keep by how much the unchanged model varies in its baseline entry for this device; return a sentence about it."""
    from pytest_lmgate.judge.baseline import BaselineEntry, Baselines, rewrite

    path = root().baseline(None)
    baselines = Baselines(path, label=project.spec.label, alike=project.spec.devices)
    key = baselines.key(baselines.id_of(entry.file, name, root().folder), calibration.device)
    values = [float(run.score) for run in calibration.runs]
    varies_by = max(values) - min(values)

    def change(entries: Mapping[str, BaselineEntry]) -> Mapping[str, BaselineEntry]:
        if key not in entries or entries[key].content != calibration.content:
            return entries
        made = structs.replace(entries[key].provenance, varies_by=varies_by)
        return {**entries, key: structs.replace(entries[key], provenance=made)}

    _, after = rewrite(path, change)
    if key not in after or after[key].content != calibration.content:
        return f"{path.name} has no entry of this model for {key}, so that its variation between runs is not kept"
    return f"written into {path.name}: between runs the unchanged model varies by {varies_by:.3g}"


def edited(text: str, entry: YamlGate, key: str, value: object, reason: str) -> str:
    """Return the text of an lmgate.yaml with another value at a gate, if one is given, and a comment above the gate."""
    index = int(entry.key.partition("[")[2].partition("]")[0])
    root: Any = yaml.compose(text)
    gates = next((value for name, value in root.value if name.value == "gates"), None)
    elsewhere = ConfigError(
        f"{entry.file}:{entry.line}: {entry.key}.{key}: expected a value of this gate alone, but it is merged in, an "
        "alias, or has an anchor from which others take it, or a list makes several gates of the entry: write "
        f"{key}: {flow(value)} at the gate itself"
    )
    if gates is None or (entry.is_one_of_many and value is not None):
        raise elsewhere
    node = gates.value[index]
    if value is not None:
        wanted = yaml.safe_load(text)
        gate = wanted["gates"][index]
        wanted["gates"] = [*wanted["gates"]]
        wanted["gates"][index] = {entry.marker: {**gate[entry.marker], key: value}}
        argument = next((pair for pair in node.value[0][1].value if pair[0].value == key), None)
        begin, end = (argument[1].start_mark.index, argument[1].end_mark.index) if argument else (0, 0)
        if argument is None or text[argument[0].end_mark.index : begin].strip() != ":":
            raise elsewhere
        text = text[:begin] + flow(value) + text[end:]
        try:
            is_as_wanted = yaml.safe_load(text) == wanted
        except yaml.YAMLError:  # the value had an anchor
            is_as_wanted = False
        if not is_as_wanted:
            raise elsewhere
    lines = text.splitlines(keepends=True)
    at = node.start_mark.line
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    above = at - 1 if at and lines[at - 1].strip().startswith(_MARK) else at
    return "".join([*lines[:above], f"{indent}{reason}\n", *lines[at:]])
