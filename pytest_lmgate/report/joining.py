"""One run of many: the JSON reports of shards, each of which ran some of the gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from pytest_lmgate.errors import RecordError
from pytest_lmgate.judge.result import Results, Verdict


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


def join(shards: Mapping[str, Results], plan: PlannedGates | None = None) -> Results:
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
