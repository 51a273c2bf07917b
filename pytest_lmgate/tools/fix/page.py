"""What `lmgate fix` found, in words, tables and a picture: the terminal and the page take them from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_lmgate.report.explanation import unseen
from pytest_lmgate.report.page import Axis, Mark, rendered
from pytest_lmgate.report.text import bar, counted, table
from pytest_lmgate.tools.fix.search import Fix, Trial, Tried

_WIDE = 10.0  # values whose quotient is larger are drawn on a logarithmic axis


@dataclass(frozen=True)
class FixReport:
    """The words, tables and picture of a result."""

    found: Fix
    title: str  # the models, the dataset and what to reach
    kept_as: str  # the model whose groups are kept
    recipe: str = ""  # as YAML; empty without a proof

    @property
    def searched(self) -> str:
        found, judged = self.found, self.found.tried[-1].judged
        search, proof = (counted(count, found.unit) for count in found.rows)
        tokens = f"{judged.value.n:,} tokens"
        limits = f"the limit is {found.limit.shown(judged.limit, judged.upper)}"
        if found.chosen is None:
            return f"read {search} ({tokens}); {limits}"
        floor = "" if found.floor is None else f"; all groups as in {self.kept_as}: {self._words(found.floor)}"
        return f"searched {search} ({tokens}), kept {proof} for the proof; {limits}{floor}"

    header = ("extra bytes", "groups", "KL", "at most", "")

    @property
    def sets(self) -> list[Tried]:
        """Each set that was measured, in the order of the table."""
        return sorted(self.found.tried, key=lambda each: (each.extra, -each.kl))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                self._share(each.extra, 1),
                str(len(each.kept)),
                f"{each.kl:.3g}",
                self.found.limit.shown(each.judged.upper, each.judged.limit),
                "passes" if each.judged.outcome == "pass" else "",
            )
            for each in self.sets
        ]

    @property
    def answer(self) -> str:
        found, chosen = self.found, self.found.chosen
        if chosen is None:
            return f"It passes already: {self._words(found.tried[0].judged)}. There is nothing to fix."
        extra = f"{self._share(chosen.extra, 1)} ({chosen.extra:,} bytes)"
        if not found.is_within_budget:
            return f"No set within +{100 * (found.budget or 0):.3g}% passes. The smallest that does costs {extra}."
        return f"Keep {counted(len(chosen.kept), 'group')} as in {self.kept_as}, {extra}:"

    group_header = ("group", "bytes", "KL alone")

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The groups to keep."""
        if self.found.chosen is None or not self.found.is_within_budget:
            return []
        kept = [self.found.groups[index] for index in self.found.chosen.kept]
        return [(each.part.name, self._share(each.extra, 2), f"{each.cost:.3g}") for each in kept]

    @property
    def proof(self) -> list[str]:
        """The proof's sentences."""
        found, proof = self.found, self.found.proof
        if proof is None:
            return []
        # A tolerance that is no percentage depends on the reference's value.
        limit, searched = (found.limit.shown(each.limit, proof.upper) for each in (proof, found.tried[-1].judged))
        there = "" if limit == searched else f"; the limit is {limit} there"
        verdict = (
            f"{proof.outcome.upper()} on {counted(found.rows[1], f'other {found.unit}')}: {self._words(proof)}{there}."
        )
        if proof.outcome == "pass" and found.unit == "row":
            return [verdict, f"{unseen(3 / found.rows[1]).capitalize()}."]
        if proof.outcome != "inconclusive" or not math.isfinite(proof.upper):
            return [verdict]
        if proof.needed is None:
            return [verdict, f"No number of {found.unit}s like these would settle it: the value is at the limit."]
        needed = math.ceil(found.rows[1] * proof.needed / proof.value.n)
        return [
            verdict,
            f"About {needed:,} {found.unit}s for the proof would settle it, twice as many in all, or a larger margin.",
        ]

    def lines(self) -> list[str]:
        """Return what the terminal shows above the recipe."""
        lines = [self.title, self.searched, self.found.signature, ""]
        if self.found.chosen is None:
            return [*lines, self.answer]
        largest = max(each.kl for each in self.found.tried)
        bars = [bar(each.kl, largest) + (" <" if each is self.found.chosen else "") for each in self.sets]
        rows = [(*row, drawn) for row, drawn in zip(self.rows, bars, strict=True)]
        lines += [*table((*self.header, " "), rows, names=(), left=("", " ")), "", self.answer]
        if self.groups:
            lines += table(self.group_header, self.groups, names=("group",))
        return [*lines, "", *self.proof] if self.proof else lines

    def html(self) -> str:
        """Return the page."""
        found = self.found
        outcome = "pass" if found.chosen is None else found.proof.outcome if found.proof is not None else "fail"
        state = {"pass": "good", "inconclusive": "open"}.get(outcome, "bad")
        return rendered("fix.html", report=self, state=state, picture=self.picture())

    def picture(self) -> dict[str, Any] | None:
        """Return extra bytes against the gate's value as paths, 100 units large; None if they are too far apart."""
        found, limit = self.found, self.found.tried[-1].judged.limit
        judged = [each.judged for each in found.tried] + ([found.proof] if found.proof else [])
        shares = [0.0, *(100 * each.extra / found.size for each in found.tried)]
        width = (max(shares) - min(shares)) or 1.0
        x = Axis.between(min(shares) - 0.06 * width, min(shares) + 1.06 * width, form="+", unit="%", most=5)
        nats = [limit, *(number for each in judged for number in (each.value.mean, each.upper))]
        y, is_logarithmic = self._axis([found.limit.number(each) for each in nats if math.isfinite(each)])
        if x is None or y is None:
            return None

        def across(each: Tried) -> float:
            return x.place(100 * each.extra / found.size)

        def up(nats: float) -> float:
            number = found.limit.number(nats)
            if is_logarithmic:
                number = math.log10(number) if number > 0 else -math.inf
            return round(100 - y.place(number), 1)

        def dot(each: Trial, at: float) -> tuple[str, str]:
            return f"M{at:g} {up(each.value.mean):g}h0", f"M{at:g} {up(each.upper):g}V{up(each.value.mean):g}"

        frontier, best = "", math.inf
        for each in sorted(found.tried, key=lambda each: (each.extra, each.judged.value.mean)):
            if each.judged.value.mean < best:
                best = each.judged.value.mean
                frontier += f"H{across(each):g}V{up(best):g}" if frontier else f"M{across(each):g} {up(best):g}"
        budget = math.inf if found.budget is None else 100 * found.budget
        metric = {"kl": "KL", "ppl": "perplexity", "ppl ratio": "change of the perplexity"}[found.limit.metric]
        return {
            "title": f"{metric} by extra bytes" + ", on a logarithmic axis" * is_logarithmic,
            "x": x,
            "y": y,
            "sets": [
                ("chosen" if each is found.chosen else "tried", *dot(each.judged, across(each)), " ".join(row))
                for each, row in zip(self.sets, self.rows, strict=True)
            ],
            "frontier": frontier,
            "limit": up(limit),
            "budget": x.place(budget) if budget <= x.high else None,
            "proof": dot(found.proof, across(found.chosen)) if found.proof and found.chosen else None,
        }

    def _axis(self, numbers: Sequence[float]) -> tuple[Axis | None, bool]:
        """Return the upward axis, and whether it is logarithmic."""
        metric, limit = self.found.limit.metric, self.found.limit.number(self.found.tried[-1].judged.limit)
        # A set without any KL, or with rounding errors alone, is at the edge.
        low, high = min(number for number in numbers if number >= limit / 10_000), max(numbers)
        if metric == "ppl ratio":
            return Axis.over(numbers, most=5, form="+", unit="%"), False
        if not 0 < low < high / _WIDE:
            return Axis.over([*numbers, *([0.0] if metric == "kl" else [])], most=5), False
        begin, end = math.log10(low) - 0.1, math.log10(high) + 0.1
        axis, digits = Axis(begin, end, ()), (1, 2, 5) if end - begin < 2.5 else (1,)
        powers = range(math.floor(begin), math.ceil(end))
        ticks = [(math.log10(digit) + power, f"{digit * 10.0**power:g}") for power in powers for digit in digits]
        marks = [Mark(axis.place(at), label) for at, label in ticks if begin <= at <= end]
        return replace(axis, ticks=marks[:: 1 + len(marks) // 9]), True

    def _words(self, judged: Trial) -> str:
        limit = self.found.limit
        value = limit.shown(judged.value.mean, judged.limit)
        if not math.isfinite(judged.upper):
            return f"{value}, with too few {self.found.unit}s for a bound"
        return f"{value}, at most {limit.shown(judged.upper, judged.limit)} at {100 * limit.confidence:g}%"

    def _share(self, extra: int, decimals: int) -> str:
        return f"{100 * extra / self.found.size:+.{decimals}f}%"
