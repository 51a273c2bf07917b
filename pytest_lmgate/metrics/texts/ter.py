"""Translation edit rate (Snover et al. 2006), corpus level, by sacrebleu; lower is better.

``TER = 100 * edits / reference words``: insertions, deletions, substitutions and shifts to the closest reference, over
the mean length of a row's references. An empty output has 100, and there is no upper end.
"""

from __future__ import annotations

__all__ = ["ter"]

from typing import Any

from pytest_lmgate.metrics.texts.options import checked_flag
from pytest_lmgate.metrics.texts.sacrebleu_rows import segment_statistics, signature_of
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric


def ter(
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
) -> TextMetric:
    """Make TER; the defaults are those of the ``sacrebleu`` command and of Tercom.

    Args:
        normalized: Split punctuation from words and undo XML escapes.
        no_punct: Leave punctuation out.
        asian_support: With `normalized` take Chinese and Japanese characters one by one; with `no_punct` leave their
            punctuation out too.
        case_sensitive: Mind case.

    Returns:
        Statistics ``[edits, mean reference words]``, which are the details ``edits`` and ``ref_len`` too.

    Raises:
        ConfigError: An option is not true or false.
    """
    from sacrebleu import TER

    metric = TER(
        normalized=checked_flag("ter", "normalized", normalized),
        no_punct=checked_flag("ter", "no_punct", no_punct),
        asian_support=checked_flag("ter", "asian_support", asian_support),
        case_sensitive=checked_flag("ter", "case_sensitive", case_sensitive),
    )

    def value(sums: Floats) -> float:
        result: Any = metric._compute_score_from_stats(sums.tolist())
        return float(result.score)

    return TextMetric(
        name="ter",
        direction="lower",
        signature=signature_of("TER", metric),
        statistics=segment_statistics(metric),
        value=value,
        details=lambda sums: {"edits": int(sums[0]), "ref_len": float(sums[1])},
        scale=100,
        lowest=0,
    )
