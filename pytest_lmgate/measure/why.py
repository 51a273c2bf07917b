"""Which layers of a candidate cost what: hybrids of it and its reference, compared with the reference.

Put into the reference, a part of the candidate costs ``KL(reference || hybrid)``. The other way round, a part of the
reference put into the candidate takes away ``KL(reference || candidate) - KL(reference || hybrid)``. Costs do not add
up to the candidate's own, since layers read what others write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import Model
from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.settings.requests import DivergenceRequest, Protocol
from pytest_lmgate.stats.means import ClusteredMean
from pytest_lmgate.windows.protocols import beginning
from pytest_lmgate.windows.tokens import TokenizerFacts

if TYPE_CHECKING:
    from pytest_lmgate.engines.llamacpp.hybrids import GgufHybrids
    from pytest_lmgate.engines.transformers.hybrids import By, Hybrids

_LEVEL = 0.05  # of naming any layer of an undamaged model by its noise, shared by all (Bonferroni)
SMALLEST = 1e-7  # nats: what rounding alone makes of float32 models
_OUTLIER, _TWICE = 6.5, math.log(2)
_PROBE = 2000  # tokens from which the speed is known
_SAMPLE = 100_000  # characters from which the length of a token is known


@dataclass(frozen=True)
class PartCost:
    """The cost of one part."""

    part: str  # name of a block or group, or `hybrids.OUTSIDE`
    cost: ClusteredMean  # Mean ``KL(reference || reference with the candidate's part)``, nats per token
    relief: ClusteredMean  # Mean fall of ``KL(reference || candidate)`` by the reference's part, nats per token
    ratio: float  # perplexity of the reference with the candidate's part, over the reference's
    stands_out: bool = False  # whether it stands out from the other parts


@dataclass(frozen=True)
class Why:
    """The costs of a candidate's parts, those outside of the blocks last, and of the whole candidate."""

    whole: Divergence
    parts: tuple[PartCost, ...]
    seconds: float


def why(
    evaluator: Evaluator,
    candidate: Any,
    reference: Any,
    dataset: Any,
    *,
    protocol: Protocol,
    tokens: int,
    seconds: float,
    by: By = "block",
) -> Why:
    """Measure the hybrids of a model and its original.

    Reads at most `tokens` of the dataset, and fewer if it would take longer than `seconds`.
    """
    from pytest_lmgate.engines.transformers.hybrids import Hybrids

    started, find = time.monotonic(), evaluator.resolver
    q, p, text = find.model(candidate), find.model(reference), find.corpus(dataset)
    runners = evaluator.together(p, q)
    text = beginning(text, runners[0].tokenizer)
    hybrids = Hybrids(p, q, runners, by=by)
    require_parts(hybrids, q, p)
    request = DivergenceRequest(reference, protocol)

    def compared(model: Model, corpus: Corpus) -> Divergences:
        return Divergences("compare", model, corpus, request, hybrids.reference)

    characters = characters_per_token(text, runners[0].tokenizer)
    probe, begun = shortened(text, int(min(tokens, _PROBE) * characters)), time.monotonic()
    counted = len(evaluator.measurements.again(compared(q, probe)).kl)
    pace = (time.monotonic() - begun) / counted * (2 * len(hybrids.parts) + 1)
    tokens = min(tokens, max(_PROBE, int((seconds - (time.monotonic() - started)) / pace)))
    text = shortened(text, int(tokens * characters))

    whole = compared(q, text)
    found, costs = evaluator.measurements.once(lambda: whole).statistics, []
    for part in hybrids.parts:
        damaged, healed = (
            evaluator.measurements.once(partial(compared, hybrids.model(part, healed=each), text)).statistics
            for each in (False, True)
        )
        ratio = math.exp(damaged.mean(damaged.nll_q - damaged.nll_p).mean)
        costs.append(PartCost(part.name, damaged.mean(damaged.kl), found.mean(found.kl - healed.kl), ratio))
    bounds = [each.cost.bounds(1 - _LEVEL / len(costs)) for each in costs]
    least = [None if each is None else each.lower for each in bounds]
    named = standing_out([each.cost.mean for each in costs], least, smallest=SMALLEST)
    parts = tuple(replace(cost, stands_out=index in named) for index, cost in enumerate(costs))
    figures = divergence(found, signature=whole.signature).placed(model=q.name, reference=p.name, dataset=text.name)
    return Why(figures, parts, time.monotonic() - started)


def require_parts(hybrids: Hybrids | GgufHybrids, candidate: Model, reference: Model) -> None:
    """Refuse two models without a part that differs."""
    if not hybrids.parts:
        raise ModelError(
            f"models {candidate.name!r} and {reference.name!r} have the same weights: expected a "
            "quantization or a fine-tune of the same model"
        )


def shortened(corpus: Corpus, characters: int) -> Corpus:
    """Return the beginning of a corpus: whole rows, and a part of the last one."""
    rows: list[str] = []
    for row in corpus.rows:
        if characters <= 0:
            break
        rows.append(row[:characters])
        characters -= len(row)
    return replace(corpus, rows=tuple(rows))


def characters_per_token(corpus: Corpus, tokenizer: TokenizerFacts) -> float:
    sample = corpus.join.join(shortened(corpus, _SAMPLE).rows)
    return len(sample) / max(1, len(tokenizer.ids(sample, special=False)))


def standing_out(costs: Sequence[float], least: Sequence[float | None], *, smallest: float) -> list[int]:
    """Return the indices of the costs that stand out from the others, the largest first.

    The costs of a model's layers differ by factors rather than by amounts, so their logarithms are compared, where
    smaller costs than `smallest` count as that. A cost stands out if its lower bound is more than twice the median of
    the others, and further above it than 6.5 times their median absolute deviation. Of models with 12 blocks and more
    whose costs differ by chance (log-normally), 5% have a block that far out: a simulation in
    tests/measure/test_why.py.
    """
    logs = np.log(np.maximum(costs, smallest))
    found = []
    for index, bound in enumerate(least):
        others = np.delete(logs, index)
        median = float(np.median(others))
        spread = float(np.median(np.abs(others - median)))
        if bound is not None and math.log(max(bound, smallest)) > median + max(_TWICE, _OUTLIER * spread):
            found.append(index)
    return sorted(found, key=lambda index: -costs[index])
