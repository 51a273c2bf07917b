"""The table of metrics, one row each.

Markers with their arguments and help, fixtures, reserved names, gates of lmgate.yaml, `no_regression`, titles in
reports and scoring derive from it. pytest reads it in every session, so the code that scores is imported when a row is
first asked to score.
"""

from __future__ import annotations

__all__ = ["MARKERS", "METRICS", "RESERVED", "USERS_METRIC", "Metric", "Statistics", "metric_called", "metric_hint"]

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pytest_lmgate.errors import nearest

if TYPE_CHECKING:
    from pytest_lmgate.metrics.score import Direction, Score
    from pytest_lmgate.metrics.texts import TextMetric

Statistics = Literal["likelihoods", "pseudo-likelihoods", "choices", "divergences", "texts"]
"""What a measurement keeps, from which the metrics of that kind are made."""

_ABOVE_ZERO = math.ulp(0.0)


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: As in ``ppl``: the marker is ``ppl_max`` or ``ppl_min``, the fixture ``ppl_of``.
        title: As a report writes it.
        description: What is measured, for help: "the perplexity of a model on a dataset".
        measures: What a measurement of it keeps.
        scored_by: ``module:function`` in `pytest_lmgate.metrics`: of texts, a function from options to a `TextMetric`;
            else a function from statistics to a `Score` (to a `Divergence` where it is not one number). Empty for
            users' metrics, which score themselves.
        direction: Which values are better; None where a user's metric says it.
        scale: The largest value, if there is one.
        unit: What a number of it is followed by, as in ``1.5 ppl``; ``points`` are hundredths of the scale.
        lowest: The lowest limit that says something.
        options: Its own arguments, beside those of everything that is measured in the same way.
        fixed: Arguments that every metric measured in the same way has, which this one fixes.
        usual: The argument that tells metrics of this name apart, and its usual value.
        variant_follows_limit: Whether that argument may follow the limit without its name.
        also_called: Other names that people try, in lower case and letters alone.
        is_number: Whether it is one number, which a limit or another model's can be compared with.
    """

    name: str
    title: str
    description: str
    measures: Statistics
    scored_by: str
    direction: Direction | None
    _: KW_ONLY
    scale: float | None = None
    unit: str = ""
    lowest: float = _ABOVE_ZERO
    options: tuple[str, ...] = ()
    fixed: tuple[tuple[str, object], ...] = ()
    usual: tuple[str, str] | None = None
    variant_follows_limit: bool = False
    also_called: tuple[str, ...] = ()
    is_number: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Names of its markers: ``_max`` where smaller values are better, ``_min`` where larger are."""
        ends = {"lower": ("max",), "higher": ("min",), None: ("min", "max")}[self.direction]
        return tuple(f"{self.name}_{end}" for end in ends) if self.is_number else ()

    @property
    def fixture(self) -> str:
        """Name of its fixture."""
        return f"{self.name}_of"

    def score(self, statistics: object, **how: Any) -> Score:
        """Make a score of what was measured.

        Raises:
            LmgateError: The statistics cannot be scored.
        """
        made: Score = self.scorer()(statistics, **how)
        return made

    def text_metric(self, options: Mapping[str, Any]) -> TextMetric:
        """Make the metric of texts with these options.

        Raises:
            ConfigError: An option is not what it should be.
        """
        made: TextMetric = self.scorer()(**options)
        return made

    def scorer(self) -> Any:
        """Import the function that `scored_by` names."""
        module, _, function = self.scored_by.partition(":")
        return getattr(import_module(f"pytest_lmgate.metrics.{module}"), function)


# fmt: off
_ROWS = (
    Metric("ppl", "perplexity", "the perplexity of a model on a dataset", "likelihoods", "perplexity:perplexity",
           "lower", unit="ppl", also_called=("perplexity",)),
    Metric("bpb", "bits per byte", "the bits per byte of a model on a dataset", "likelihoods", "perplexity:perplexity",
           "lower", unit="bpb", fixed=(("unit", "bits_per_byte"), ("average", None)),
           also_called=("bits", "bitsperbyte")),
    Metric("kl", "KL divergence", "the KL divergence of a model from a reference model, in nats per token",
           "divergences", "divergence:kl", "lower", unit="nats", lowest=0, options=("statistic",),
           usual=("statistic", "mean"), also_called=("kld", "kldiv", "kldivergence", "divergence")),
    Metric("top1", "share of tokens with the same top prediction",
           "the share of tokens where a model and its reference have the same most likely token",
           "divergences", "divergence:top1", "higher", scale=1, unit="points", also_called=("sametop", "top")),
    Metric("compare", "comparison of two models",
           "all figures of a model beside a reference model under llama.cpp's names; see docs/divergence.md",
           "divergences", "divergence:divergence", None, is_number=False),
    Metric("pppl", "pseudo-perplexity", "the pseudo-perplexity of a masked model on a dataset",
           "pseudo-likelihoods", "perplexity:perplexity", "lower", unit="pppl", also_called=("pseudoperplexity",)),
    Metric("accuracy", "accuracy", "the multiple-choice accuracy of a model by likelihood",
           "choices", "accuracy:accuracy", "higher", scale=1, unit="points", options=("variant",),
           usual=("variant", "acc"), also_called=("acc", "accnorm")),
    Metric("bleu", "BLEU", "BLEU of generated texts", "texts", "texts.sacrebleu_metrics:bleu", "higher", scale=100,
           unit="points", also_called=("sacrebleu",),
           options=("max_ngram_order", "tokenize", "smooth_method", "smooth_value", "lowercase", "effective_order")),
    Metric("chrf", "chrF", "chrF of generated texts", "texts", "texts.sacrebleu_metrics:chrf", "higher", scale=100,
           unit="points", options=("char_order", "word_order", "beta", "lowercase", "whitespace", "eps_smoothing"),
           also_called=("chrfpp",)),
    Metric("ter", "TER", "TER, the translation edit rate, of generated texts",
           "texts", "texts.sacrebleu_metrics:ter", "lower", unit="points", lowest=0,
           options=("normalized", "no_punct", "asian_support", "case_sensitive")),
    Metric("rouge", "ROUGE", "the ROUGE F-measure of generated texts", "texts", "texts.rouge:rouge", "higher", scale=1,
           unit="points", options=("variant", "stemmer", "multi_reference", "tokenizer", "convention"),
           usual=("variant", "rougeL"), variant_follows_limit=True, also_called=("rougel", "rougelsum", "rougen")),
    Metric("exact", "exact match", "the share of generated texts that equal a reference",
           "texts", "texts.exact:exact", "higher", scale=1, unit="points",
           options=("ignore_case", "ignore_punctuation", "strip"), also_called=("em", "exactmatch")),
)
# fmt: on

USERS_METRIC = Metric("metric", "registered metric", "a registered metric of generated texts", "texts", "", None,
                      lowest=-sys.float_info.max)  # fmt: skip
"""The row of the metrics that users register; their names come as an argument."""

METRICS: Mapping[str, Metric] = {row.name: row for row in _ROWS}
RESERVED = frozenset({*METRICS, USERS_METRIC.name})
"""Names with a marker or a fixture of their own, which no user's metric may have."""
MARKERS: Mapping[str, Metric] = {marker: row for row in (*_ROWS, USERS_METRIC) for marker in row.markers}


def metric_called(name: str) -> str | None:
    """Return the short name of the metric that `name` stands for, whatever its capitals, digits and hyphens."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    rows = (*METRICS.values(), USERS_METRIC)
    return next((row.name for row in rows if letters in (row.name, *row.also_called)), None)


def metric_hint(name: str, users: Iterable[str] = ()) -> str:
    """Return what to write for the name of no metric, as ``" (say metric: rouge, variant: rouge2)"``, if it is close.

    Args:
        name: What was written.
        users: Names of the metrics that users registered.
    """
    meant = metric_called(name)
    option, usual = (METRICS[meant].usual if meant and meant in METRICS else None) or ("", "")
    if option == "variant" and name != usual:
        return f" (say metric: {meant}, variant: {name})"
    return f" (did you mean {meant!r}?)" if meant else nearest(name, [*users, *METRICS])
