"""Which layers of a candidate cost what: hybrids of it and its reference, compared with the reference.

Put into the reference, a part of the candidate costs ``KL(reference || hybrid)``. The other way round, a part of the
reference put into the candidate takes away ``KL(reference || candidate) - KL(reference || hybrid)``. Costs do not add
up to the candidate's own, since layers read what others write.
"""

from __future__ import annotations

__all__ = ["PartCost", "Why", "why"]

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from pytest_lmgate.backends.base import Model
from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.evaluate.evaluator import Evaluator
from pytest_lmgate.evaluate.measurements.divergence import Divergences
from pytest_lmgate.gates.standing_out import standing_out
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.metrics.noise.means import ClusteredMean
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import DivergenceRequest

_LEVEL = 0.05  # of naming any layer of an undamaged model by its noise, shared by all (Bonferroni)
_SMALLEST = 1e-7  # nats: what rounding alone makes of float32 models
_PROBE = 2000  # tokens from which the speed is known
_SAMPLE = 100_000  # characters from which the length of a token is known


@dataclass(frozen=True)
class PartCost:
    """What one part costs.

    Attributes:
        part: Name of a block, or `backends.hf.hybrids.OUTSIDE`.
        cost: Mean ``KL(reference || reference with the candidate's part)``, nats per token.
        relief: Mean fall of ``KL(reference || candidate)`` by the reference's part, nats per token.
        ratio: Perplexity of the reference with the candidate's part, over the reference's.
        stands_out: Whether the cost stands out from the other parts'.
    """

    part: str
    cost: ClusteredMean
    relief: ClusteredMean
    ratio: float
    stands_out: bool = False


@dataclass(frozen=True)
class Why:
    """What the parts of a candidate cost, those outside of the blocks last, beside the cost of the whole candidate."""

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
) -> Why:
    """Measure the hybrids of a model that got worse and the reference that it was made of.

    At most so many `tokens` of the dataset are read, and fewer where the first show that it would take longer than so
    many `seconds`.

    Raises:
        LmgateError: The models cannot be mixed, or something cannot be measured.
    """
    from pytest_lmgate.backends.hf.hybrids import Hybrids

    started, find = time.monotonic(), evaluator.resolver
    q, p, text = find.model(candidate), find.model(reference), find.corpus(dataset)
    runners = evaluator.together(p, q)
    hybrids = Hybrids(p, q, runners)
    request = DivergenceRequest(reference, protocol)

    def compared(model: Model, corpus: Corpus) -> Divergences:
        return Divergences("compare", model, corpus, request, p)

    characters = _characters_per_token(text, runners[0].tokenizer)
    probe, begun = shortened(text, int(min(tokens, _PROBE) * characters)), time.monotonic()
    counted = len(evaluator.made(compared(q, probe), anew=True).kl)
    pace = (time.monotonic() - begun) / counted * (2 * len(hybrids.parts) + 1)
    tokens = min(tokens, max(_PROBE, int((seconds - (time.monotonic() - started)) / pace)))
    text = shortened(text, int(tokens * characters))

    whole = compared(q, text)
    found, costs = evaluator.made(whole), []
    for part in hybrids.parts:
        damaged, healed = (evaluator.made(compared(hybrids.model(part, healed=each), text)) for each in (False, True))
        ratio = math.exp(damaged.mean(damaged.nll_q - damaged.nll_p).mean)
        costs.append(PartCost(part, damaged.mean(damaged.kl), found.mean(found.kl - healed.kl), ratio))
    bounds = [each.cost.bounds(1 - _LEVEL / len(costs)) for each in costs]
    least = [None if each is None else each.lower for each in bounds]
    named = standing_out([each.cost.mean for each in costs], least, smallest=_SMALLEST)
    parts = tuple(replace(cost, stands_out=index in named) for index, cost in enumerate(costs))
    figures = divergence(found, signature=whole.signature).placed(model=q.name, reference=p.name, dataset=text.name)
    return Why(figures, parts, time.monotonic() - started)


def shortened(corpus: Corpus, characters: int) -> Corpus:
    """Return the beginning of a corpus: whole rows, and of the last one what is needed."""
    rows: list[str] = []
    for index in range(len(corpus.rows)):
        if characters <= 0:
            break
        row = ""
        for part in corpus.parts(index):
            row += part[: characters - len(row)]
            if len(row) == characters:
                break
        rows.append(row)
        characters -= len(row)
    return replace(corpus, rows=tuple(rows))


def _characters_per_token(corpus: Corpus, tokenizer: TokenizerFacts) -> float:
    sample = corpus.join.join(shortened(corpus, _SAMPLE).rows)
    return len(sample) / max(1, len(tokenizer.ids(sample, special=False)))
