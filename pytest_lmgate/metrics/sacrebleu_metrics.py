"""BLEU, chrF and TER, corpus level, by sacrebleu: its tokenizers, smoothing, statistics and signatures.

``BLEU = BP exp(1/N sum_n log p_n)`` (Papineni et al. 2002), scale 0-100. Modified precision p_n clips a candidate's
n-gram by its largest count in any one reference; the brevity penalty ``BP = min(1, exp(1 - r/c))`` takes each row's
closest reference length.

``chrF = (1 + b^2) P R / (b^2 P + R)`` (Popovic 2015; chrF++ 2017), scale 0-100, with P and R the means over the orders
of character (and word) n-grams that both sides have. Of several references a row takes the one with the best F.

``TER = 100 * edits / reference words`` (Snover et al. 2006), lower is better: insertions, deletions, substitutions and
shifts to the closest reference, over the mean length of a row's references. An empty output has 100, and there is no
upper end.

Rows are scored one by one, since sacrebleu's `corpus_score` keeps no statistics of a row. Of chrF `sentence_score` has
none either: `private.py` of this folder takes them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.metrics.private import chrf_score, chrf_statistics
from pytest_lmgate.metrics.texts import References, RowStatistics, TextMetric, require_flags

_KANA = re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
_THAI = re.compile("[\u0e01-\u0e7f]")
_LETTER = re.compile(r"[^\W\d_]")
_ENOUGH = 1000  # texts tell the language
_MANY, _SOME = 0.5, 0.1  # of the letters


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
        tokenize: ``13a``, ``intl``, ``zh``, ``char``, ``none``; with their dependencies ``ja-mecab``, ``ko-mecab``,
            ``flores101``, ``flores200``, ``spBLEU-1K``.
        smooth_method: For orders without a match: ``exp``, ``floor``, ``add-k`` or ``none`` (Chen and Cherry 2014).
        smooth_value: For ``floor`` (default 0.1; 0 does not smooth) and ``add-k`` (default 1).
        lowercase: Ignore case.
        effective_order: Leave out orders that no candidate is long enough for.

    Returns:
        Statistics ``[candidate length, closest reference length, matches of 1..N, n-grams of 1..N]``. Details:
        ``precisions`` (0-100, of 1..N), ``bp``, ``sys_len``, ``ref_len``. A row's own score is taken with
        `effective_order`, as ``sacrebleu --sentence-level`` does.
    """
    from sacrebleu import BLEU

    require_flags("bleu", lowercase=lowercase, effective_order=effective_order)
    _require_number("bleu", "max_ngram_order", max_ngram_order, least=1)
    _require_choice("bleu", "smooth_method", smooth_method, BLEU.SMOOTH_DEFAULTS)
    if smooth_value is not None:
        _require_number("bleu", "smooth_value", smooth_value, above=-math.ulp(0) if smooth_method == "floor" else 0)
        if BLEU.SMOOTH_DEFAULTS[smooth_method] is None:
            raise ConfigError(f"bleu: smooth_value needs smooth_method 'floor' or 'add-k', got {smooth_method!r}")
    _require_tokenizer(tokenize, BLEU.TOKENIZERS)
    order = max_ngram_order
    made = functools.partial(BLEU, max_ngram_order=order, tokenize=tokenize, lowercase=lowercase)
    try:
        metric = made(smooth_method=smooth_method, smooth_value=smooth_value, effective_order=effective_order)
        counting = made(smooth_method="none", effective_order=True)  # add-k would write into the counts
    except (ImportError, RuntimeError) as error:  # the tokenizer needs a library, which sacrebleu names
        raise ConfigError(f"bleu: tokenize={tokenize!r}: {' '.join(str(error).split())}") from error

    # What changes the number but sacrebleu's signature leaves out or rounds.
    unsigned = "" if order == 4 else f"|max_ngram_order:{order}"
    if smooth_value is not None and float(f"{smooth_value:.2f}") != smooth_value:
        unsigned += f"|smooth_value:{smooth_value!r}"

    def computed(sums: Floats, *, effective: bool = effective_order) -> Any:
        counts = sums.tolist()  # a copy: add-k smoothing writes into what it is given
        return BLEU.compute_bleu(
            counts[2 : 2 + order],
            counts[2 + order :],
            int(counts[0]),
            int(counts[1]),
            smooth_method=smooth_method,
            smooth_value=smooth_value,
            effective_order=effective,
            max_ngram_order=order,
        )

    def row(prediction: str, references: Sequence[str]) -> list[float]:
        score = counting.sentence_score(prediction, references)
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]

    def details(sums: Floats) -> dict[str, Any]:
        result = computed(sums)
        shown = {name: getattr(result, name) for name in ("bp", "sys_len", "ref_len")}
        return {"precisions": list(result.precisions), **shown}

    return TextMetric(
        name="bleu",
        direction="higher",
        signature=_signature("BLEU", metric) + unsigned,
        statistics=_row_by_row(row),
        value=lambda sums: float(computed(sums).score),
        row_value=lambda sums: float(computed(sums, effective=True).score),
        details=details,
        lowest=0,
        highest=100,
        hint=tokenizer_hint if tokenize == "13a" else None,
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
        beta: Weight of recall relative to precision.
        lowercase: Ignore case.
        whitespace: Include white space in character n-grams.
        eps_smoothing: Smooth as chrF++.py, NLTK and Moses do, instead of leaving out the orders that one side lacks.

    Returns:
        Statistics ``[candidate, reference, matching n-grams]`` of each order, the characters' first. Details:
        ``precision`` and ``recall``, 0-100, means over the orders that both sides have.
    """
    from sacrebleu import CHRF

    require_flags("chrf", lowercase=lowercase, whitespace=whitespace, eps_smoothing=eps_smoothing)
    _require_number("chrf", "char_order", char_order, least=0)
    _require_number("chrf", "word_order", word_order, least=0)
    _require_number("chrf", "beta", beta, above=0)
    if char_order + word_order == 0:
        raise ConfigError("chrf: expected char_order or word_order above 0, got 0 for both")
    metric = CHRF(
        char_order=char_order,
        word_order=word_order,
        beta=beta,  # type: ignore[arg-type]  # annotated int, used as a number
        lowercase=lowercase,
        whitespace=whitespace,
        eps_smoothing=eps_smoothing,
    )
    return TextMetric(
        name="chrf",
        direction="higher",
        # The weight of recall is in the name that sacrebleu prints, not in its signature.
        signature=_signature(f"chrF{beta}{'+' * word_order}", metric),
        statistics=_row_by_row(functools.partial(chrf_statistics, metric)),
        value=functools.partial(chrf_score, metric),
        details=_chrf_details,
        lowest=0,
        highest=100,
    )


def ter(
    normalized: bool = False, no_punct: bool = False, asian_support: bool = False, case_sensitive: bool = False
) -> TextMetric:
    """Make TER; the defaults are those of the ``sacrebleu`` command and of Tercom.

    Args:
        normalized: Split punctuation from words and undo XML escapes.
        no_punct: Remove punctuation.
        asian_support: With `normalized` split Chinese and Japanese characters; with `no_punct` remove their punctuation
            too.
        case_sensitive: Distinguish upper and lower case.

    Returns:
        Statistics ``[edits, mean reference words]``, which are the details ``edits`` and ``ref_len`` too.
    """
    from sacrebleu import TER

    require_flags("ter", normalized=normalized, no_punct=no_punct)
    require_flags("ter", asian_support=asian_support, case_sensitive=case_sensitive)
    metric = TER(normalized=normalized, no_punct=no_punct, asian_support=asian_support, case_sensitive=case_sensitive)

    def row(prediction: str, references: Sequence[str]) -> list[float]:
        score: Any = metric.sentence_score(prediction, references)
        return [score.num_edits, score.ref_length]

    def value(sums: Floats) -> float:
        edits, words = sums.tolist()
        return 100 * (edits / words if words else float(edits > 0))

    return TextMetric(
        name="ter",
        direction="lower",
        signature=_signature("TER", metric),
        statistics=_row_by_row(row),
        value=value,
        details=lambda sums: {"edits": int(sums[0]), "ref_len": float(sums[1])},
        lowest=0,
    )


def _require_number(
    metric: str, option: str, given: Any, *, least: int | None = None, above: float | None = None
) -> None:
    """Require a whole number from `least`, or a finite number above `above`: sacrebleu would score with anything."""
    if least is not None:
        right, wanted = type(given) is int and given >= least, f"a whole number from {least}"
    else:
        right = type(given) in (int, float) and math.isfinite(given) and given > above
        wanted = "a number above 0" if above == 0 else "0 or a number above 0"
    if not right:
        raise ConfigError(f"{metric}: expected {option} to be {wanted}, got {given!r}")


def _require_choice(metric: str, option: str, given: object, known: Iterable[str]) -> None:
    if given not in (names := sorted(known)):
        raise ConfigError(
            f"{metric}: expected {option} to be one of {', '.join(names)}; got {given!r}{nearest(str(given), names)}"
        )


def _require_tokenizer(tokenizer: str, known: Iterable[str]) -> None:
    """Refuse a tokenizer whose model sacrebleu would fetch from the network."""
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    # 'spm' is sacrebleu's old name of flores101, and warns that it will go.
    _require_choice("bleu", "tokenize", tokenizer, set(known) - {"spm"})
    if tokenizer not in SPM_MODELS:
        return
    model = Path(SACREBLEU_DIR, "models", Path(SPM_MODELS[tokenizer]["url"]).name)
    if not model.is_file():
        raise ConfigError(
            f"bleu: tokenize={tokenizer!r} needs its model, and there is no file {model}; metrics never use the "
            "network: let sacrebleu download it once: "
            f"python -c \"from sacrebleu import BLEU; BLEU(tokenize='{tokenizer}')\""
        )


def _chrf_details(sums: Floats) -> dict[str, float]:
    candidate, reference, matching = sums.reshape(-1, 3).T
    both = (candidate > 0) & (reference > 0)
    if not both.any():
        return {"precision": 0.0, "recall": 0.0}
    return {
        "precision": 100 * float((matching[both] / candidate[both]).mean()),
        "recall": 100 * float((matching[both] / reference[both]).mean()),
    }


def _row_by_row(statistics: Callable[[str, Sequence[str]], Sequence[float]]) -> RowStatistics:
    """Return a function from texts to statistics, shape ``[rows, k]``, given one for a single text."""

    def of_rows(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        # The command `sacrebleu` reads lines without the white space at their end.
        return np.array(
            [
                statistics(text.rstrip(), [reference.rstrip() for reference in of_row])
                for text, of_row in zip(predictions, references, strict=True)
            ],
            dtype=np.float64,
        )

    return of_rows


def _signature(label: str, metric: Any) -> str:
    """Return ``label|fields``: sacrebleu's signature without the number of references, which the texts decide."""
    metric.num_refs = 0
    signature = metric.get_signature()
    signature.update("nrefs", None)
    return f"{label}|{signature.format()}"


def tokenizer_hint(references: References) -> str:
    """Name BLEU's tokenizers for texts that are mostly Han, Kana or Thai; empty for others."""
    text = "\n".join(islice(chain.from_iterable(references), _ENOUGH))
    advice = "BLEU's tokenizer 13a splits at spaces, and {} has no spaces between words: use tokenize={}"
    letters = len(_LETTER.findall(text))
    kana, han, thai = (len(pattern.findall(text)) for pattern in (_KANA, _HAN, _THAI))
    if kana + han > _MANY * letters:
        if kana > _SOME * (kana + han):
            return advice.format("Japanese", "'ja-mecab', 'flores200' or 'char'")
        return advice.format("Chinese", "'zh', 'flores200' or 'char'")
    if thai > _MANY * letters:
        return advice.format("Thai", "'flores200' or 'char'")
    return ""
