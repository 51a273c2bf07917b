"""The table of metrics, one row each.

Markers with their arguments and help, fixtures, reserved names, gates of lmgate.yaml, `no_regression`, titles in
reports and scoring derive from it. pytest reads it in every session, so the code that scores is imported when a row is
first asked to score.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from pytest_lmgate.errors import nearest

Direction = Literal["lower", "higher"]
Statistics = Literal["likelihoods", "pseudo-likelihoods", "choices", "divergences", "self-divergences", "texts"]
"""What a measurement keeps, from which the metrics of that kind are made."""

_ABOVE_ZERO = math.ulp(0.0)


class Metric(NamedTuple):  # a dataclass would cost each session a millisecond
    """One metric."""

    name: str  # as in ``ppl``: the marker is ``ppl_max`` or ``ppl_min``, the fixture ``ppl_of``
    title: str  # its name in reports
    description: str  # what is measured, for help: "the perplexity of a model on a dataset"
    measures: Statistics  # the kind of measurement
    # ``module:function`` in `pytest_lmgate.metrics`: of texts, a function from options to a `TextMetric`; else a
    # function from statistics to a `Score` (to a `Divergence` where it is not one number). Empty for users' metrics,
    # which score themselves.
    scored_by: str
    direction: Direction | None  # which values are better; None if a user's metric defines it
    highest: float | None = None  # the largest value, if there is one
    # Unit of its values, as in ``1.5 ppl``. ``points`` are hundredths where `highest` is 1, else the values themselves;
    # fractions without a highest value have no unit.
    unit: str = ""
    lowest: float = _ABOVE_ZERO  # the lowest meaningful limit
    options: tuple[str, ...] = ()  # its own arguments, besides those of its kind of measurement
    fixed: tuple[tuple[str, object], ...] = ()  # arguments of its kind of measurement that this metric fixes
    usual: tuple[str, str] | None = None  # the argument that selects a variant, and its default
    variant_follows_limit: bool = False  # whether that argument may follow the limit without its name
    also_called: tuple[str, ...] = ()  # other names that people try, in lower case and without other characters
    is_number: bool = True  # whether it is one number, which can be compared with a limit

    @property
    def is_comparable(self) -> bool:
        """Whether it can be compared with another model's, or with a baseline."""
        return self.is_number and self.measures != "self-divergences"

    @property
    def markers(self) -> tuple[str, ...]:
        """Names of its markers: ``_max`` if smaller values are better, ``_min`` if larger are."""
        ends = {"lower": ("max",), "higher": ("min",), None: ("min", "max")}[self.direction]
        return tuple(f"{self.name}_{end}" for end in ends) if self.is_number else ()

    @property
    def fixture(self) -> str:
        return f"{self.name}_of"

    def scorer(self) -> Any:
        from pkgutil import resolve_name  # imported lazily: sessions without gates never need it

        return resolve_name(f"pytest_lmgate.metrics.{self.scored_by}")


_PER_TOKEN = (("unit", "token"), ("average", None))
_EXACT_MEAN = (("statistic", "mean"), ("estimator", "exact"), ("max_new_tokens", None))
# fmt: off
_ROWS = (
    Metric("ppl", "perplexity", "the perplexity of a model on a dataset", "likelihoods", "likelihoods:perplexity",
           "lower", unit="ppl", also_called=("perplexity",)),
    Metric("bpb", "bits per byte", "the bits per byte of a model on a dataset", "likelihoods", "likelihoods:perplexity",
           "lower", unit="bpb", fixed=(("unit", "bits_per_byte"), ("average", None)),
           also_called=("bits", "bitsperbyte")),
    Metric("kl", "KL divergence", "the KL divergence of a model from a reference model, in nats per token",
           "divergences", "divergence:kl", "lower", unit="nats", lowest=0, options=("statistic",), fixed=_PER_TOKEN,
           usual=("statistic", "mean"), also_called=("kld", "kldiv", "kldivergence", "divergence")),
    Metric("top1", "share of tokens with the same top prediction",
           "the share of tokens where a model and its reference have the same most likely token",
           "divergences", "divergence:top1", "higher", highest=1, unit="points", fixed=(*_PER_TOKEN, *_EXACT_MEAN),
           also_called=("sametop", "top")),
    Metric("compare", "comparison of two models",
           "all figures of a model and its reference model under llama.cpp's names; see docs/divergence.md",
           "divergences", "divergence:divergence", None, fixed=(*_PER_TOKEN, *_EXACT_MEAN), is_number=False),
    Metric("self_kl", "KL divergence from itself",
           "the KL divergence of a model that reads from the same model as it writes, in nats per token",
           "self-divergences", "divergence:self_kl", "lower", unit="nats", lowest=0, also_called=("selfkl",)),
    Metric("pppl", "pseudo-perplexity", "the pseudo-perplexity of a masked model on a dataset",
           "pseudo-likelihoods", "likelihoods:perplexity", "lower", unit="pppl", also_called=("pseudoperplexity",)),
    Metric("accuracy", "accuracy", "the multiple-choice accuracy of a model by likelihood",
           "choices", "likelihoods:accuracy", "higher", highest=1, unit="points", options=("variant",),
           usual=("variant", "acc"), also_called=("acc", "accnorm")),
    Metric("target_ppl", "perplexity per target", "the perplexity of targets after their questions, per row",
           "choices", "likelihoods:target_perplexity", "lower", unit="ppl", lowest=1, fixed=(("variant", "acc"),)),
    Metric("bleu", "BLEU", "BLEU of generated texts", "texts", "sacrebleu_metrics:bleu", "higher", highest=100,
           unit="points", also_called=("sacrebleu",),
           options=("max_ngram_order", "tokenize", "smooth_method", "smooth_value", "lowercase", "effective_order")),
    Metric("chrf", "chrF", "chrF of generated texts", "texts", "sacrebleu_metrics:chrf", "higher", highest=100,
           unit="points", options=("char_order", "word_order", "beta", "lowercase", "whitespace", "eps_smoothing"),
           also_called=("chrfpp",)),
    Metric("ter", "TER", "TER, the translation edit rate, of generated texts",
           "texts", "sacrebleu_metrics:ter", "lower", unit="points", lowest=0,
           options=("normalized", "no_punct", "asian_support", "case_sensitive")),
    Metric("rouge", "ROUGE", "the ROUGE F-measure of generated texts", "texts", "rouge:rouge", "higher", highest=1,
           unit="points", options=("variant", "stemmer", "multi_reference", "tokenizer", "convention"),
           usual=("variant", "rougeL"), variant_follows_limit=True, also_called=("rougel", "rougelsum", "rougen")),
    Metric("exact", "exact match", "the share of generated texts that equal a reference",
           "texts", "texts:exact", "higher", highest=1, unit="points",
           options=("ignore_case", "ignore_punctuation", "ignore_numbers", "ignore", "numeric", "strip", "variant"),
           also_called=("em", "exactmatch")),
    Metric("invalid", "share without an answer", "the share of generated texts in which no answer was found",
           "texts", "texts:invalid", "lower", highest=1, unit="points", lowest=0, options=("variant",),
           also_called=("noanswer", "unanswered")),
    Metric("cut", "share of cut texts", "the share of generated texts that were cut at max_new_tokens",
           "texts", "texts:cut", "lower", highest=1, unit="points", lowest=0, also_called=("truncated", "truncation")),
)
# fmt: on

USERS_METRIC = Metric("metric", "registered metric", "a registered metric of generated texts, or one of results",
                      "texts", "", None, lowest=-sys.float_info.max, options=("variant",))  # fmt: skip
"""The row of the metrics that users register, or that results have; their names come as an argument."""

METRICS: Mapping[str, Metric] = {row.name: row for row in _ROWS}
RESERVED = frozenset({*METRICS, USERS_METRIC.name})
"""Names with a marker or a fixture of their own, which no user's metric may have."""
MARKERS: Mapping[str, Metric] = {marker: row for row in (*_ROWS, USERS_METRIC) for marker in row.markers}
FIXTURES: Mapping[str, Metric] = {row.fixture: row for row in (*_ROWS, USERS_METRIC)}
NO_REGRESSION = "no_regression"
MARKER_NAMES = (*MARKERS, NO_REGRESSION)


def metric_called(name: str) -> str | None:
    """Return the short name of a metric, ignoring capitals, digits and hyphens."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    rows = (*METRICS.values(), USERS_METRIC)
    return next((row.name for row in rows if letters in (row.name, *row.also_called)), None)


def metric_hint(name: str, users: Iterable[str] = ()) -> str:
    """Suggest a metric, ours or a `users`, for an unknown name: ``" (say metric: rouge, variant: rouge2)"``."""
    meant = metric_called(name)
    option, usual = (METRICS[meant].usual if meant and meant in METRICS else None) or ("", "")
    if option == "variant" and name != usual:
        return f" (say metric: {meant}, variant: {name})"
    return f" (did you mean {meant!r}?)" if meant else nearest(name, [*users, *METRICS])
