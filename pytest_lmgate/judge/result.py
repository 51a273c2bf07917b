"""What a run found: one family of records, which the JSON report and a record of the history encode as they are.

A record is frozen, holds plain values and travels between processes. JSON has no infinity and no NaN: it has null, and
reading turns a null that must be a number back into one. The records of shards join into one run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from platform import machine, python_version
from platform import platform as platform_name
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import force_setattr, replace

from pytest_lmgate.errors import RecordError, encodable
from pytest_lmgate.identity import versions
from pytest_lmgate.judge.attribution import Attribution, ChangeHistogram
from pytest_lmgate.metrics.score import AnswerCounts, Score
from pytest_lmgate.stats.comparison import Comparison, Number
from pytest_lmgate.stats.means import Rule

if TYPE_CHECKING:
    from pytest_lmgate.metrics.divergence import Divergence


Outcome = Literal["pass", "fail", "inconclusive", "error"]
OUTCOMES = ("pass", "fail", "inconclusive", "error", "xfail", "advisory fail", "advisory inconclusive")
"""How a report counts a gate: its verdict, or why that fails nothing."""
Interval = tuple[Number, Number]
_PACKAGES = ("pytest-lmgate", "pytest", "torch", "transformers", "tokenizers", "numpy")


class Scored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A number and its measurement.

    Attributes:
        metric: Such as ppl.
        model: As written by the user.
        dataset: As written by the user.
        value: Null if it could not be measured or is not finite.
        n: Number of targets or rows that were scored.
        unit: Unit of `n`, such as token.
        signature: All settings that the value depends on.
    """

    metric: str
    model: str
    dataset: str
    value: float | None
    n: int | None
    unit: str
    signature: str


class HubDataset(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dataset of the hub, as its entry in lmgate.yaml names it.

    Attributes:
        id: Such as openai/gsm8k.
        name: The configuration; empty for the default one.
        split: Empty if it is the only one.
        revision: Branch, tag or commit; empty for the newest commit.
        is_part: Whether only some rows are read, by `limit` or `sample`.
    """

    id: str
    name: str = ""
    split: str = ""
    revision: str = ""
    is_part: bool = False


class Measured(Scored, frozen=True, kw_only=True, omit_defaults=True):
    """A measurement for a test.

    Attributes:
        test: Node id of the test.
        stderr: Standard error of the value.
        interval: At 95%; an end that is infinite is null.
        fingerprint: Address of the measurement in the cache; empty if it is not kept.
        cached: Whether the measurement came from the cache.
        seconds: Time of the measurement in this session.
        details: All statistics of two models, by name.
        answers: Of texts, how many have no answer or were cut; absent for given predictions.
        hub: The dataset on the hub; absent for data that is local or in memory.
    """

    test: str
    stderr: float | None
    interval: Interval | None
    fingerprint: str
    cached: bool
    seconds: float
    details: dict[str, float | int | str | None] = {}
    answers: AnswerCounts | None = None
    hub: HubDataset | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "interval", _open(self.interval))


class FixtureCall(Measured, frozen=True, kw_only=True, omit_defaults=True):
    """What a fixture such as ``ppl_of`` measured for a test, whose own code judges it.

    Attributes:
        value: Null if it is not a number.
        fixture: Such as ppl_of; the value of compare_of is the mean KL divergence.
    """

    value: Number
    fixture: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value is None:
            force_setattr(self, "value", math.nan)

    @classmethod
    def of(cls, test: str, fixture: str, found: Score | Divergence, hub: HubDataset | None = None) -> FixtureCall:
        if isinstance(found, Score):
            return cls(test=test, fixture=fixture, hub=hub, **measured_facts(found))
        facts = {name: getattr(found, name) for name in ("model", "dataset", "n", "fingerprint", "cached", "seconds")}
        facts |= {"value": found.kl.value, "stderr": found.kl.stderr, "signature": str(found.signature)}
        return cls(
            test=test,
            fixture=fixture,
            metric="kl",
            unit="token",
            interval=None,
            details=dict(found.details),
            hub=hub,
            **facts,
        )


class Bounded(msgspec.Struct, frozen=True):
    """The bounds of the value, for a limit gate with a confidence.

    Attributes:
        confidence: One-sided level of each bound.
        lower: One-sided lower bound of the value.
        upper: One-sided upper bound of the value.
        bounds: The rule of the deciding bound.
        clusters: Number of clusters.
        clustered_by: What a cluster is.
        needed: Targets or rows that would settle an inconclusive verdict.
        unseen: Share of rows of which these may hold none; null as in a comparison.
    """

    confidence: float
    lower: float | None = None
    upper: float | None = None
    bounds: Rule | None = None
    clusters: int = 0
    clustered_by: str = "rows"
    needed: int | None = None
    unseen: float | None = None

    def __post_init__(self) -> None:
        if self.bounds is not None:
            lower, upper = _open((self.lower, self.upper))  # type: ignore[misc]
            force_setattr(self, "lower", lower)
            force_setattr(self, "upper", upper)


class PreviousBaseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """The baseline entry that an update replaced.

    Attributes:
        value: Its value; null if there was no entry.
        comparison: Comparison of the new value with it; null if they cannot be compared.
        problem: Why they cannot.
    """

    value: float | None = None
    comparison: Comparison | None = None
    problem: str = ""


class WorstRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of texts with a low score; of a comparison, a row that got worse.

    Attributes:
        row: Its number, from 0.
        score: The row's own score.
        prompt: What the model read.
        reference: References, joined by a bar.
        output: What the model wrote.
        answer: What `extract` made of the output; absent if the dataset has none.
        before: The reference's score of the row, if it got worse; absent if the rows of the reference are not known.
    """

    row: int
    score: Number
    prompt: str
    reference: str
    output: str
    answer: str | None = None
    before: float | None = None

    def __post_init__(self) -> None:
        if self.score is None:
            force_setattr(self, "score", math.nan)


class PastRun(msgspec.Struct, frozen=True):
    """A gate in one run of the history.

    Attributes:
        date: When the run ended, UTC.
        commit: With + if tracked files were changed; empty outside a repository.
        branch: Empty if unknown.
        verdict: As in the gate.
        value: As in the gate.
        interval: At 95%.
        limit: As in the gate.
        kind: The finding, given all runs before it; for a no_regression gate, by its verdicts.
        words: Size of a change beyond noise, else why the value cannot be compared or judged.
    """

    date: str
    commit: str
    branch: str
    verdict: Outcome
    value: float | None
    interval: Interval | None
    limit: float | None
    kind: Literal["first", "same", "worse", "better", "unknown"]
    words: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "interval", _open(self.interval))


class Verdict(Measured, frozen=True, kw_only=True, omit_defaults=True):
    """One gate's verdict: decided once, rendered many times.

    Attributes:
        id: Id of the gate, the same in every session.
        marker: Such as ppl_max.
        verdict: pass, fail, inconclusive or error.
        limit: Limit of the value; for a comparison, the worst value within the tolerance.
        direction: Which values are better; empty if nothing was measured.
        device: Where the model ran, such as cuda; empty for texts and functions.
        hardware: Name of the GPU or processor that it was measured on; empty if unknown.
        identity: Digests of the data, and the protocol; values with the same identity can be compared.
        blocking: Whether an inconclusive verdict fails the build.
        xfail: Whether the test is marked xfail, so that the gate does not fail the build.
        advisory: Whether the gate is advisory, so that no verdict but an error fails the build.
        iid: Whether errors treat tokens as independent, as the protocol's own program does.
        message: Why a gate is an error, or that its baseline was written.
        comparison: Only for no_regression.
        bounded: Only for a limit with a confidence.
        previous: Only if this session replaced the baseline.
        worst: Worst rows of a failed gate on texts.
        where: Where a comparison that did not pass got worse. Losses are in nats.
        spread: How the change of a comparison, or a divergence, is distributed over rows or blocks.
        history: With --lmgate-history, this run and the last 30 recorded runs of the gate.
        arguments: Command-line options that affect results.
        layers: The `lmgate why` command, for a failed gate on two models that it supports.
        cache: With --lmgate-explain-cache, a hit or what changed.
        file: File of the gate; empty if unknown.
        line: Line of the gate in the file, from 1.
    """

    id: str
    marker: str
    verdict: Outcome
    limit: float | None
    direction: Literal["lower", "higher", ""]
    device: str
    identity: dict[str, str]
    blocking: bool
    hardware: str = ""
    xfail: bool = False
    advisory: bool = False
    iid: bool = False
    message: str = ""
    comparison: Comparison | None = None
    bounded: Bounded | None = None
    previous: PreviousBaseline | None = None
    worst: tuple[WorstRow, ...] = ()
    where: Attribution | None = None
    spread: ChangeHistogram | None = None
    history: tuple[PastRun, ...] = ()
    arguments: tuple[str, ...] = ()
    layers: str = ""
    cache: str = ""
    file: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.advisory:
            force_setattr(self, "blocking", False)

    @classmethod
    def unmeasured(cls, **facts: Any) -> Verdict:
        """Return an error that has measured nothing yet, with the known `facts` of the gate."""
        blank: dict[str, Any] = dict.fromkeys(("value", "stderr", "interval", "n"))
        blank |= dict.fromkeys(("signature", "fingerprint", "direction", "device"), "")
        blank |= {"unit": "token", "cached": False, "seconds": 0.0, "identity": {}, "blocking": False}
        return cls(**{"verdict": "error"} | blank | facts)

    @property
    def label(self) -> str:
        """The gate's short name, unique within its test."""
        return self.id.partition("::")[2] if self.id == self.test else self.id.removeprefix(f"{self.test}::")

    @property
    def failed(self) -> bool:
        """Whether the test fails by it."""
        return self.verdict == "error" or (self.verdict == "fail" and not self.advisory) or self.blocking

    @property
    def advises(self) -> bool:
        """Whether it would fail, or is inconclusive, but its gate is advisory."""
        return self.advisory and self.verdict in ("fail", "inconclusive")

    @property
    def fails(self) -> bool:
        return self.failed and not self.xfail

    @property
    def outcome(self) -> str:
        """The verdict; ``xfail`` for a failure of an xfail test, and such as ``advisory fail`` of an advisory gate."""
        return "xfail" if self.failed and self.xfail else f"advisory {self.verdict}" if self.advises else self.verdict

    @property
    def shown(self) -> str:
        """The verdict in capitals, marked if inconclusive and failing the build, or if xfail or advisory."""
        is_marked = self.verdict == "inconclusive" and self.blocking
        return f"{self.named} (xfail)" if self.outcome == "xfail" else self.named + "!" * is_marked

    @property
    def named(self) -> str:
        """The verdict in capitals, marked if advisory."""
        return f"{self.verdict.upper()}{' (advisory)' if self.advises else ''}"


class Environment(msgspec.Struct, frozen=True):
    """Where the run was made; packages that are not installed are absent."""

    python: str = msgspec.field(default_factory=python_version)
    platform: str = msgspec.field(default_factory=platform_name)
    machine: str = msgspec.field(default_factory=machine)
    packages: dict[str, str] = msgspec.field(default_factory=lambda: versions(_PACKAGES))


class Run(msgspec.Struct, frozen=True):
    """The call of pytest; unknown texts are empty.

    Attributes:
        id: The same for all workers of the run.
        project: The project's name in CI, as in owner/name; else the name of rootdir.
        commit: With + if tracked files were changed.
        branch: The current branch, else the one that CI names.
        date: When the session ended, ISO 8601 in UTC.
        device: Where the models ran, such as cuda; several are separated by commas.
        hardware: Name of the processor or the accelerator.
        driver: Version of the GPU's driver; empty without a GPU.
        command: The command, without secrets: user, password and query of an address, the value of an option such as
            --token.
        stopped: Whether some tests did not run, as after Ctrl-C or -x.
    """

    id: str = ""
    project: str = ""
    commit: str = ""
    branch: str = ""
    date: str = ""
    device: str = ""
    hardware: str = ""
    driver: str = ""
    command: str = ""
    stopped: bool = False


class Results(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="schema",
    tag=1,
    rename={"verdicts": "gates", "measured": "measurements"},
):
    """The JSON report, and a record of the history.

    Attributes:
        run: The call of pytest.
        verdicts: Verdicts of the gates, in the order of the tests.
        measured: Measurements of fixtures such as ppl_of.
        problems: What fails the session although every test passed, such as a lost verdict.
        remarks: What fails nothing, such as a warning of a library that loaded a model.
        environment: Versions and the platform.
    """

    run: Run
    verdicts: tuple[Verdict, ...]
    measured: tuple[FixtureCall, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    environment: Environment = msgspec.field(default_factory=Environment)

    @property
    def is_whole(self) -> bool:
        """Whether it has every gate of the run."""
        return not (self.run.stopped or self.problems)

    def by_id(self, where: str) -> dict[str, Verdict]:
        """Return the gates' verdicts by id; RecordError if one appears twice in the file `where`."""
        gates: dict[str, Verdict] = {}
        for gate in self.verdicts:
            if gates.setdefault(gate.id, gate) is not gate:
                raise RecordError(f"{where}: the gate {gate.id} appears twice: expected one verdict")
        return gates

    def without_texts(self) -> Results:
        """Return the results for the history: numbers and names, but no text of a dataset or a model."""
        blank: dict[str, Any] = {"message": "", "cache": "", "layers": "", "file": "", "line": 0, "arguments": ()}
        blank |= {"worst": (), "where": None, "spread": None, "history": (), "previous": None, "details": {}}
        gates = tuple(replace(verdict, **blank) for verdict in self.verdicts)
        return replace(self, run=replace(self.run, command=""), verdicts=gates, measured=(), remarks=())


def worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Sort verdicts: first those that fail the build, then inconclusive ones, then others."""
    return sorted(verdicts, key=lambda each: 0 if each.fails else 2 if each.verdict == "pass" else 1)


def scored_facts(score: Score) -> dict[str, Any]:
    """Return what a score says of itself, by the names in `Scored`."""
    facts = {name: getattr(score, name) for name in ("metric", "model", "dataset", "n", "unit")}
    return facts | {"value": float(score), "signature": str(score.signature)}


def measured_facts(score: Score) -> dict[str, Any]:
    """Return what a score says of itself, by the names in `Measured`."""
    names = ("stderr", "interval", "fingerprint", "cached", "seconds")
    found = {name: getattr(score, name) for name in names}
    return scored_facts(score) | found | {"answers": score.details.get("answers")}


def to_json(value: object) -> str:
    """Return JSON in ASCII that every reader accepts: null for NaN, no half surrogate pairs."""
    return json.dumps(_plain(msgspec.to_builtins(value)), indent=2, allow_nan=False) + "\n"


def read_results(text: bytes, where: str) -> Results:
    """Read a JSON report, or a record of the history; messages name the file `where` and the key."""
    try:
        return msgspec.json.decode(text, type=Results)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # also of the wrong type
        why = "a plan, which measures nothing" if b'"plan-1"' in text[:99] else f"{error}; restore or remove the file"
        raise RecordError(f"{where}: no JSON report, or record of --lmgate-history, of schema 1: {why}") from None


def _open(ends: tuple[float | None, float | None] | None) -> tuple[float, float] | None:
    """Return an interval, with infinite ends for null."""
    if ends is None:
        return None
    low, high = ends
    return (-math.inf if low is None else low, math.inf if high is None else high)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class PlannedGates(msgspec.Struct, frozen=True, tag_field="schema", tag="plan-1"):
    """What ``pytest --lmgate-plan --lmgate-report json:FILE`` writes."""

    gates: tuple[str, ...]  # ids, in the order of the tests


def read_plan(text: bytes, where: str) -> PlannedGates:
    """Read a plan; one without a gate would find any shards whole, so that it is an error too."""
    try:
        plan = msgspec.json.decode(text, type=PlannedGates)
        if not plan.gates:
            raise msgspec.ValidationError("it has no gate")
        return plan
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(
            f"{where}: expected a plan, as `pytest --lmgate-plan --lmgate-report json:FILE` writes it: {error}"
        ) from None


def join_shards(shards: Mapping[str, Results], plan: PlannedGates | None = None) -> Results:
    """Return one run with the gates of all shards, by file name; planned gates that no shard has are its problems."""
    (first, one), *_ = shards.items()
    gates: dict[str, tuple[str, Verdict]] = {}
    for file, results in shards.items():
        for key in ("project", "commit"):
            ours, theirs = getattr(one.run, key), getattr(results.run, key)
            if ours != theirs:
                raise RecordError(f"{first} and {file}: expected shards of one {key}, got {ours!r} and {theirs!r}")
        for name, verdict in results.by_id(file).items():
            other, known = gates.setdefault(name, (file, verdict))
            if _without_time(known) != _without_time(verdict):
                raise RecordError(
                    f"{other} and {file}: the gate {name} has two results, {known.shown} ({known.value!r}) and "
                    f"{verdict.shown} ({verdict.value!r}): run it in one shard"
                )
    every, runs = shards.values(), [results.run for results in shards.values()]
    problems = [problem for results in every for problem in results.problems]
    remarks = [remark for results in every for remark in results.remarks]
    if plan is not None:
        problems += [f"no shard has a verdict of {name}, which is planned" for name in plan.gates if name not in gates]
        remarks += [f"{name} is not in the plan" for name in gates if name not in plan.gates]
        gates = {name: gates[name] for name in [*plan.gates, *gates] if name in gates}
    if any(results.environment != one.environment for results in every):
        remarks.append(f"the shards ran with different versions or platforms; those shown are of {first}")
    run = replace(
        one.run,
        date=max(run.date for run in runs),
        device=_joined((name for run in runs for name in run.device.split(", ")), ", "),
        hardware=_joined((run.hardware for run in runs), ", "),
        command=_joined((run.command for run in runs), "; "),
        stopped=any(run.stopped for run in runs),
    )
    return replace(
        one,
        run=run,
        verdicts=tuple(verdict for _, verdict in gates.values()),
        measured=tuple(call for results in every for call in results.measured),
        problems=tuple(dict.fromkeys(problems)),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _joined(texts: Iterable[str], by: str) -> str:
    return by.join(dict.fromkeys(filter(None, texts)))


def _without_time(verdict: Verdict) -> Verdict:  # a measurement and its cache hit are the same
    return replace(verdict, cached=False, seconds=0.0, cache="")
