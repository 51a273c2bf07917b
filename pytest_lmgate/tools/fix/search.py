"""`lmgate fix`: which parts of a candidate to keep in higher precision so that its gate passes, and the proof.

The search reads one half of the rows. It measures what each part costs, chooses the set with the fewest extra bytes
whose remaining costs are within what the gate allows (a knapsack), measures the composed model, corrects the allowance
by what came out, and goes on until no smaller set passes. The set is then judged on the other half, which the search
never read: the best of many sets on some rows looks better there than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.data.corpus import Corpus, looks_like_documents, shortened
from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.errors import ConfigError, DataError, ModelError
from pytest_lmgate.judge.result import Outcome
from pytest_lmgate.measure.binding import Bound
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.gates import Gate, LimitGate
from pytest_lmgate.stats.comparison import POWER, needed
from pytest_lmgate.stats.means import MIN_BLOCKS, ClusteredMean, cautious_upper, score_quantile
from pytest_lmgate.tools.fix.costs import SMALLEST, Steps, characters_per_token, require_parts, together
from pytest_lmgate.windows.protocols import beginning

if TYPE_CHECKING:
    from pytest_lmgate.tools.fix.gguf_hybrids import GgufHybrids
    from pytest_lmgate.tools.fix.hybrids import Hybrids, Part

LEAST_ROWS = 40
"""Rows of each half below which nothing is proven: 20 often hold none of a few damaged rows (docs/decisions.md)."""
CONFIDENCE = 0.95  # of a gate that has none
_ROUNDS, _DROPS = 10, 6  # composed models that are measured at most
_UNITS = 10_000  # of the knapsack: a set is the cheapest for an allowance that is smaller by parts / units at most
_MARGIN = 0.97  # of the allowance that the last measurement suggests


@dataclass(frozen=True)
class Limit:
    """What a gate allows, in nats per token: KL, or the logarithm of a perplexity or of a ratio of perplexities."""

    metric: str  # ``kl``, ``ppl`` or ``ppl ratio``
    size: float | None  # in nats; None if it depends on the reference's perplexity, as `tolerance` does
    confidence: float  # one-sided level of each bound
    protocol: WindowProtocol
    by_value: bool = False  # whether the gate judges the value alone
    tolerance: float = 0.0  # in the perplexity's own unit

    @classmethod
    def of(cls, gate: Gate, candidate: Any, dataset: Any, reference: Any) -> Limit:
        """Return a gate's limit; refuse a gate that is not on the KL or the perplexity of these models."""
        evaluation, how, against = gate.evaluation, gate.evaluation.how, getattr(gate, "against", None)
        if (evaluation.model, evaluation.dataset) != (candidate, dataset) or (evaluation.reference or against) not in (
            None,
            reference,
        ):
            raise ConfigError(f"{gate.label}: expected a gate on {candidate!r}, {dataset!r} and {reference!r}")
        if isinstance(gate, LimitGate):
            level, by_value = gate.confidence or CONFIDENCE, gate.confidence is None
            if gate.marker == "kl_max" and isinstance(how, DivergenceRequest):
                if (how.statistic, how.estimator) == ("mean", "exact"):
                    return cls("kl", gate.limit, level, how.protocol, by_value)
            elif gate.marker == "ppl_max" and _is_by_token(how):
                return cls("ppl", math.log(gate.limit), level, how, by_value)
        elif evaluation.metric == "ppl" and not gate.uses_baseline and _is_by_token(how):
            allowed = gate.allowed.size
            return cls("ppl ratio", math.log1p(allowed) if gate.allowed.relative else None, gate.confidence, how,
                       tolerance=allowed)  # fmt: skip
        raise ConfigError(
            f"{gate.label}: expected a kl_max of the exact mean, a ppl_max, or a no_regression of ppl against the "
            "reference, per token"
        )

    def values(self, statistics: DivergenceStatistics) -> Floats:
        """Return the judged quantity of each target, in nats."""
        return {"kl": statistics.kl, "ppl": statistics.nll_q, "ppl ratio": statistics.nll_q - statistics.nll_p}[
            self.metric
        ]

    def number(self, nats: float) -> float:
        """Return a value as people know it: the KL in nats, a perplexity, or its change in percent."""
        if self.metric == "kl":
            return nats
        value = math.exp(min(nats, 700.0))
        return value if self.metric == "ppl" else 100 * (value - 1)

    def shown(self, nats: float, beside: float = math.nan) -> str:
        """Return a value in words, with enough digits to differ from the one `beside` it."""
        number, digits = self.number(nats), 5 if self.metric == "ppl" else 3
        text, _ = distinct(number, self.number(beside), digits)
        if self.metric == "kl":
            return f"KL {text}"
        return f"perplexity {text}" if self.metric == "ppl" else f"perplexity {'+' * (number >= 0)}{text}%"

    def judge(self, statistics: DivergenceStatistics, floor: DivergenceStatistics | None = None) -> Trial:
        """Judge a model by the gate's rule; to pass, its bound must also hold if few rows lose much.

        The `floor` is the model with all groups kept, by which `Trial.used` counts.
        """
        values, limit = self.values(statistics), self.size
        if limit is None:
            limit = math.log1p(self.tolerance / math.exp(statistics.nll_p.mean()))
            # The limit is as uncertain as the reference's perplexity (delta method): -expm1(-limit) is its slope.
            values = values - math.expm1(-limit) * (statistics.nll_p - statistics.nll_p.mean())
        noise = statistics.mean(values)
        bounds = noise.bounds(self.confidence)
        if bounds is None:
            return Trial("inconclusive", noise, limit, math.inf, math.inf)
        upper = max(bounds.upper, cautious_upper(*statistics.of_targets(values), noise, self.confidence))
        outcome: Outcome = "pass" if upper <= limit else "fail" if bounds.lower > limit else "inconclusive"
        base = 0.0 if floor is None else float(self.values(floor).mean())
        used, wanted = (upper - base) / max(limit - base, math.ulp(0.0)), None
        if outcome == "inconclusive":
            more = 1 + score_quantile(POWER, noise.df) / score_quantile(self.confidence, noise.df)
            side = upper if noise.mean <= limit else bounds.lower
            wanted = needed(noise.n, more * abs(side - noise.mean), abs(limit - noise.mean))
        return Trial(outcome, noise, limit, upper, used, wanted)


@dataclass(frozen=True)
class Trial:
    """A model on some rows."""

    outcome: Outcome  # by the bounds
    value: ClusteredMean  # in nats, with its noise; `limit` and `upper`, its upper bound, are too
    limit: float
    upper: float
    used: float  # how much of what the gate allows above the floor the bound takes: at most 1 passes
    needed: int | None = None  # if inconclusive, targets that would decide with a power of 80%


@dataclass(frozen=True)
class PartGroup:
    """A part of the candidate."""

    part: Part
    cost: float  # what the candidate's part adds to the mean ``KL(reference || model to keep)``, nats per token
    extra: int  # bytes that it takes more as in the model to keep


@dataclass(frozen=True)
class Tried:
    """A composed model on the search's half: the candidate with some groups kept as in the other model."""

    kept: tuple[int, ...]
    extra: int
    kl: float
    judged: Trial


@dataclass(frozen=True)
class Fix:
    """The result of a search, with its proof."""

    limit: Limit
    size: int  # bytes of the candidate
    budget: float | None  # extra bytes that are allowed, as a share of the candidate's; None for any
    groups: tuple[PartGroup, ...]  # all that differ between the two models
    tried: tuple[Tried, ...]  # the candidate, then each set that was measured, in order
    chosen: Tried | None  # the set with the fewest extra bytes that passes on the search's half, if not the candidate
    proof: Trial | None  # the chosen set on the other half; None if it is beyond the budget
    rows: tuple[int, int]  # rows that the search read, and rows of the proof's half
    linear: tuple[str, ...] = ()  # paths of the modules to keep, the reference's, and of those that both have alike
    second: tuple[str, ...] = ()  # paths of the same modules that are rounded by the second config instead
    floor: Trial | None = None  # the candidate with all groups kept, on the search's half, if not as in the reference
    tensor_types: tuple[str, ...] = ()  # llama-quantize's options for the tensors to keep, if the models are GGUF files
    unit: str = "row"  # what is counted: ``row``, or ``window`` of a text without rows
    signature: str = ""  # how it is measured

    @property
    def is_within_budget(self) -> bool:
        return self.chosen is not None and (self.budget is None or self.chosen.extra <= self.budget * self.size)


def fix(
    evaluator: Evaluator,
    bound: Bound,
    *,
    limit: Limit,
    budget: float | None,
    tokens: int,
    keep: Any = None,
    bits: float | None = None,
    keep_bits: float | None = None,
    seed: int = 0,
    write_gguf: Path | None = None,
) -> Fix:
    """Find the parts of a model to keep in higher precision so that a gate passes, and prove it.

    Args:
        evaluator: Measures; what it has measured before comes from the cache.
        bound: The model that fails, its original and the gate's dataset and protocol, by `bind_pair`.
        limit: What the gate allows.
        budget: The most extra bytes, as a share of the candidate's; None for any.
        tokens: Tokens that the search reads at most; the proof reads all rows of its half.
        keep: The model of higher precision that has the parts to keep; None for the reference.
        bits: Bits of each number in the candidate's matrices, if it stores them rounded but wide.
        keep_bits: Those of the model to keep.
        seed: Of the split of the rows.
        write_gguf: Of two GGUF files: where to write the candidate with the chosen tensors.
    """
    find = evaluator.resolver
    q, p, text = find.model(bound.model), find.model(bound.reference), find.corpus(bound.data)
    better = [] if keep is None else [find.model(keep)]
    engine = _engine(q, p, *better)
    if engine == "transformers" and write_gguf is not None:
        raise ConfigError(f"--write-gguf: expected two GGUF files, but {q.name!r} is a checkpoint: use --write")
    if engine != "transformers" and bits is not None:
        raise ConfigError(f"--bits: {q.name!r} is a GGUF, which has the bytes of its format: remove the option")
    runners = together(evaluator.measurements, p, q, *better)
    tokenizer = runners[0].tokenizer
    text = beginning(text, tokenizer)
    whole_search, proof, unit = _halves(text, limit, seed)
    comparison = partial(Divergences, "compare", q, asked=bound.asked, reference=p)

    def count(half: Corpus) -> int:
        if unit == "row" or not half.documents:
            return len(half.documents)
        return len(comparison(data=half).planned(tokenizer)[1].targets)

    _require_enough(text.name, unit, min(count(whole_search), count(proof)))
    search = shortened(whole_search, int(tokens * characters_per_token(whole_search, tokenizer)))
    rows = count(search), count(proof)
    hybrids, reference = _hybrids(engine, p, q, better, runners)
    k = better[0] if better else p
    require_parts(hybrids, q, k)

    most = len(hybrids.parts) + _ROUNDS + _DROPS + 5  # with the models themselves, all groups and the proof
    with Steps(evaluator, f"{q.name} against {p.name}", most, is_most=True) as steps:
        measured = _Measured(steps, bound.asked, hybrids, reference, search)
        whole = measured(q)
        floor = replace(whole, kl=np.zeros_like(whole.kl), nll_q=whole.nll_p) if keep is None else measured(k)
        first = Tried((), 0, float(whole.kl.mean()), limit.judge(whole, floor))
        if not math.isfinite(first.judged.upper):
            raise DataError(
                f"dataset {text.name!r}: --tokens {tokens} reads too few {unit}s for a bound: expected more tokens"
            )
        signature = str(comparison(data=search).signature)
        found = Fix(limit, 0, budget, (), (first,), None, None, rows, unit=unit, signature=signature)
        if first.judged.outcome != "fail":  # the gate reads all rows
            judged = limit.judge(measured(q, text))
            if judged.value.mean <= judged.limit if limit.by_value else judged.outcome == "pass":
                size = hybrids.size().bytes[1] if bits is None else _extra_bytes(hybrids, q, k, bits, keep_bits)[1]
                as_it_is = replace(first, judged=judged)
                return replace(found, size=size, budget=None, tried=(as_it_is,), rows=(count(text), 0))
            if first.judged.outcome == "pass":
                first = replace(first, judged=replace(judged, used=first.judged.used))
        best = limit.judge(floor)
        if best.outcome != "pass":
            raise _beyond_help(best, limit, f"{rows[0]} searched {unit}s", k.name, q.name)
        extra, size = _extra_bytes(hybrids, q, k, bits, keep_bits)
        found = replace(found, size=size, tried=(first,), floor=None if keep is None else best)
        found = _searched(found, measured, floor, np.array(extra))
        if found.chosen is None or not found.is_within_budget:
            return found
        kept = [hybrids.parts[index] for index in found.chosen.kept]
        found = replace(found, proof=limit.judge(measured(hybrids.model(*kept, healed=True), proof)))
        return _with_names(found, hybrids, kept, write_gguf)


def _hybrids(
    engine: str, reference: Model, candidate: Model, better: Sequence[Model], runners: Sequence[Runner]
) -> tuple[Hybrids | GgufHybrids, Model]:
    """Return hybrids of the candidate and the better model, or the reference without one; and what they differ from."""
    from pytest_lmgate.tools.fix.gguf_hybrids import GgufHybrids
    from pytest_lmgate.tools.fix.hybrids import Hybrids

    keep, pair, original = reference, (runners[0], runners[1]), None
    if better:
        keep, pair, original = better[0], (runners[2], runners[1]), (reference, runners[0])
    if engine != "transformers":
        return GgufHybrids(keep, candidate, pair), reference
    hybrids = Hybrids(keep, candidate, pair, by="group", original=original)
    return hybrids, hybrids.reference


@dataclass(frozen=True)
class _Measured:
    """Measures models against the reference, on the search's half if nothing else is said."""

    steps: Steps
    asked: Any
    hybrids: Hybrids | GgufHybrids
    reference: Model
    search: Corpus

    def __call__(self, model: Model, corpus: Corpus | None = None) -> DivergenceStatistics:
        data = self.search if corpus is None else corpus
        statistics = self.steps.measure(Divergences("compare", model, data, self.asked, self.reference))
        assert statistics is not None  # there is no deadline
        return statistics


def _searched(found: Fix, measured: _Measured, floor: DivergenceStatistics, extra: Ints) -> Fix:
    """Measure each part, then sets of them, after the candidate as it is; all parts kept have the `floor`."""
    hybrids, limit, (first,) = measured.hybrids, found.limit, found.tried
    costs = [float((measured(hybrids.model(part, healed=False)).kl - floor.kl).mean()) for part in hybrids.parts]
    costs = [cost if cost > SMALLEST else 0.0 for cost in costs]

    def attempt(kept: Sequence[int]) -> Tried:
        parts = [hybrids.parts[index] for index in kept]
        made = floor if len(kept) == len(costs) else measured(hybrids.model(*parts, healed=True))
        return Tried(tuple(kept), int(extra[list(kept)].sum()), float(made.kl.mean()), limit.judge(made, floor))

    tried = search_sets(np.array(costs), extra, first, attempt)
    passing = [each for each in tried if each.judged.outcome == "pass"]
    chosen = min(passing, key=lambda each: (each.extra, each.kl))
    groups = tuple(map(PartGroup, hybrids.parts, costs, extra.tolist()))
    return replace(found, groups=groups, tried=tuple(tried), chosen=chosen)


def _with_names(found: Fix, hybrids: Hybrids | GgufHybrids, kept: list[Part], write_gguf: Path | None) -> Fix:
    """Add what quantizers call the parts to keep; write the GGUF that has them, if asked."""
    from pytest_lmgate.tools.fix.hybrids import Hybrids

    if isinstance(hybrids, Hybrids):
        paths: dict[bool, list[str]] = {True: [], False: []}
        for part in (*kept, *hybrids.unchanged):
            paths[hybrids.is_original(part)] += hybrids.linear(part)
        return replace(found, linear=tuple(paths[True]), second=tuple(paths[False]))
    if write_gguf is not None:
        hybrids.write(kept, write_gguf)
    return replace(found, tensor_types=tuple(hybrids.tensor_types(kept)))


def _halves(text: Corpus, limit: Limit, seed: int) -> tuple[Corpus, Corpus, str]:
    """Return the half of a text to search, that to prove, and what is counted: rows, or windows if it has none."""
    search, proof = split(text, by_document=limit.protocol.rules.by_document, seed=seed)
    without_rows = any(half.is_one_text or len(half.rows) < 2 for half in (search, proof))
    return search, proof, "window" if without_rows else "row"


def _require_enough(dataset: str, unit: str, fewest: int) -> None:
    least, words = (LEAST_ROWS, "rows") if unit == "row" else (MIN_BLOCKS, "windows of a text without rows")
    if fewest < least:
        raise DataError(
            f"dataset {dataset!r}: expected at least {2 * least} {words} to search on one half and prove on the "
            f"other, got {fewest} in one half"
        )


def _beyond_help(best: Trial, limit: Limit, searched: str, better: str, candidate: str) -> ModelError:
    """Say that even with all groups kept the gate does not pass."""
    value, upper = (limit.shown(nats, best.limit) for nats in (best.value.mean, best.upper))
    return ModelError(
        f"even {better!r} does not pass: {value}, at most {upper} on {searched}, and the limit is "
        f"{limit.shown(best.limit, best.upper)}; no groups kept as in it can help {candidate!r}: expected a model of "
        "higher precision, more rows or a higher limit"
    )


def _engine(candidate: Model, *others: Model) -> str:
    """Return the engine that runs all models; refuse those that cannot be mixed."""
    engine, *engines = (model.runtime.get("backend", "transformers") for model in (candidate, *others))
    if set(engines) == {engine} and engine in ("transformers", "llama.cpp"):
        return engine
    run = " and ".join(f"{model.name!r} by {by}" for model, by in zip(others, engines, strict=True) if by != engine)
    raise ModelError(
        f"lmgate fix mixes checkpoints that transformers runs, or GGUF files: {candidate.name!r} is run by {engine}"
        f"{run and f' and {run}'}; for a GGUF, give the F16 or BF16 GGUF of the same model as the reference "
        "(convert_hf_to_gguf.py of llama.cpp writes it)"
    )


def search_sets(costs: Floats, extra: Ints, first: Tried, attempt: Callable[[Sequence[int]], Tried]) -> list[Tried]:
    """Measure sets of groups to keep, after the candidate as it is; the last resort is all groups, which pass.

    A group costs the KL of it alone, and takes some bytes more, shapes ``[groups]``.
    """
    tried = {first.kept: first}
    costs = np.maximum(costs, 0)
    # An allowance whose set passed, and one whose set did not.
    passed, failed = 0.0, float(costs.sum())
    used, measured = first.judged.used, 0
    allowance = _MARGIN * failed / used if used > 0 else -1.0
    for _ in range(4 * _ROUNDS):
        if not passed < allowance < failed:
            allowance = (passed + failed) / 2
        kept = cheapest(costs, extra, allowance)
        if (is_new := kept not in tried) and measured == _ROUNDS:
            break
        if is_new:
            tried[kept], measured = attempt(kept), measured + 1
        left = float(costs.sum() - costs[list(kept)].sum())
        if tried[kept].judged.outcome == "pass":
            passed = allowance
        else:
            failed = min(allowance, left)
        if failed <= passed * 1.001 or failed == 0:
            break
        used = tried[kept].judged.used
        allowance = _MARGIN * left / used if is_new and used > 0 else -1.0
    if not any(attempt.judged.outcome == "pass" for attempt in tried.values()):
        everything = tuple(range(len(costs)))
        tried[everything] = attempt(everything)
    # Costs of single groups do not tell how they act together: try to leave out the largest of those that cost little.
    best = min(
        (attempt for attempt in tried.values() if attempt.judged.outcome == "pass"), key=lambda attempt: attempt.extra
    )
    for _ in range(_DROPS):
        options = [index for index in best.kept if extra[index] > 0 and _without(best, index) not in tried]
        if not options:
            break
        kept = _without(best, min(options, key=lambda index: costs[index] / extra[index]))
        tried[kept] = attempt(kept)
        if tried[kept].judged.outcome == "pass":
            best = tried[kept]
    return list(tried.values())


def _without(one: Tried, index: int) -> tuple[int, ...]:
    return tuple(other for other in one.kept if other != index)


def cheapest(costs: Floats, extra: Ints, allowance: float) -> tuple[int, ...]:
    """Return the groups to keep with the fewest extra bytes, so that the costs of the others are within an allowance.

    A knapsack by dynamic programming, with costs rounded up to 10,000ths of the allowance. Of equally many bytes the
    smaller costs are left. Costs are not negative; a group that takes no bytes is kept if it costs anything.
    """
    costly = costs > 0
    optional = np.flatnonzero(costly & (extra > 0))
    units = np.ceil(costs[optional] * (_UNITS / allowance)).astype(np.int64) if allowance > 0 else None
    kept = set(np.flatnonzero(costly).tolist())
    if units is None:
        return tuple(sorted(kept))
    saved, takes = np.zeros(_UNITS + 1, dtype=np.int64), np.zeros((len(optional), _UNITS + 1), dtype=bool)
    for number, (index, weight) in enumerate(zip(optional, units, strict=True)):
        if weight <= _UNITS:
            other = np.full_like(saved, -1)
            other[weight:] = saved[: _UNITS + 1 - weight] + extra[index]
            takes[number] = other > saved
            saved = np.maximum(saved, other)
    place = int(np.argmax(saved == saved[-1]))
    for number in range(len(optional) - 1, -1, -1):
        if takes[number, place]:
            kept.discard(int(optional[number]))
            place -= int(units[number])
    return tuple(sorted(kept))


def split(corpus: Corpus, *, by_document: bool, seed: int) -> tuple[Corpus, Corpus]:
    """Return two halves of a dataset that share no row; equal rows are in one half.

    Rows that are documents are drawn at random. Lines of a running text depend on their neighbours, so it is cut in the
    middle: between two lines, or else at a space; a text without spaces, as a Chinese one, anywhere.
    """
    rows = corpus.rows
    if len(rows) > 1 and (by_document or corpus.says_join or looks_like_documents(corpus)):
        distinct = list(dict.fromkeys(rows))
        order = np.random.default_rng(seed).permutation(len(distinct))
        lengths = np.cumsum([len(distinct[index]) for index in order])
        ours = {distinct[index] for index, end in zip(order, lengths, strict=True) if 2 * end <= lengths[-1]}
        halves = [tuple(row for row in rows if (row in ours) is is_ours) for is_ours in (True, False)]
    elif len(rows) > 1:
        lengths = np.cumsum([len(row) for row in rows])
        middle = max(1, int(np.searchsorted(2 * lengths, lengths[-1])))
        halves = [rows[:middle], rows[middle:]]
    else:
        half = len(rows[0]) // 2
        middle = max(rows[0].rfind(" ", 0, half), 0) or half
        halves = [(rows[0][:middle],), (rows[0][middle:],)]
    return replace(corpus, rows=halves[0], tags={}), replace(corpus, rows=halves[1], tags={})


def _extra_bytes(
    hybrids: Hybrids | GgufHybrids, candidate: Model, keep: Model, bits: float | None, keep_bits: float | None
) -> tuple[list[int], int]:
    """Return for each part the bytes that the kept one takes more than the candidate's, and the candidate's bytes."""
    sizes, whole = [hybrids.size(part) for part in hybrids.parts], hybrids.size()
    if bits is None:
        extra = [size.bytes[0] - size.bytes[1] for size in sizes]
        if max(extra) <= 0:
            raise ModelError(
                f"model {candidate.name!r}: its weights take as many bytes as those of {keep.name!r}, because it "
                "stores rounded numbers in a wide type: expected --bits, the bits of each number in the real format"
            )
        return extra, whole.bytes[1]
    saved = [max(0, round(stored - count * bits / 8)) for count, stored in (size.matrices for size in sizes)]
    size = whole.bytes[0] - sum(saved)
    return saved if keep_bits is None else [round(e.matrices[0] * (keep_bits - bits) / 8) for e in sizes], size


def _is_by_token(how: Any) -> TypeGuard[WindowProtocol]:
    return isinstance(how, WindowProtocol) and how.unit == "token" and (how.average or how.rules.averages[0]) == "token"
