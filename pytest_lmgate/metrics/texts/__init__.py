"""Metrics from texts: BLEU, chrF, TER, ROUGE, exact match and users' own, without a model.

A `TextMetric` (`text_metric`) turns texts into one vector of additive statistics per row (`row_statistics`). From those
alone come the `Score` with its noise (`scoring`, `bootstrap`), the paired test (`bootstrap`) and the worst rows.
`sacrebleu_metrics`, `rouge` and `exact` make metrics; `registry` collects users'; `inputs` says what is wrong.
Importing this package loads neither sacrebleu nor the ROUGE code: making a metric does.
"""

__all__ = [
    "PairedBootstrap",
    "ScoredRow",
    "TextMetric",
    "bleu",
    "chrf",
    "collected_metrics",
    "exact",
    "found_metric",
    "paired_bootstrap",
    "ratio",
    "rouge",
    "row_scores",
    "row_statistics",
    "ter",
    "text_score",
    "worst_rows",
]

from pytest_lmgate.metrics.texts.bootstrap import PairedBootstrap, paired_bootstrap
from pytest_lmgate.metrics.texts.exact import exact
from pytest_lmgate.metrics.texts.registry import collected_metrics, found_metric
from pytest_lmgate.metrics.texts.rouge import rouge
from pytest_lmgate.metrics.texts.row_statistics import ScoredRow, row_scores, row_statistics, worst_rows
from pytest_lmgate.metrics.texts.sacrebleu_metrics import bleu, chrf, ter
from pytest_lmgate.metrics.texts.scoring import text_score
from pytest_lmgate.metrics.texts.text_metric import TextMetric, ratio
