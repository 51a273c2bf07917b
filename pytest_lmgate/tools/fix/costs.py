"""The cost of each layer of a candidate: hybrids of it and its reference, compared with the reference.

Put into the reference, a part of the candidate costs ``KL(reference || hybrid)``. The other way round, a part of the
reference put into the candidate takes away ``KL(reference || candidate) - KL(reference || hybrid)``. Costs do not add
up to the candidate's own, since layers read what others write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_lmgate.data.corpus import Corpus, shortened
from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.measure.binding import Bound
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.measure.loop import about
from pytest_lmgate.metrics.divergence import Divergence, DivergenceStatistics, divergence
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.stats.means import ClusteredMean
from pytest_lmgate.windows.protocols import beginning, tokens_needed
from pytest_lmgate.windows.tokens import TokenizerFacts

if TYPE_CHECKING:
    from pytest_lmgate.tools.fix.gguf_hybrids import GgufHybrids
    from pytest_lmgate.tools.fix.hybrids import By, Hybrids

_LEVEL = 0.05  # of naming any layer of an undamaged model by its noise, shared by all (Bonferroni)
SMALLEST = 1e-7  # nats: what rounding alone makes of float32 models
_OUTLIER, _TWICE = 6.5, math.log(2)
_PROBE = 1000  # tokens from which the speed is known
_LEAST = 200  # tokens below which a text says nothing
_SAMPLE = 100_000  # characters from which the length of a token is known


@dataclass(frozen=True)
class PartCost:
    """The cost of one part."""

    part: str  # name of a block or group, or `hybrids.OUTSIDE`
    cost: ClusteredMean  # Mean ``KL(reference || reference with the candidate's part)``, nats per token
    # Mean fall of ``KL(reference || candidate)`` by the reference's part, nats per token; None if time was up
    relief: ClusteredMean | None
    ratio: float  # perplexity of the reference with the candidate's part, over the reference's
    stands_out: bool = False  # whether it stands out from the other parts


@dataclass(frozen=True)
class Why:
    """The costs of a candidate's parts, those outside of the blocks last, and of the whole candidate."""

    whole: Divergence
    parts: tuple[PartCost, ...]  # without those for which there was no time
    seconds: float
    missing: int = 0  # measurements for which there was no time
    needed: float = 0.0  # about the seconds that all would take


@dataclass
class Steps:
    """The measurements of a search: how many there are, how far it is, and whether there is time for another."""

    evaluator: Evaluator
    words: str  # what is searched
    of: int
    is_most: bool = False  # whether `of` is the most that there can be
    deadline: float = math.inf  # by the monotonic clock
    done: int = 0
    made: int = 0  # those of `done` that did not come from the cache, in so many `seconds`
    seconds: float = 0.0

    @property
    def pace(self) -> float:
        """Seconds of a measurement, on average."""
        return self.seconds / self.made if self.made else 0.0

    @property
    def line(self) -> str:
        left = f", about {about(self.pace * (self.of - self.done))} left" if self.made else ""
        return f"{self.words}: {self.done} of {'at most ' * self.is_most}{self.of} measurements{left}"

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say what is kept, if the search is interrupted."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            measurements = self.evaluator.measurements
            kept = "nothing is kept" if measurements.uncacheable_reasons else "these are kept"
            measurements.log.note(
                f"stopped after {self.done} measurements; {kept}, and the same command goes on from there"
            )

    def measure(self, measurement: Divergences) -> DivergenceStatistics | None:
        """Make a measurement, or take it from the cache; None if there is no time for it.

        Progress speaks of the whole search.
        """
        begun, measurements = time.monotonic(), self.evaluator.measurements
        if begun + self.pace > self.deadline:
            return None
        log = measurements.log
        measurements.log = replace(log, progress=lambda now: log.progress(replace(now, search=self.line)))
        try:
            made = measurements.get_or_measure(measurement)
        finally:
            measurements.log = log
        self.done += 1
        if not made.cached:
            self.made, self.seconds = self.made + 1, self.seconds + time.monotonic() - begun
        statistics: DivergenceStatistics = made.statistics
        return statistics


def bind_pair(evaluator: Evaluator, names: Sequence[Any], protocol: WindowProtocol) -> Bound:
    """Bind the comparison of a candidate with its reference on a dataset, in this order."""
    candidate, reference, dataset = names
    return evaluator.bind(EvaluationSpec("compare", candidate, dataset, DivergenceRequest(reference, protocol)))


def why(
    evaluator: Evaluator,
    bound: Bound,
    *,
    tokens: int,
    seconds: float,
    by: By = "block",
) -> Why:
    """Measure the hybrids of a model and its original, which are `bound` by `bind_pair`.

    Reads at most `tokens` of the dataset, and fewer if it would take longer than `seconds`. If it still does, the last
    measurements are left out.
    """
    from pytest_lmgate.tools.fix.hybrids import Hybrids

    started, find = time.monotonic(), evaluator.resolver
    if bound.model == bound.reference:
        raise ConfigError(
            f"--against: expected the original of {bound.what.model_name!r}, but both have the same weights"
        )
    q, p, text = find.model(bound.model), find.model(bound.reference), find.corpus(bound.data)
    runners = together(evaluator.measurements, p, q)
    text = beginning(text, runners[0].tokenizer)
    hybrids = Hybrids(p, q, runners, by=by)
    require_parts(hybrids, q, p)

    def compared(model: Model, corpus: Corpus) -> Divergences:
        return Divergences("compare", model, corpus, bound.asked, hybrids.reference)

    tokenizer = runners[0].tokenizer
    characters = characters_per_token(text, tokenizer)
    least = max(_LEAST, tokens_needed(compared(q, text).windowing, tokenizer))
    with Steps(
        evaluator, f"{q.name} against {p.name}", 2 * len(hybrids.parts) + 1, deadline=started + seconds
    ) as steps:

        def cut(tokens: float) -> Corpus:
            return shortened(text, math.ceil(tokens * characters))

        evaluator.measurements.again(compared(q, cut(least)))  # which also tries the models out
        begun, probe = time.monotonic(), compared(q, cut(max(least, min(tokens, _PROBE))))
        read = len(evaluator.measurements.again(probe).kl)
        pace = steps.of * (time.monotonic() - begun) / read
        affordable = (steps.deadline - time.monotonic()) / pace
        text = cut(tokens if affordable >= tokens else max(least, _round(affordable)))
        whole = compared(q, text)
        statistics = evaluator.measurements.get_or_measure(whole).statistics
        steps.done += 1
        damaged, healed = (
            [steps.measure(compared(hybrids.model(part, healed=is_healed), text)) for part in hybrids.parts]
            for is_healed in (False, True)
        )
        costs = [
            PartCost(
                part.name,
                put_in.mean(put_in.kl),
                None if put_back is None else statistics.mean(statistics.kl - put_back.kl),
                math.exp(put_in.mean(put_in.nll_q - put_in.nll_p).mean),
            )
            for part, put_in, put_back in zip(hybrids.parts, damaged, healed, strict=True)
            if put_in is not None
        ]
        bounds = [cost.cost.bounds(1 - _LEVEL / len(hybrids.parts)) for cost in costs]
        lower = [None if bound is None else bound.lower for bound in bounds]
        named = standing_out([cost.cost.mean for cost in costs], lower, smallest=SMALLEST)
        parts = tuple(replace(cost, stands_out=index in named) for index, cost in enumerate(costs))
        figures = divergence(statistics, signature=whole.signature).placed(
            model=q.name, reference=p.name, dataset=text.name
        )
        missing, spent = steps.of - steps.done, time.monotonic() - started
        return Why(figures, parts, spent, missing, spent + missing * steps.pace)


def _round(tokens: float) -> int:
    """Round down to 1, 2 or 5 times a power of ten, so that the same command mostly reads the same text again."""
    power = 10.0 ** math.floor(math.log10(max(1.0, tokens)))
    return int(max(digit for digit in (1, 2, 5) if digit * power <= max(1.0, tokens)) * power)


def together(measurements: Measurements, *models: Model) -> tuple[Runner, ...]:
    """Return models that are in memory at once, or raise ModelError where they do not fit."""
    runners: list[Runner] = []
    for count, model in enumerate(models, 1):
        if runners and not measurements.fit_together(*models[:count]):
            raise ModelError(f"{' and '.join(repr(each.name) for each in models)} do not fit in memory together")
        runners.append(measurements.runner(model))
    return tuple(runners)


def require_parts(hybrids: Hybrids | GgufHybrids, candidate: Model, reference: Model) -> None:
    """Refuse two models without a part that differs."""
    if not hybrids.parts:
        raise ModelError(
            f"models {candidate.name!r} and {reference.name!r} have the same weights: expected a "
            "quantization or a fine-tune of the same model"
        )


def characters_per_token(corpus: Corpus, tokenizer: TokenizerFacts) -> float:
    sample = corpus.join.join(shortened(corpus, _SAMPLE).rows)
    return len(sample) / max(1, len(tokenizer.ids(sample, special=False)))


def standing_out(costs: Sequence[float], least: Sequence[float | None], *, smallest: float) -> list[int]:
    """Return the indices of the costs that stand out from the others, the largest first.

    The costs of a model's layers differ by factors rather than by amounts, so their logarithms are compared, where
    smaller costs than `smallest` count as that. A cost stands out if its lower bound is more than twice the median of
    the others, and further above it than 6.5 times their median absolute deviation. Of models with 12 blocks and more
    whose costs differ by chance (log-normally), 5% have a block that far out: a simulation in
    tests/tools/fix/test_costs.py.
    """
    logs = np.log(np.maximum(costs, smallest))
    outliers = []
    for index, bound in enumerate(least):
        others = np.delete(logs, index)
        median = float(np.median(others))
        spread = float(np.median(np.abs(others - median)))
        if bound is not None and math.log(max(bound, smallest)) > median + max(_TWICE, _OUTLIER * spread):
            outliers.append(index)
    return sorted(outliers, key=lambda index: -costs[index])
