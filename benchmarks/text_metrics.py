"""Text metrics against the programs that users would otherwise run, in one process, with the same texts.

    python benchmarks/text_metrics.py                       # synthetic text, the same for everybody
    python benchmarks/text_metrics.py --text some.txt       # sentences of a plain text file
    python benchmarks/text_metrics.py --check               # exit with 1 if a ratio is below what is promised

Needs rouge-score (``pip install -e .[dev]``). The two take turns on one thread; the best of the repeats counts, in
processor time, without garbage collection, as timeit does it; our cache of stems is emptied before each. Every score is
compared too: a fast wrong answer is an error.
"""

from __future__ import annotations

import argparse
import gc
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from pytest_lmgate.metrics.porter import nltk_stem
from pytest_lmgate.metrics.rouge import rouge

ENDINGS = ["", "", "", "s", "ed", "ing", "ly", "er", "ation", "ness", "ful", "ment", "y", "ies"]


class Pair(NamedTuple):
    """A candidate and its reference."""

    prediction: str
    reference: str


def synthetic_words(rng: random.Random) -> Iterator[str]:
    """Yield words whose ranks follow Zipf's law, of 3,000 stems with English endings."""
    syllables = [consonant + vowel for consonant in "bcdfglmnprstvw" for vowel in "aeiou"]
    stems = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) + rng.choice("bdklmnrst") for _ in range(3000)]
    weights = [1 / rank for rank in range(1, len(stems) + 1)]
    while True:
        yield from (stem + rng.choice(ENDINGS) for stem in rng.choices(stems, weights, k=1000))


def words_of(path: Path) -> Iterator[str]:
    """Yield the words of a text file, over and over."""
    words = re.findall(r"\w+", path.read_text(encoding="utf-8"))
    if not words:
        raise SystemExit(f"{path}: expected a text with words, got none")
    while True:
        yield from words


def rewritten(rng: random.Random, words: list[str], other: Iterator[str]) -> list[str]:
    """Return `words` as another author would put them: some dropped, some replaced, some neighbours swapped."""
    kept = [next(other) if rng.random() < 0.25 else word for word in words if rng.random() > 0.15]
    for place in range(len(kept) - 1):
        if rng.random() < 0.15:
            kept[place], kept[place + 1] = kept[place + 1], kept[place]
    return kept


def sentence_pairs(rng: random.Random, words: Iterator[str], count: int) -> list[Pair]:
    """Return pairs of sentences of 10 to 30 words."""
    pairs = []
    for _ in range(count):
        reference = [next(words) for _ in range(rng.randint(10, 30))]
        pairs.append(Pair(" ".join(rewritten(rng, reference, words)) + ".", " ".join(reference) + "."))
    return pairs


def long_pairs(rng: random.Random, words: Iterator[str], count: int, length: int, line: int) -> list[Pair]:
    """Return pairs of texts of `length` words, `line` words to a line, sharing few phrases."""
    return [Pair(*(in_lines(rng, [next(words) for _ in range(length)], line) for _ in range(2))) for _ in range(count)]


def in_lines(rng: random.Random, words: list[str], line: int) -> str:
    """Break a text into lines of about `line` words."""
    pieces, begin = [], 0
    while begin < len(words):
        end = begin + max(1, round(line * rng.uniform(0.5, 1.5)))
        pieces.append(" ".join(words[begin:end]) + ".")
        begin = end
    return "\n".join(pieces)


def theirs(pairs: list[Pair], variants: list[str], *, stemmer: bool) -> dict[str, list[float]]:
    """Return F of each pair by rouge-score."""
    scorer = RougeScorer(variants, use_stemmer=stemmer)
    rows = [scorer.score(pair.reference, pair.prediction) for pair in pairs]
    return {variant: [row[variant].fmeasure for row in rows] for variant in variants}


def ours(pairs: list[Pair], variants: list[str], *, stemmer: bool) -> dict[str, list[float]]:
    """Return the same by this package."""
    nltk_stem.cache_clear()
    predictions = [pair.prediction for pair in pairs]
    references = [[pair.reference] for pair in pairs]
    metrics = {variant: rouge(variant, stemmer=stemmer, tokenizer="rouge-score") for variant in variants}
    return {
        variant: np.asarray(metric.statistics(predictions, references, []))[:, 0].tolist()
        for variant, metric in metrics.items()
    }


def timed(run: Callable[[], dict[str, list[float]]]) -> tuple[float, dict[str, list[float]]]:
    """Return the seconds of processor time that `run` takes, and its result."""
    gc.collect()
    gc.disable()
    begin = time.process_time()
    result = run()
    seconds = time.process_time() - begin
    gc.enable()
    return seconds, result


def compare(
    title: str, pairs: list[Pair], variants: list[str], *, stemmer: bool, repeats: int, promised: int | None
) -> bool:
    """Print one line of the table; return whether the promised ratio is kept."""
    best_theirs = best_ours = float("inf")
    for _ in range(repeats):
        seconds, wanted = timed(lambda: theirs(pairs, variants, stemmer=stemmer))
        best_theirs = min(best_theirs, seconds)
        seconds, found = timed(lambda: ours(pairs, variants, stemmer=stemmer))
        best_ours = min(best_ours, seconds)
    worst = max(abs(a - b) for variant in variants for a, b in zip(wanted[variant], found[variant], strict=True))
    if worst > 1e-9:
        raise SystemExit(f"{title}: scores differ by {worst}")
    ratio = best_theirs / best_ours
    print(
        f"{title:<42} {1e3 * best_theirs / len(pairs):>12.3f} {1e3 * best_ours / len(pairs):>9.3f} {ratio:>7.0f}x "
        f"{f'{promised}x' if promised else '':>9}"
    )
    return promised is None or ratio >= promised


def main() -> int:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description="ROUGE against rouge-score, milliseconds for each pair.")
    parser.add_argument("--text", type=Path, help="plain text file to take words from, instead of synthetic text")
    parser.add_argument("--sentences", type=int, default=1000, help="sentence pairs (default: %(default)s)")
    parser.add_argument("--long", type=int, default=10, help="pairs of long texts (default: %(default)s)")
    parser.add_argument("--words", type=int, default=800, help="words of a long text (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many counts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=12345, help="of texts and edits (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a ratio is below the promised one")
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    words = words_of(arguments.text) if arguments.text else synthetic_words(rng)
    sentences = sentence_pairs(rng, words, arguments.sentences)
    one_line = long_pairs(rng, words, arguments.long, arguments.words, 2 * arguments.words)
    lines = long_pairs(rng, words, arguments.long, arguments.words, 20)
    text = f"words of {arguments.text.name}" if arguments.text else "synthetic words"
    print(f"rouge-score {version('rouge-score')}, Python {sys.version.split()[0]}, {text}, seed {arguments.seed}")
    print(f"{'milliseconds for each pair':<42} {'rouge-score':>12} {'ours':>9} {'ratio':>8} {'promised':>9}")

    kept = []
    for variants in (["rouge1"], ["rouge2"], ["rougeL"], ["rougeLsum"], ["rouge1", "rouge2", "rougeL", "rougeLsum"]):
        title = f"{variants[0] if len(variants) == 1 else 'all four'}, sentences, stemmed"
        kept.append(compare(title, sentences, variants, stemmer=True, repeats=arguments.repeats, promised=7))
    for stemmer in (False, True):
        for variant in ("rougeL", "rougeLsum"):
            for layout, pairs in (("one line", one_line), ("20-word lines", lines)):
                title = f"{variant}, {arguments.words} words, {layout}{', stemmed' if stemmer else ''}"
                promised = None if stemmer else 5 if variant == "rougeLsum" and layout != "one line" else 100
                kept.append(
                    compare(title, pairs, [variant], stemmer=stemmer, repeats=arguments.repeats, promised=promised)
                )
    return 1 if arguments.check and not all(kept) else 0


if __name__ == "__main__":
    sys.exit(main())
