r"""ROUGE (Lin 2004) as a text metric: the mean over rows of F, with precision and recall kept.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", sections 2 to 5. `Lin2004` is the paper: N, L and
Lsum equal rouge-score's. Where the paper leaves a choice, F weighs precision and recall alike; a text is one sequence
of words, except for Lsum; the union of Lsum is clipped by word counts, as both programs do; SU counts each unigram
once, which is what the paper's begin-of-sentence marker comes to with any gap.

`Rouge155` is the program, ROUGE-1.5.5.pl of 2005, quirks included, so that tables published with it can be checked: its
L is the union over sentences, clipped; its W is too, weighs the length of the reference twice, and gives the weight of
a run to what clipping left of it; its SU leaves the last word's unigram out; R and P are rounded to five decimals
before F is made of them; the best of several references has the best recall.

A tokenizer is any function from a string to a list of strings:

- ``unicode``: letters and digits of any script, lower case. Words are runs of letters, digits and their combining
  marks, so that Devanagari keeps its vowel signs and a Korean eojeol stays one token; scripts written without spaces
  between words (Han, Kana, Bopomofo, and those whose lines break by dictionary: Thai, Lao, Khmer, Burmese, ...) give
  one token for each letter with its marks. Canonically equivalent texts give equal tokens; invisible characters (soft
  hyphen, joiners, variation selectors) are dropped. On ASCII it equals ``rouge-score``.
- ``rouge-score``: what Google's rouge-score 0.1.2 does: ``[a-z0-9]+`` of the lower-cased text.
- ``rouge-1.5.5``: what the Perl program does to bytes: as above, with ASCII's lower case alone.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, chain
from operator import add
from typing import Any, NamedTuple, TypeVar

import numpy as np
import regex
from rapidfuzz.distance import LCSseq

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ConfigError, MetricInputError, nearest
from pytest_lmgate.metrics.porter import nltk_stem, program_stem
from pytest_lmgate.metrics.texts import References, TextMetric
from pytest_lmgate.version import __version__

T = TypeVar("T")
Tokenizer = Callable[[str], Sequence[str]]
Sentences = Sequence[Sequence[str]]
"""The tokens of each sentence of a text."""

_STEMMED_BEYOND = 3  # characters; ROUGE-1.5.5 and rouge-score leave shorter words alone
_ASCII_LOWER = re.compile(r"[a-z0-9]+")
_ASCII_TABLE = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
_ASCII = re.compile(r"[A-Za-z0-9]+")
# A zero width space separates words where others are invisible: it is not in this set.
_INVISIBLE = regex.compile(r"(?V1)[\p{Default_Ignorable_Code_Point}--\u200B]+")
_UNSPACED = r"[[\p{L}\p{N}]&&[\p{Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Bopomofo}\p{Line_Break=Complex_Context}]]"
_SPACED = rf"[[\p{{L}}\p{{N}}]--{_UNSPACED}]"
_WORD = regex.compile(rf"(?V1){_UNSPACED}\p{{M}}*|{_SPACED}[{_SPACED}\p{{M}}]*")
_PRINTED_DIGITS = 5
_NAME = re.compile(
    r"rouge(?:(?P<order>[1-9]\d*)|(?P<whole>Lsum|L)|W(?P<exponent>\d+(\.\d+)?)?|(?P<skip>SU|S)(?P<gap>\d+)?)", re.ASCII
)
_USUAL = ("rouge1", "rouge2", "rouge3", "rougeL", "rougeLsum", "rougeW", "rougeS", "rougeS4", "rougeSU", "rougeSU4")


def rouge(
    variant: str = "rougeL",
    stemmer: bool | Callable[[str], str] = False,
    multi_reference: str = "best",
    tokenizer: str | Callable[[str], Sequence[str]] | None = None,
    convention: str = "lin2004",
) -> TextMetric:
    """Make ROUGE, scale 0-1; its name is the variant's.

    Args:
        variant: ``rouge1``, ``rouge2``, ...: n-grams. ``rougeL``: longest common subsequence of the whole text.
            ``rougeLsum``: its union over newline-separated sentences. ``rougeW``: weighted, exponent 1.2;
            ``rougeW<exponent>``. ``rougeS``: skip-bigrams with any gap; ``rougeS<gap>``. ``rougeSU``: the same and
            unigrams; ``rougeSU<gap>``.
        stemmer: Stem words of more than three characters with the convention's variant of Porter's stemmer, or with a
            given function.
        multi_reference: ``best`` takes the reference with the best F (``rouge-1.5.5``: the best recall), the first of
            equals; ``average`` pools the counts of all references.
        tokenizer: ``unicode``, ``rouge-score``, ``rouge-1.5.5`` or a function from a text to tokens; by default the
            convention's, which is ``unicode`` for ``lin2004``.
        convention: ``lin2004``, the paper (on N, L and Lsum equal to rouge-score 0.1.2, given its tokenizer); or
            ``rouge-1.5.5``, the program with its quirks and its rounding, in which ``rougeL`` and ``rougeLsum`` are the
            same.

    Returns:
        Statistics ``[F, precision, recall, 1]``. Details: ``f``, ``precision`` and ``recall``, means over rows.
    """
    parsed, rules = Variant.parse(variant), _named("convention", convention, _CONVENTIONS)
    if multi_reference not in ("best", "average"):
        raise ConfigError(f"unknown multi_reference {multi_reference!r}: expected 'best' or 'average'")
    if not (callable(stemmer) or isinstance(stemmer, bool)):
        raise ConfigError(f"stemmer: expected True, False or a function from word to stem, got {stemmer!r}")
    tokenize = tokenizer if callable(tokenizer) else _named("tokenizer", tokenizer or rules.tokenizer, TOKENIZERS)
    stem = stemmer if callable(stemmer) else rules.stem if stemmer else None
    tokenizer_name = _custom(tokenizer) if callable(tokenizer) else tokenizer or rules.tokenizer
    stemmer_name = _custom(stemmer) if callable(stemmer) else rules.stemmer_name if stemmer else "no"
    signature = (
        f"{variant}|references:{multi_reference}|tokenizer:{tokenizer_name}"
        f"|stemmer:{stemmer_name}|convention:{convention}|version:{__version__}"
    )
    scorer = RowScorer(parsed, rules, multi_reference == "average", tokenize, stem)
    return TextMetric(variant, "higher", signature, scorer.statistics, details=_details, lowest=0, highest=1)


def _details(sums: Floats) -> dict[str, float]:
    f, precision, recall, rows = sums.tolist()
    return {"f": f / rows, "precision": precision / rows, "recall": recall / rows}


@dataclass(frozen=True)
class Variant:
    """What is counted."""

    # ``N`` n-grams, ``L`` longest common subsequence of the whole text, ``Lsum`` union of subsequences over newline-
    # separated sentences, ``W`` weighted subsequence, ``S`` skip-bigrams, ``SU`` these and unigrams
    family: str
    order: int = 0  # words in an n-gram; 0 for the other families
    gap: int | None = None  # maximum number of words between the two of a skip-bigram; None for any
    exponent: float = 1.2  # exponent of the weight ``f(k) = k ** exponent`` of k consecutive matches in W

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Return the variant called `name`, or raise ConfigError; `rouge` says which there are."""
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match and (match["exponent"] is None or float(match["exponent"]) >= 1):
            if match["order"]:
                return cls("N", order=int(match["order"]))
            if match["skip"]:
                return cls(match["skip"], gap=int(match["gap"]) if match["gap"] else None)
            return cls(match["whole"] or "W", exponent=float(match["exponent"] or 1.2))
        raise ConfigError(
            f"unknown ROUGE variant {name!r}{nearest(str(name), _USUAL)}: expected rouge1, rouge2, ... (n-grams), "
            "rougeL, rougeLsum, rougeW or rougeW<exponent, at least 1>, rougeS or rougeS<gap>, rougeSU or rougeSU<gap>"
        )


class Overlap(NamedTuple):
    """Counts shared by a candidate and a reference, and of each; or their sums over references.

    N-grams, words of a subsequence, skip-bigrams, or the weight of a subsequence.
    """

    match: float
    candidate: float
    reference: float

    def plus(self, other: Overlap) -> Overlap:
        return Overlap(*(a + b for a, b in zip(self, other, strict=True)))


class Scores(NamedTuple):
    """Precision, recall and their harmonic mean, each in 0-1."""

    precision: float
    recall: float
    fmeasure: float


class Lin2004:
    """The paper's definitions; the reference with the best F counts, as in rouge-score."""

    name = "lin2004"
    tokenizer = "unicode"
    stem = staticmethod(nltk_stem)
    stemmer_name = "porter-nltk"
    by_sentence = frozenset({"Lsum"})  # families that split sentences at newlines; for others a text is one sentence
    unigrams = slice(None)  # the words that SU counts

    def overlap(self, variant: Variant, candidate: Sentences, reference: Sentences) -> Overlap:
        if variant.family == "W":
            return self._weighted(variant.exponent, candidate, reference)
        if variant.family in self.by_sentence:
            return Overlap(shared_in_union(candidate, reference), sum(map(len, candidate)), sum(map(len, reference)))
        (left,), (right,) = candidate, reference
        if variant.family == "N":
            totals = (max(0, len(tokens) - variant.order + 1) for tokens in (left, right))
            return Overlap(shared_ngrams(left, right, variant.order), *totals)
        if variant.family == "L":
            return Overlap(LCSseq.similarity(left, right), len(left), len(right))
        totals = (total_skip_bigrams(len(tokens), variant.gap) for tokens in (left, right))
        skipped = Overlap(shared_skip_bigrams(left, right, variant.gap), *totals)
        if variant.family == "S":
            return skipped
        left, right = left[self.unigrams], right[self.unigrams]
        return skipped.plus(Overlap(shared_ngrams(left, right, 1), len(left), len(right)))

    def scores(self, variant: Variant, overlap: Overlap) -> Scores:
        """Return the scores for these counts; 0 if nothing was counted."""
        precision = overlap.match / overlap.candidate if overlap.candidate else 0.0
        recall = overlap.match / overlap.reference if overlap.reference else 0.0
        if variant.family == "W":
            precision, recall = (math.pow(share, 1 / variant.exponent) for share in (precision, recall))
        return self._with_f(precision, recall)

    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return the sort key of the best reference; the first wins ties."""
        return self.scores(variant, overlap).fmeasure

    def _weighted(self, exponent: float, candidate: Sentences, reference: Sentences) -> Overlap:
        (left,), (right,) = candidate, reference
        match = weighted_table(left, right, exponent)[-1][-1]
        return Overlap(match, math.pow(len(left), exponent), math.pow(len(right), exponent))

    def _with_f(self, precision: float, recall: float) -> Scores:
        total = precision + recall
        return Scores(precision, recall, 2 * precision * recall / total if total else 0.0)


class Rouge155(Lin2004):
    """The output of the program for each evaluation (``-a -f B``, or ``-f A`` for pooled references)."""

    name = "rouge-1.5.5"
    tokenizer = "rouge-1.5.5"
    stem = staticmethod(program_stem)
    stemmer_name = "porter-rouge-1.5.5"
    by_sentence = frozenset({"L", "Lsum", "W"})
    unigrams = slice(-1)

    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return recall, rounded for n-grams and skip-bigrams only; for W, with the reference weighted once."""
        is_weighted = variant.family == "W"
        total = _weight_of_sentences(reference, variant.exponent) if is_weighted else overlap.reference
        recall = overlap.match / total if total else 0.0
        if is_weighted:
            return math.pow(recall, 1 / variant.exponent)
        return recall if variant.family in self.by_sentence else round(recall, _PRINTED_DIGITS)

    def _weighted(self, exponent: float, candidate: Sentences, reference: Sentences) -> Overlap:
        return Overlap(
            _weight_of_union(candidate, reference, exponent),
            math.pow(sum(map(len, candidate)), exponent),
            math.pow(_weight_of_sentences(reference, exponent), exponent),
        )

    def _with_f(self, precision: float, recall: float) -> Scores:
        precision, recall = round(precision, _PRINTED_DIGITS), round(recall, _PRINTED_DIGITS)
        mean = 0.5 * precision + 0.5 * recall
        return Scores(precision, recall, round(precision * recall / mean, _PRINTED_DIGITS) if mean else 0.0)


_CONVENTIONS: dict[str, Lin2004] = {convention.name: convention for convention in (Lin2004(), Rouge155())}


@dataclass(frozen=True)
class RowScorer:
    """What `rouge` was asked for, checked; a row at a time."""

    variant: Variant
    convention: Lin2004
    pools: bool
    tokenize: Tokenizer
    stem: Callable[[str], str] | None

    def statistics(self, predictions: Sequence[str], references: References, _: Sequence[Mapping[str, Any]]) -> Floats:
        found = [self.row(*pair) for pair in zip(predictions, references, strict=True)]
        # Rows of which every text has a score of 0, also the reference itself.
        lost = [
            row
            for row, (_, overlap, _) in enumerate(found)
            if not overlap.reference and not any(self.row(text, [text])[1].reference for text in references[row])
        ]
        for row in lost:
            if not any(chain.from_iterable(map(self._read, references[row]))):
                raise MetricInputError(
                    f"ROUGE: row {row}: the tokenizer finds no word in its reference {references[row][0]!r:.80}, of "
                    "which every text has a score of 0: leave the row out, or choose another tokenizer"
                )
        if found and len(lost) == len(found):
            raise MetricInputError(
                "ROUGE: every reference is shorter than what the variant counts, so that every text has a score of 0: "
                "choose rouge1 or rougeL"
            )
        return np.array([(score.fmeasure, score.precision, score.recall, 1.0) for score, _, _ in found])

    def row(self, prediction: str, references: Sequence[str]) -> tuple[Scores, Overlap, int]:
        """Return scores, counts, and the index of the best reference or -1 for all; an empty prediction scores 0."""
        rules, variant, candidate = self.convention, self.variant, self._read(prediction)
        sides = map(self._read, references)
        pairs = [(rules.overlap(variant, candidate, reference), reference) for reference in sides]
        if self.pools:
            overlap, chosen = reduce(Overlap.plus, (overlap for overlap, _ in pairs)), -1
        else:
            ranks = [rules.rank(variant, *pair) for pair in pairs] if len(pairs) > 1 else [0.0]
            chosen = ranks.index(max(ranks))
            overlap = pairs[chosen][0]
        return rules.scores(variant, overlap), overlap, chosen

    def _read(self, text: str) -> Sentences:
        """Return the tokens of each sentence; a text is one sentence unless the family is by sentence."""
        stem, sentences = self.stem, []
        for line in text.split("\n") if self.variant.family in self.convention.by_sentence else [text]:
            tokens = self.tokenize(line)
            if isinstance(tokens, str):
                raise MetricInputError(f"tokenizer {self.tokenize!r}: expected a list of strings, got {tokens!r}")
            if stem is not None:
                tokens = [stem(token) if len(token) > _STEMMED_BEYOND else token for token in tokens]
            sentences.append(list(tokens))
        return sentences


def _rouge_score(text: str) -> list[str]:
    if text.isascii():  # the same, twice as fast
        return text.translate(_ASCII_TABLE).split()
    return _ASCII_LOWER.findall(text.lower())


def _unicode(text: str) -> list[str]:
    if text.isascii():
        return _rouge_score(text)
    return [*_WORD.findall(unicodedata.normalize("NFC", _INVISIBLE.sub("", text.lower())))]


TOKENIZERS: dict[str, Tokenizer] = {
    "unicode": _unicode,
    "rouge-score": _rouge_score,
    "rouge-1.5.5": lambda text: [token.lower() for token in _ASCII.findall(text)],
}


def _named(what: str, name: object, known: dict[str, T]) -> T:
    if isinstance(name, str) and name in known:
        return known[name]
    raise ConfigError(
        f"unknown {what} {name!r}{nearest(str(name), known)}: expected one of {', '.join(map(repr, known))}"
    )


def _custom(function: Callable[..., object]) -> str:
    """Name a user's function in a signature, with a digest of its source, because all lambdas have one name."""
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None)  # methods of built-in types have none
    name = f"{module}.{named.__qualname__}" if module else named.__qualname__
    try:
        source = inspect.getsource(named).strip()
    except (OSError, TypeError):  # built in, or typed at a prompt
        return name
    return f"{name}@{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def shared_ngrams(candidate: Sequence[str], reference: Sequence[str], order: int) -> int:
    if order == 1:
        return clipped_overlap(candidate, reference)
    runs = [zip(*(tokens[start:] for start in range(order)), strict=False) for tokens in (candidate, reference)]
    return clipped_overlap(*runs)


def clipped_overlap(left: Iterable[Hashable], right: Iterable[Hashable]) -> int:
    unmatched: dict[Hashable, int] = {}
    for item in left:
        unmatched[item] = unmatched.get(item, 0) + 1
    shared = 0
    for item in right:
        if unmatched.get(item):
            unmatched[item] -= 1
            shared += 1
    return shared


def shared_skip_bigrams(candidate: Sequence[str], reference: Sequence[str], gap: int | None) -> int:
    """Count shared skip-bigrams, clipped; `gap` None means any gap.

    One first word at a time: memory stays linear, time is that of listing all pairs.
    """
    in_candidate, in_reference = _positions(candidate), _positions(reference)

    def followers(tokens: Sequence[str], positions: Sequence[int]) -> chain[str]:
        reach = len(tokens) if gap is None else gap + 1
        return chain.from_iterable(tokens[position + 1 : position + 1 + reach] for position in positions)

    return sum(
        clipped_overlap(followers(candidate, here), followers(reference, in_reference[first]))
        for first, here in in_candidate.items()
        if first in in_reference
    )


def total_skip_bigrams(length: int, gap: int | None) -> int:
    reach = length if gap is None else min(gap + 1, length)
    return reach * length - reach * (reach + 1) // 2


def _positions(tokens: Sequence[str]) -> dict[str, list[int]]:
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, token in enumerate(tokens):
        positions[token].append(position)
    return positions


def shared_in_union(candidate: Sentences, reference: Sentences) -> int:
    """Return the size of the union longest common subsequence of two texts of sentences.

    For each sentence of the reference, the words in its longest common subsequence with any sentence of the candidate;
    over all sentences, a word counts no more often than the candidate holds it, as ROUGE-1.5.5 clips.
    """
    if len(candidate) == len(reference) == 1:
        return LCSseq.similarity(candidate[0], reference[0])  # nothing to unite, nothing to clip
    union = (sentence[place] for sentence in reference for place in union_of_subsequences(candidate, sentence, 1.0))
    return clipped_overlap(union, chain.from_iterable(candidate))


def union_of_subsequences(candidate: Sentences, sentence: Sequence[str], exponent: float) -> set[int]:
    """Return the positions of a reference's sentence that are in its subsequence with some sentence of the candidate.

    A longest common subsequence is rarely unique, and a union depends on which one is taken. ROUGE-1.5.5 and
    rouge-score take the same: from the ends of both texts, a match is taken if there is one; else one step back in
    the reference if that loses nothing, else one in the candidate.
    """
    union: set[int] = set()
    for other in candidate:
        other_words = set(other)
        # Words that the other sentence lacks never stop the walk, but they end a weighted run.
        places = [place for place, word in enumerate(sentence) if exponent != 1 or word in other_words]
        words = [sentence[place] for place in places]
        table = weighted_table(other, words, exponent, stepwise=True)
        row, column = len(words), len(other)
        while row and column:
            if words[row - 1] == other[column - 1]:
                row -= 1
                column -= 1
                union.add(places[row])
            elif table[row - 1][column] >= table[row][column - 1]:
                row -= 1
            else:
                column -= 1
    return union


def weighted_table(
    candidate: Sequence[str], reference: Sequence[str], exponent: float, *, stepwise: bool = False
) -> list[list[float]]:
    """Return the dynamic programming table of Lin 2004, section 4, shape ``[reference + 1, candidate + 1]``.

    If words match, a cell extends the run on its diagonal; otherwise it is the larger of its upper and left neighbours.
    The last cell is the weighted length; because a match is always taken, a larger one may exist. A run of k matches
    weighs ``f(k) = k ** exponent``. With `stepwise`, each match adds ``f(k+1) - f(k)``, rounding each time, as in
    ROUGE-1.5.5; else f of the whole run is added to the sum before it, so that the weight of identical texts is exact.
    """
    weights = [math.pow(k, exponent) for k in range(len(reference) + 1)]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(candidate, start=1):
        places[word].append(place)
    row = [0.0] * (len(candidate) + 1)
    table = [row]
    runs: dict[int, tuple[int, float]] = {}  # end of a run of matches -> its length, what stood before it
    for word in reference:
        above, runs_above = row, runs
        row, runs = [], {}
        begin, value = 0, 0.0
        for place in places.get(word, ()):
            row.extend(accumulate(above[begin + 1 : place], max, initial=value))
            length, before = runs_above.get(place - 1, (0, above[place - 1]))
            runs[place] = length + 1, before
            if stepwise:
                value = above[place - 1] + weights[length + 1] - weights[length]
            else:
                value = before + weights[length + 1]
            begin = place
        row.extend(accumulate(above[begin + 1 :], max, initial=value))
        table.append(row)
    return table


def _weight_of_sentences(sentences: Sentences, exponent: float) -> float:
    # Not sum(), which compensates rounding from Python 3.12 on.
    return reduce(add, (math.pow(len(sentence), exponent) for sentence in sentences), 0.0)


def _weight_of_union(candidate: Sentences, reference: Sentences, exponent: float) -> float:
    """Weigh the runs in the union of weighted subsequences, sentence by sentence of the reference.

    A clipped word neither lengthens nor ends a run. If the last word of a run is clipped, the run continues at the next
    word of the union, or is lost at the end of the sentence.
    """
    left_in_candidate = Counter(chain.from_iterable(candidate))
    total = 0.0
    for sentence in reference:
        union = union_of_subsequences(candidate, sentence, exponent)
        run = 0
        for position in sorted(union):
            word = sentence[position]
            if not left_in_candidate[word]:
                continue
            left_in_candidate[word] -= 1
            run += 1
            if position + 1 not in union:
                total += math.pow(run, exponent)
                run = 0
    return total
