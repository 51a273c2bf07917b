"""The pytest plugin's entry: options, markers, fixtures, and the hooks' registration. Nothing heavy is imported here.

A gate measures in its test's setup phase, so that what cannot be measured is a pytest ERROR, and fails in its call
phase, before the test's own body, so that a body that skips cannot hide a verdict. Verdicts travel in the reports'
user_properties; the controller alone renders them.
"""

from __future__ import annotations

import pytest

from pytest_lmgate.plugin import hookspecs
from pytest_lmgate.plugin.fixtures import FIXTURES
from pytest_lmgate.plugin.hooks import GateHooks
from pytest_lmgate.plugin.options import add_options, project_file, reports, update

__all__: list[str] = []

globals().update(FIXTURES)  # where pytest looks for the fixtures of a plugin

_PROTOCOL = "stride, max_length, protocol, allow_beyond_context, add_bos_token"
_GENERATION = "max_new_tokens, num_beams, stop, seed, temperature, top_p, top_k, truncate"
_MARKERS = {
    "ppl_max": f"ppl_max(model, dataset, limit, *, unit, average, {_PROTOCOL}): "
    "fail if the model's perplexity on the dataset is above the limit.",
    "bpb_max": f"bpb_max(model, dataset, limit, *, {_PROTOCOL}): "
    "fail if the model's bits per byte on the dataset are above the limit.",
    "kl_max": "kl_max(model, reference, dataset, limit, *, statistic='mean', "
    f"{_PROTOCOL}): fail if the model's KL divergence from the reference model is above the limit, in nats per token.",
    "top1_min": f"top1_min(model, reference, dataset, limit, *, {_PROTOCOL}): "
    "fail if the share of tokens where both models' most likely one is the same is below the limit.",
    "pppl_max": "pppl_max(model, dataset, limit, *, max_length): "
    "fail if the masked model's pseudo-perplexity is above the limit.",
    "accuracy_min": "accuracy_min(model, dataset, limit, *, variant, max_length): "
    "fail if multiple-choice accuracy by likelihood is below the limit.",
    "bleu_min": f"bleu_min(model, dataset, limit, *, tokenize, max_ngram_order, smooth_method, ..., {_GENERATION}): "
    "fail if BLEU of the generated texts is below the limit.",
    "chrf_min": f"chrf_min(model, dataset, limit, *, char_order, word_order, beta, ..., {_GENERATION}): "
    "fail if chrF is below the limit.",
    "ter_max": f"ter_max(model, dataset, limit, *, normalized, no_punct, ..., {_GENERATION}): "
    "fail if TER is above the limit.",
    "rouge_min": "rouge_min(model, dataset, limit, variant='rougeL', *, stemmer, multi_reference, "
    f"tokenizer, convention, {_GENERATION}): fail if the ROUGE F-measure is below the limit.",
    "exact_min": f"exact_min(model, dataset, limit, *, ignore_case, ignore_punctuation, strip, {_GENERATION}): "
    "fail if the share of texts equal to a reference is below the limit.",
    "no_regression": "no_regression(metric, model, dataset, tolerance, *, against='baseline', confidence=0.95, ...): "
    "fail if the metric is worse than in the committed baseline, or than another model's, by more than the tolerance.",
    "metric_min": f"metric_min(metric, model, dataset, limit, *, {_GENERATION}): "
    "fail if a registered metric is below the limit.",
    "metric_max": f"metric_max(metric, model, dataset, limit, *, {_GENERATION}): "
    "fail if a registered metric is above the limit.",
}


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our hooks."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers and register the hooks."""
    reports(config)  # a report that cannot be made is said now, not after an hour of measuring
    update(config)
    project_file(config)  # one that is named but not there may hold gates
    for line in _MARKERS.values():
        config.addinivalue_line("markers", line)
    config.pluginmanager.register(GateHooks(config, frozenset(_MARKERS), frozenset(FIXTURES)), GateHooks.NAME)
