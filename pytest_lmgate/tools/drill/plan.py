"""The plan of a drill, and its run: which faults fit into the time, and from which strength on each gate is red.

For each fault and gate the strongest fault is judged first, and then by bisection the weakest that turns the gate red:
four judged models for a fault with up to eight levels. Gates that share a measurement share those of broken models, and
nothing is measured for a gate that cannot see a fault, as one that writes no text cannot see how texts are written.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_lmgate.cache.store import find_entries
from pytest_lmgate.cli.console import flow, note
from pytest_lmgate.errors import ConfigError, LmgateError, ModelError
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.measure.binding import BoundGate
from pytest_lmgate.measure.loop import Progress, about
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.decoding import parse_marker
from pytest_lmgate.stats.comparison import POWER
from pytest_lmgate.stats.means import score_quantile
from pytest_lmgate.tools.drill.evaluator import FaultyEvaluator, breakable
from pytest_lmgate.tools.drill.planting import Fault, NotPlanted

_ANY, _LEAST, _MOST = 1e9, 1e-5, 3  # a limit that no gate fails; the least of a divergence; gates that are offered
Sight = Literal["caught", "inconclusive", "never", "no effect", "not tried"]


@dataclass(frozen=True)
class DrilledGate:
    """A gate under test, as it judges its model without a fault."""

    name: str
    bound: BoundGate
    healthy: Verdict
    addresses: frozenset[str]  # of its measurements

    @property
    def model(self) -> str:
        return self.bound.bound.what.model_name


def smallest_seen(verdict: Verdict, power: float = POWER) -> float | None:
    """Return the smallest damage at which a gate says to fail in this share of samples, if its value has an interval.

    For a comparison, it is the tolerance and the change that the power takes; for a limit, the distance from the value
    to the limit. None if the noise is not known.

    Damage brings noise of its own, which the verdict of a model without damage does not have. Perplexity tells how
    much at least: a log-likelihood ratio r of a slightly damaged model has ``E[exp(r)] = 1``, so a loss of d nats a
    token comes with a variance of ``2 d``. The loss that is seen solves ``d = tolerance + z sqrt(2 d / n)``.
    A share of right rows is noisier the nearer it is to a half: a score bound is at the limit L for a share
    ``p = L - z sqrt(L (1 - L) / n)``, with the n of the bound of the value.
    """
    if (comparison := verdict.comparison) is not None:
        if comparison.detectable is None:
            return None
        level, df = score_quantile(comparison.confidence, comparison.df), comparison.df
        share = (level + score_quantile(power, df)) / (level + score_quantile(POWER, df))
        least = comparison.tolerance.size + share * comparison.detectable
        if verdict.metric != "ppl" or not comparison.tolerance.relative:
            return least
        root = (level + score_quantile(power, df)) / math.sqrt(2 * comparison.n)
        damage = (root + math.sqrt(root**2 + math.log1p(comparison.tolerance.size))) ** 2
        return max(least, math.expm1(damage))
    if verdict.limit is None or verdict.value is None:
        return None
    room, bounded = abs(verdict.limit - verdict.value), verdict.bounded
    if bounded is None:
        return room
    is_lower = verdict.direction == "lower"
    better, worse = (bounded.lower, bounded.upper) if is_lower else (bounded.upper, bounded.lower)
    if better is None or worse is None:
        return None
    level, beyond = score_quantile(bounded.confidence, None), score_quantile(power, None)
    if bounded.bounds == "wilson" and 0 < verdict.limit < 1 and 0 < worse < 1:
        n = (level / (verdict.value - worse)) ** 2 * worse * (1 - worse)
        sign = 1 if is_lower else -1
        share = verdict.limit + sign * level * math.sqrt(verdict.limit * (1 - verdict.limit) / n)
        share = min(max(share, 0.0), 1.0)
        return abs(share - verdict.value) + beyond * math.sqrt(share * (1 - share) / n)
    return room + (1 + beyond / level) * abs(verdict.value - better)


@dataclass
class DrillFinding:
    """What a gate saw of a fault: the verdicts on its model with the fault, by strength."""

    guard: DrilledGate
    fault: Fault
    trials: dict[int, Verdict] = field(default_factory=dict)
    reason: str = ""  # why it was not tried
    is_hidden: bool = False  # where it has no effect that a gate of this kind could see

    @property
    def strength(self) -> int:
        """The weakest strength that is caught; 0 as long as none is."""
        return min((strength for strength, verdict in self.trials.items() if verdict.failed), default=0)

    @property
    def next(self) -> int:
        """The strength to judge next; 0 if there is none."""
        if self.reason or self.is_hidden:
            return 0
        return next_strength(len(self.fault.levels), {at: verdict.failed for at, verdict in self.trials.items()})

    @property
    def sight(self) -> Sight:
        if self.reason:
            return "not tried"
        if self.strength:
            return "caught"
        strongest = self.trials.get(len(self.fault.levels))
        if strongest is not None and strongest.verdict == "inconclusive":
            return "inconclusive"
        return "no effect" if strongest is None or strongest.value == self.guard.healthy.value else "never"

    def damage_of(self, strength: int) -> float | None:
        """Return how much worse the model with the fault is in the gate's unit; larger is worse, None is no value."""
        healthy, verdict = self.guard.healthy, self.trials[strength]
        if verdict.comparison is not None:  # the healthy model need not be equal to what the gate compares with
            return verdict.comparison.degradation
        if verdict.value is None or healthy.value is None:
            return None
        return (verdict.value - healthy.value) * (1 if healthy.direction == "lower" else -1)

    @property
    def promised(self) -> float | None:
        """The smallest damage that a verdict says to find: that of the unbroken model, if it knows its noise."""
        healthy, verdict = smallest_seen(self.guard.healthy), self.trials.get(self.strength)
        return healthy if healthy is not None or verdict is None else smallest_seen(verdict)

    def data(self) -> dict[str, Any]:
        """Return its record."""
        levels = (None, *self.fault.levels)
        trials = [
            {"level": levels[strength], "damage": self.damage_of(strength), "failed": verdict.failed}
            | {name: getattr(verdict, name) for name in ("verdict", "value", "message")}
            for strength, verdict in self.trials.items()
        ]
        names = {"fault": self.fault.name, "gate": self.guard.name, "sight": self.sight, "reason": self.reason}
        return {**names, "level": levels[self.strength], "promised": self.promised, "trials": trials}


def steps(levels: int) -> int:
    """Return how many models bisection judges at most to find the weakest of so many levels that is caught."""
    return 1 + math.ceil(math.log2(levels))


def next_strength(levels: int, is_caught: Mapping[int, bool]) -> int:
    """Return the strength to judge next to find the weakest that is caught, if all stronger ones are; 0 for none.

    The strongest comes first, then bisection.
    """
    if not is_caught:
        return levels
    high = min((strength for strength, caught in is_caught.items() if caught), default=0)
    low = max((strength for strength, caught in is_caught.items() if not caught), default=0)
    return (low + high) // 2 if high - low > 1 else 0


@dataclass
class Drill:
    """A drill of gates by faults."""

    evaluator: FaultyEvaluator
    judge: Judge
    guards: Sequence[DrilledGate]
    faults: list[Fault]
    seconds: Mapping[str, float]  # of the measurement at an address, without a fault
    deadline: float = math.inf  # by the monotonic clock
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: list[Fault] = field(default_factory=list)  # by the time limit
    pace: float = 1.0  # of what was estimated: that leaves out loading, trials and states that cannot be reused

    def prepare(self) -> None:
        """Find out which faults can be planted in which model, and leave out those for which there is no time."""
        models = {guard.model: guard for guard in self.guards}.values()
        for guard, fault in itertools.product(models, self.faults):
            self.reasons[guard.model, fault.name] = self._why_not(guard, fault)
        room, kinds, faults = self.deadline - time.monotonic(), [fault.kind for fault in self.faults], self.faults
        self.faults = []
        # One fault of each kind, then the next of each, so that a time limit leaves all kinds in.
        for at in sorted(range(len(kinds)), key=lambda at: kinds[:at].count(kinds[at])):
            fits = (cost := self.cost(faults[at])) <= room or not cost
            room -= cost if fits else 0
            (self.faults if fits else self.left_out).append(faults[at])
        if self.left_out and not any(map(self.cost, self.tried_faults)):  # what takes no time is what no gate sees
            least = min(map(self.cost, self.left_out))
            raise ConfigError(f"--seconds: no time for a single fault: the quickest takes about {about(least)}")
        if not self.tried_faults:
            reasons = {fault: reason for (_, fault), reason in self.reasons.items()}
            words = "; ".join(f"{named}: {why}" for why, named in by_reason(reasons).items())
            raise ModelError(f"no fault can be planted in the models of these gates: {words}")

    @property
    def tried_faults(self) -> list[Fault]:
        """The faults for which there is time that can be planted in the model of any gate."""
        planted = {name for (_, name), reason in self.reasons.items() if not reason}
        return [fault for fault in self.faults if fault.name in planted]

    def cost(self, fault: Fault) -> float:
        """Return about the seconds that a fault takes at most."""
        return steps(len(fault.levels)) * sum(self.seconds.get(address, 0.0) for address in self._addresses(fault))

    def _addresses(self, fault: Fault) -> set[str]:
        """Return the measurements that a fault needs for each strength."""
        found = [self._begun(guard, fault) for guard in self.guards]
        return {each.guard.healthy.fingerprint for each in found if each.next}

    def plan(self) -> str:
        """Return the plan in words."""
        tried = self.tried_faults
        count = sum(steps(len(fault.levels)) * len(self._addresses(fault)) for fault in tried)
        line = f"{counted(len(self.guards), 'gate')}, {counted(len(tried), 'fault')}: at most "
        line += f"{counted(count, 'measurement')}, about {about(sum(map(self.cost, tried)))}"
        if self.left_out:
            line += f"; no time for {', '.join(fault.name for fault in self.left_out)}"
        return line

    def run(self) -> list[DrillFinding]:
        """Judge broken models, while there is time."""

        def progress(now: Progress) -> None:
            log.progress(replace(now, search=line))

        findings: list[DrillFinding] = []
        begun, done, left = time.monotonic(), 0.0, sum(map(self.cost, self.faults))
        log, line = self.evaluator.measurements.log, ""
        self.evaluator.measurements.log = replace(log, progress=progress)
        for fault in self.faults:
            now, cost = time.monotonic(), self.cost(fault)
            if now + self.pace * cost > self.deadline and cost and any(found.trials for found in findings):
                self.left_out.append(fault)
                continue
            line = f"{fault.name}: {fault.sentence}, at most {about(self.pace * left)} left"
            findings += (found := self.tried(fault))
            judged = len({strength for each in found for strength in each.trials})
            done, left = done + cost * judged / steps(len(fault.levels)), left - cost
            self.pace = (time.monotonic() - begun) / done if done else 1.0
        if all(found.reason for found in findings):  # data in which nothing can be changed shows that only now
            reasons = dict.fromkeys(f"{found.fault.name}: {found.reason}" for found in findings)
            raise ModelError(f"no fault could be tried, so nothing is known of these gates: {'; '.join(reasons)}")
        line = "trying gates that would catch more"
        return findings

    def tried(self, fault: Fault) -> list[DrillFinding]:
        """Find the weakest fault that each gate catches; gates that wait for the same strength share it."""
        found = [self._begun(guard, fault) for guard in self.guards]
        while waiting := [each for each in found if each.next]:
            strength = max(each.next for each in waiting)
            now = [each for each in waiting if each.next == strength]
            for each in sorted(now, key=lambda each: self.evaluator.sharing_key(each.guard.bound)):
                self._judge(each, strength)
        return found

    def cost_of(self, guards: Iterable[DrilledGate], faults: Sequence[Fault]) -> str:
        """Return in words what it takes at most to judge models with the strongest of faults by other gates."""
        seconds = seconds_of(self.evaluator)
        counts = [(guard, sum(self._begun(guard, fault).next > 0 for fault in faults)) for guard in guards]
        time_ = sum(count * sum(seconds.get(each, 0.0) for each in guard.addresses) for guard, count in counts)
        count = sum(count for _, count in counts)
        return f"at most {counted(count, 'measurement')}, about {about(self.pace * time_)}"

    @property
    def has_time(self) -> bool:
        return time.monotonic() <= self.deadline

    def catches(self, guard: DrilledGate, fault: Fault) -> bool:
        """Return whether a gate catches the strongest fault."""
        found = self._begun(guard, fault)
        if found.next:
            self._judge(found, found.next)
        return found.sight == "caught"

    def _begun(self, guard: DrilledGate, fault: Fault) -> DrillFinding:
        reason = self.reasons.get((guard.model, fault.name), "it is in another model")
        return DrillFinding(guard, fault, reason=reason, is_hidden=not self.evaluator.can_see(guard.bound, fault))

    def _judge(self, found: DrillFinding, strength: int) -> None:
        guard = found.guard
        try:
            with self.evaluator.planted(guard.bound, found.fault, strength):
                found.trials[strength] = self.judge.judge(guard.bound, guard.healthy.id, guard.healthy.test)[0]
        except NotPlanted as error:  # in the gate's data
            found.reason = str(error)

    def _why_not(self, guard: DrilledGate, fault: Fault) -> str:
        """Return why a fault cannot be planted in a gate's model; empty if it can."""
        model = self.evaluator.resolver.model(guard.bound.bound.model)
        try:
            runner = self.evaluator.measurements.runner(model)
            fault.planted(breakable(model, runner), len(fault.levels))
        except LmgateError as error:
            return str(error)
        except Exception as error:  # of a user's own fault, or of a model that its code does not know
            return f"it cannot be planted: {type(error).__name__}: {error}"
        return ""


def by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the names of faults for each of their reasons, in one text."""
    return {why: ", ".join(name for name in reasons if reasons[name] == why) for why in reasons.values()}


def seconds_of(evaluator: FaultyEvaluator) -> dict[str, float]:
    """Return the seconds of the measurements that are kept, by address."""
    return {each.address: float(each.facts.get("seconds", 0)) for each in find_entries(evaluator.options.cache)}


def guards_of(
    evaluator: FaultyEvaluator, judge: Judge, gates: Mapping[str, tuple[str, BoundGate]]
) -> list[DrilledGate]:
    """Judge gates as they stand; `gates` have their ids and what they are bound to, by name."""
    guards, red = [], []
    for name, (identity, bound) in gates.items():
        _require_another_model(evaluator, name, bound)
        before = len(evaluator.measurements.lookups)
        verdict, _ = judge.judge(bound, identity, identity)
        if verdict.failed:
            why = f": {verdict.message}" if verdict.message else f" at {verdict.value:.6g}"
            red.append(f"{name} is {verdict.shown} already{why}")
            continue
        addresses = frozenset(lookup.address for lookup in evaluator.measurements.lookups[before:])
        guards.append(DrilledGate(name, bound, verdict, addresses))
    if red:
        raise ConfigError(
            f"expected gates that pass, since a red gate catches everything: {'; '.join(red)}; mend them, or name the "
            "others by --gate"
        )
    return guards


def _require_another_model(evaluator: FaultyEvaluator, name: str, bound: BoundGate) -> None:
    """Refuse a gate without a model, or one that compares a model with itself."""
    ours, other = bound.bound.model, bound.bound.reference or (bound.reference.model if bound.reference else None)
    if ours is None or ours.function is not None:
        raise ConfigError(f"{name}: expected a gate that measures a model, got given texts or a function")
    if other is not None:
        one, two = (evaluator.resolver.model(ref) for ref in (ours, other))
        if one.content is not None and one.ingredients == two.ingredients:
            raise ConfigError(
                f"{name}: {ours.name!r} is its own reference, so a fault would be in both: expected another model"
            )


def suggested(drill: Drill, missed: Sequence[Fault]) -> list[tuple[str, list[str]]]:
    """Return up to three gates that do not exist, as lines of YAML, each with the missed faults that it catches.

    Each is measured and judges the broken models, and catches a fault that those before it do not. Its limit is beyond
    the value of the model by half of a divergence, or by 2% of a perplexity. A gate that cannot be measured is not
    offered.
    """
    tried: dict[str, DrilledGate] = {}
    known = {guard.name for guard in drill.guards}
    for marker, arguments in _candidates(drill.guards):
        with contextlib.suppress(LmgateError):
            value = _guard(drill, marker, {**arguments, "limit": _ANY}).healthy.value or 0.0
            limit = float(f"{1.02 * value:.4g}" if marker == "ppl_max" else f"{max(1.5 * value, _LEAST):.2g}")
            guard = _guard(drill, marker, given := {**arguments, "limit": limit})
            if guard.name not in known:
                tried[f"- {marker}: {flow(given)}"] = guard
    if tried:
        note(f"{counted(len(tried), 'gate')} that may catch more: {drill.cost_of(tried.values(), missed)}")
    found: dict[str, list[str]] = {}
    for line, guard in tried.items():
        with contextlib.suppress(LmgateError):
            found[line] = [fault.name for fault in missed if drill.has_time and drill.catches(guard, fault)]
    chosen: list[tuple[str, list[str]]] = []
    seen = set[str]()
    for line, caught in sorted(found.items(), key=lambda pair: -len(pair[1])):
        if not seen.issuperset(caught):
            chosen.append((line, caught))
            seen.update(caught)
    return chosen[:_MOST]


def _guard(drill: Drill, marker: str, arguments: dict[str, Any]) -> DrilledGate:
    gate = parse_marker(marker, (), arguments)
    (guard,) = guards_of(drill.evaluator, drill.judge, {gate.label: (gate.label, drill.evaluator.bind_gate(gate))})
    return guard


def _candidates(guards: Sequence[DrilledGate]) -> list[tuple[str, dict[str, Any]]]:
    """Return markers with their arguments, each once."""
    found, document = [], {"protocol": "document"}
    for guard in guards:
        gate, what = guard.bound.gate, guard.bound.gate.evaluation
        other = what.reference or getattr(gate, "against", None)
        alone = {"model": what.model, "dataset": what.dataset}
        tried = [("self_kl_max", alone), ("ppl_max", {**alone, **document})]
        if isinstance(other, str):
            tried += [("kl_max", {**alone, "reference": other, **more}) for more in ({}, document)]
        found += [candidate for candidate in tried if candidate not in found]
    return found
