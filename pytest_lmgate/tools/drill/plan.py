"""The plan of a drill, and its run: which faults fit into the time, and from which strength on each gate is red.

For each fault and gate the strongest fault is judged first, and then by bisection the weakest that turns the gate red:
four judged models for a fault with up to eight levels. Gates that share a measurement share those of broken models.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_lmgate.engines.transformers.blocks import with_blocks
from pytest_lmgate.errors import ConfigError, LmgateError, ModelError
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.measure.binding import BoundGate
from pytest_lmgate.measure.loop import about
from pytest_lmgate.report.text import counted
from pytest_lmgate.tools.drill.broken import FaultyEvaluator
from pytest_lmgate.tools.drill.planting import Fault

Sight = Literal["caught", "inconclusive", "never", "no effect", "not tried"]


@dataclass(frozen=True)
class Guard:
    """A gate under test, as it judges its model without a fault."""

    name: str
    bound: BoundGate
    healthy: Verdict
    addresses: frozenset[str]  # of its measurements

    @property
    def model(self) -> str:
        return self.bound.bound.what.model_name


@dataclass(frozen=True)
class Trial:
    """A gate's verdict of its model with a fault."""

    strength: int
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """What a gate saw of a fault."""

    guard: Guard
    fault: Fault
    sight: Sight
    strength: int = 0  # the weakest that is caught
    trials: tuple[Trial, ...] = ()
    reason: str = ""  # why it was not tried

    def damage_of(self, strength: int) -> float | None:
        """Return how much worse the model with the fault is in the gate's unit; larger is worse, None is no value."""
        healthy, verdict = self.guard.healthy, next(each.verdict for each in self.trials if each.strength == strength)
        if verdict.comparison is not None:  # the healthy model need not be equal to what the gate compares with
            return verdict.comparison.degradation
        if verdict.value is None or healthy.value is None:
            return None
        return (verdict.value - healthy.value) * (1 if healthy.direction == "lower" else -1)


def steps(levels: int) -> int:
    """Return how many models bisection judges at most to find the weakest of so many levels that is caught."""
    return 1 + math.ceil(math.log2(levels))


def bisect(levels: int, judged: Callable[[int], bool]) -> int:
    """Return the weakest strength that is caught, if all stronger ones are too; 0 if the strongest is not caught."""
    if not judged(levels):
        return 0
    low, high = 0, levels
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if judged(middle) else (middle, high)
    return high


@dataclass
class Drill:
    """A drill of gates by faults."""

    evaluator: FaultyEvaluator
    judge: Judge
    guards: Sequence[Guard]
    faults: Sequence[Fault]
    seconds: Mapping[str, float]  # of the measurement at an address, without a fault
    deadline: float = math.inf  # by the monotonic clock
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: list[Fault] = field(default_factory=list)  # by the time limit

    def prepare(self) -> None:
        """Find out which faults can be planted in which model, and leave out those for which there is no time."""
        for guard in self.guards:
            for fault in self.faults:
                if (guard.model, fault.name) not in self.reasons:
                    self.reasons[guard.model, fault.name] = self._why_not(guard, fault)
        chosen, needed = [], 0.0
        for fault in self.by_kind(self.faults):
            needed += self.cost(fault)
            if needed <= self.deadline - time.monotonic() or not self.cost(fault):
                chosen.append(fault)
            else:
                needed -= self.cost(fault)
                self.left_out.append(fault)
        self.faults = chosen
        tried = [fault for fault in chosen if self.guards_of(fault)]
        if not tried and self.left_out:
            least = min(map(self.cost, self.left_out))
            raise ConfigError(f"--seconds: no time for a single fault: the quickest takes about {about(least)}")
        if not tried:
            words = "; ".join(sorted({f"{name}: {reason}" for (_, name), reason in self.reasons.items()}))
            raise ModelError(f"no fault can be planted in the models of these gates: {words}")

    @staticmethod
    def by_kind(faults: Sequence[Fault]) -> Iterator[Fault]:
        """Yield one fault of each kind, then the next of each, so that a time limit leaves all kinds in."""
        kinds: dict[str, list[Fault]] = {}
        for fault in faults:
            kinds.setdefault(fault.kind, []).append(fault)
        for together in itertools.zip_longest(*kinds.values()):
            yield from (fault for fault in together if fault is not None)

    def guards_of(self, fault: Fault) -> list[Guard]:
        """Return the gates in whose model a fault can be planted."""
        return [guard for guard in self.guards if not self.reasons[guard.model, fault.name]]

    def cost(self, fault: Fault) -> float:
        """Return about the seconds that a fault takes at most."""
        return steps(len(fault.levels)) * sum(self.seconds.get(address, 0.0) for address in self._addresses(fault))

    def _addresses(self, fault: Fault) -> set[str]:
        return {guard.healthy.fingerprint for guard in self.guards_of(fault)}

    def plan(self) -> str:
        """Return the plan in words."""
        tried = [fault for fault in self.faults if self.guards_of(fault)]
        count = sum(steps(len(fault.levels)) * len(self._addresses(fault)) for fault in tried)
        line = f"{counted(len(self.guards), 'gate')}, {counted(len(tried), 'fault')}: at most "
        line += f"{counted(count, 'measurement')}, about {about(sum(map(self.cost, tried)))}"
        if self.left_out:
            line += f"; no time for {', '.join(fault.name for fault in self.left_out)}"
        return line

    def run(self) -> list[Finding]:
        """Judge broken models, while there is time."""
        findings: list[Finding] = []
        begun, done, left = time.monotonic(), 0.0, sum(map(self.cost, self.faults))
        log = self.evaluator.measurements.log
        for fault in list(self.faults):
            now = time.monotonic()
            pace = (now - begun) / done if done else 1.0  # what was estimated leaves out loading and trials
            if now + pace * self.cost(fault) > self.deadline and self.cost(fault) and findings:
                self.left_out.append(fault)
                continue
            line = f"{fault.name}: {fault.sentence}, at most {about(pace * left)} left"
            self.evaluator.measurements.log = replace(
                log,
                progress=lambda now, line=line: log.progress(replace(now, search=line)),  # type: ignore[misc]
            )
            for guard in self.guards:
                reason = self.reasons[guard.model, fault.name]
                findings.append(self._tried(guard, fault, reason))
            done, left = done + self.cost(fault), left - self.cost(fault)
        return findings

    def judged(self, guard: Guard, fault: Fault, strength: int) -> Verdict:
        """Return a gate's verdict of its model with a fault."""
        with self.evaluator.planted(guard.bound, fault, strength):
            return self.judge.judge(guard.bound, guard.healthy.id, guard.healthy.test)[0]

    def _tried(self, guard: Guard, fault: Fault, reason: str) -> Finding:
        if reason:
            return Finding(guard, fault, "not tried", reason=reason)
        trials: list[Trial] = []

        def is_red(strength: int) -> bool:
            trials.append(Trial(strength, self.judged(guard, fault, strength)))
            return trials[-1].verdict.failed

        strength, strongest = bisect(len(fault.levels), is_red), trials[0].verdict
        sight: Sight = "never"
        if strength:
            sight = "caught"
        elif strongest.verdict == "inconclusive":
            sight = "inconclusive"
        elif strongest.value == guard.healthy.value:
            sight = "no effect"
        return Finding(guard, fault, sight, strength, tuple(trials))

    def _why_not(self, guard: Guard, fault: Fault) -> str:
        """Return why a fault cannot be planted in a gate's model; empty if it can."""
        model = self.evaluator.resolver.model(guard.bound.bound.model)
        try:
            runner = self.evaluator.measurements.runner(model)
            fault.planted(with_blocks(model, runner), runner.tokenizer, len(fault.levels))
        except LmgateError as error:
            return str(error)
        except Exception as error:  # of a user's own fault, or of a model that its code does not know
            return f"it cannot be planted: {type(error).__name__}: {error}"
        return ""


def guards_of(evaluator: FaultyEvaluator, judge: Judge, gates: Mapping[str, tuple[str, BoundGate]]) -> list[Guard]:
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
        guards.append(Guard(name, bound, verdict, addresses))
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
