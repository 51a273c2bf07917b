"""chrF (Popovic 2015) and chrF++ (Popovic 2017), corpus level, by sacrebleu.

``chrF = (1 + b^2) P R / (b^2 P + R)``, scale 0-100, with P and R the means over the orders of character (and word)
n-grams that both sides have. Of several references a row takes the one with the best F.
"""

from __future__ import annotations

__all__ = ["chrf"]

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.texts.options import checked_flag, checked_number, checked_whole
from pytest_lmgate.metrics.texts.sacrebleu_rows import segment_statistics, signature_of
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric


def chrf(
    char_order: int = 6,
    word_order: int = 0,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> TextMetric:
    """Make chrF; the defaults are those of the ``sacrebleu`` command, ``word_order=2`` is chrF++.

    Args:
        char_order: Longest character n-gram.
        word_order: Longest word n-gram; 0 for none.
        beta: How many times recall weighs as much as precision.
        lowercase: Ignore case.
        whitespace: Let character n-grams hold white space.
        eps_smoothing: Smooth as chrF++.py, NLTK and Moses do, instead of leaving out the orders that one side lacks.

    Returns:
        Statistics ``[candidate, reference, matching n-grams]`` of each order, the characters' first. Details:
        ``precision`` and ``recall``, 0-100, means over the orders that both sides have.

    Raises:
        ConfigError: An option is not one of these.
    """
    from sacrebleu import CHRF

    metric = CHRF(
        char_order=checked_whole("chrf", "char_order", char_order, least=0),
        word_order=checked_whole("chrf", "word_order", word_order, least=0),
        beta=checked_number("chrf", "beta", beta),  # type: ignore[arg-type]  # annotated int, used as a number
        lowercase=checked_flag("chrf", "lowercase", lowercase),
        whitespace=checked_flag("chrf", "whitespace", whitespace),
        eps_smoothing=checked_flag("chrf", "eps_smoothing", eps_smoothing),
    )
    if char_order + word_order == 0:
        raise ConfigError("chrf: expected char_order or word_order above 0, got 0 for both")
    return TextMetric(
        name="chrf",
        direction="higher",
        # The weight of recall is in the name that sacrebleu prints, not in its signature.
        signature=signature_of(f"chrF{beta}{'+' * word_order}", metric),
        statistics=segment_statistics(metric),
        value=lambda sums: float(metric._compute_f_score(sums.tolist())),
        details=_details,
        scale=100,
        lowest=0,
        highest=100,
    )


def _details(sums: Floats) -> dict[str, float]:
    candidate, reference, matching = sums.reshape(-1, 3).T
    both = (candidate > 0) & (reference > 0)
    if not both.any():
        return {"precision": 0.0, "recall": 0.0}
    return {
        "precision": 100 * float((matching[both] / candidate[both]).mean()),
        "recall": 100 * float((matching[both] / reference[both]).mean()),
    }
