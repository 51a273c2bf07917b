"""The fixtures: measure inside a test, and get a `Score`, a real float, to compare as one likes."""

from __future__ import annotations

__all__ = ["FIXTURES"]

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.plugin.hooks import GateHooks

if TYPE_CHECKING:
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score
    from pytest_lmgate.plugin.session import GateSession

_MODEL = (
    "The model is a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline; the dataset a "
    "name, a path, a hub id, a list of texts or of mappings, or a datasets.Dataset."
)
_GENERATION = "max_new_tokens, num_beams, stop, seed, temperature, top_p, top_k, truncate"
_TEXTS = "In place of model and dataset it takes predictions=[...], references=[[...], ...]."
_DOCS = {
    "ppl_of": "ppl_of(model, dataset, *, stride, max_length, protocol, unit, average, ...) measures a perplexity. "
    + _MODEL,
    "bpb_of": "bpb_of(model, dataset, *, stride, max_length, protocol, ...) measures bits per byte.",
    "kl_of": "kl_of(model, reference, dataset, *, statistic, stride, max_length, protocol, ...) measures the KL "
    "divergence of a model from a reference model, in nats per token.",
    "top1_of": "top1_of(model, reference, dataset, *, stride, ...) measures the share of tokens where both models' "
    "most likely one is the same.",
    "compare_of": "compare_of(model, reference, dataset, *, stride, ...) measures both and all else that llama.cpp "
    "tells of two models; see docs/divergence.md.",
    "pppl_of": "pppl_of(model, dataset, *, max_length) measures the pseudo-perplexity of a masked model.",
    "accuracy_of": "accuracy_of(model, dataset, *, variant) measures multiple-choice accuracy by likelihood.",
    "bleu_of": f"bleu_of(model, dataset, *, tokenize, max_ngram_order, ..., {_GENERATION}) measures BLEU. {_TEXTS}",
    "chrf_of": f"chrf_of(model, dataset, *, word_order, ..., {_GENERATION}) measures chrF. {_TEXTS}",
    "ter_of": f"ter_of(model, dataset, *, ..., {_GENERATION}) measures TER. {_TEXTS}",
    "rouge_of": f"rouge_of(model, dataset, variant, *, stemmer, ..., {_GENERATION}) measures ROUGE. {_TEXTS}",
    "exact_of": f"exact_of(model, dataset, *, ignore_case, ..., {_GENERATION}) measures exact match. {_TEXTS}",
    "metric_of": f"metric_of(metric, model, dataset, *, {_GENERATION}) measures a registered metric. {_TEXTS}",
}


class Measure:
    """What ``ppl_of`` and its kin are; shown by its name, so that a failed assertion reads as it was written."""

    def __init__(self, session: GateSession, name: str) -> None:
        self._session, self._name = session, name

    def __call__(self, *args: Any, **kwargs: Any) -> Score | Divergence:
        """Measure; see the fixtures."""
        __tracebackhide__ = True
        return self._session.score(self._name, args, kwargs)

    def __repr__(self) -> str:
        return self._name


def _fixture(name: str, doc: str) -> Any:
    def measure(pytestconfig: pytest.Config) -> Measure:
        if pytestconfig.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: nothing is measured")
        try:
            return Measure(GateHooks.of(pytestconfig).session(), name)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    measure.__doc__ = doc
    named: Callable[[Any], Any] = pytest.fixture(scope="session", name=name)
    return named(measure)


FIXTURES = {name: _fixture(name, doc) for name, doc in _DOCS.items()}
