"""Change each constant and convention of a definition in a copy of the code: the suite must fail for every one of them.

    python tests/mutants.py                # all, some minutes; `make mutants` does it with the pinned versions
    python tests/mutants.py rouge tango    # those whose name has one of these words

What a number means is written in docstrings, in docs/protocols.md, docs/noise.md and docs/texts.md. Here each such
choice is turned into its most likely mistake, and the tests that hold it are named. The copy lies alone in a temporary
folder, without the real models and oracle tables that some checkouts have beside them, so it is the golden values of
this repository that have to notice. Exits with 1 if a change passes its tests, or if a text to change is not there.
"""

# ruff: noqa: E501 - a table, a change in a line

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("pytest_lmgate", "tests", "benchmarks", "pyproject.toml")


class Mutant(NamedTuple):
    """A change that no longer keeps a definition.

    Attributes:
        name: What is changed, in words.
        file: The module, below ``pytest_lmgate``.
        old: What stands there, once or in several places.
        new: What takes its place, everywhere.
    """

    name: str
    file: str
    old: str
    new: str


class Definition(NamedTuple):
    """What is defined together, the tests that hold it, below ``tests``, and the changes that they must notice."""

    tests: Sequence[str]
    mutants: Sequence[Mutant]


_PROTOCOLS = "windows/protocols.py"
_REQUESTS = "settings/gate_options.py"
_MEANS = "stats/means.py"
_SAMPLE = "stats/sample.py"
_ROUGE = "metrics/rouge.py"
_PLACES = "windows/requests.py"

DEFINITIONS = (
    Definition(
        ("windows/test_windows.py", "windows/test_tokens.py", "settings/test_gate_options.py"),
        (
            Mutant("sliding: a window's first token is a target", _PROTOCOLS, "(previous, begin + 1)", "(previous, begin)"),
            Mutant("sliding: the last window", _PROTOCOLS, "-(-(total - length) // stride)", "(total - length) // stride"),
            Mutant("sliding: half of the context", _REQUESTS, "max(1, length // 2)", "max(1, length // 4)"),
            Mutant("disjoint: stride equal to the window", _REQUESTS, "has_stride else length)", "has_stride else length // 2)"),
            Mutant("chunks: the tail is dropped", _PROTOCOLS, "np.arange(total // size", "np.arange(-(-total // size)"),
            Mutant("bos-chunks: all L are scored", _PROTOCOLS, "begin + 1 - after_bos", "begin + 1"),
            Mutant("bos-chunks: a BOS before each", _PROTOCOLS, "_chunks(total, windowing, 1)", "_chunks(total, windowing, 0)"),
            Mutant("bos-chunks: a newline behind each row", _PROTOCOLS, 'lines = [f"{row}\\n"', 'lines = [f"{row}"'),
            Mutant("gptq: rows joined by two newlines", _PROTOCOLS, 'join="\\n\\n", special=True', 'join="\\n", special=True'),
            Mutant("gptq: the tokenizer's special tokens", _PROTOCOLS, 'join="\\n\\n", special=True)', 'join="\\n\\n", special=False)'),
            Mutant("gptq: chunks of 2048", _REQUESTS, "max_length=2048", "max_length=1024"),
            Mutant("gptq: the mean over chunks", _REQUESTS, 'averages=("window",)', 'averages=("token",)'),
            Mutant("llama.cpp: n_ctx 512", _REQUESTS, "max_length=512", "max_length=256"),
            Mutant("llama.cpp: targets from n_ctx // 2 + 1", _PROTOCOLS, "length // 2 + 1 - bos", "length // 2 - bos"),
            Mutant("llama.cpp: two chunks at least", _PROTOCOLS, "2 * length - tokenizer", "length - tokenizer"),
            Mutant("lm-eval: BOS, else EOS", _PROTOCOLS, "eos if tokenizer.bos is None else tokenizer.bos", "bos if tokenizer.eos is None else tokenizer.eos"),
            Mutant("lm-eval: a full context before later windows", _PROTOCOLS, "end - windowing.max_length - 1", "end - windowing.max_length"),
            Mutant("lm-eval: a prefix before the first window alone", _PROTOCOLS, "prefix[0] = 1", "prefix[:] = 1"),
            Mutant("lm-eval: add_bos_token is False by default", _REQUESTS, "add_bos_token: bool | None = False\n\n    def", "add_bos_token: bool | None = None\n\n    def"),
            Mutant("lm-eval: a text that begins with the BOS", _PROTOCOLS, "text.startswith(tokenizer.decode(prefix))", "False"),
            Mutant("lm-eval: add_bos_token True drops an EOS", _PROTOCOLS, "    if add_bos_token is None:\n        return tokenizer", "    if add_bos_token is not False:\n        return tokenizer"),
            Mutant("document: rows that are blank are skipped", "data/corpus.py", "if row.strip()]", "]"),
            Mutant("words by white space", "data/corpus.py", 'cls(len(re.split(r"\\s+", text)),', 'cls(len(re.split(" ", text)),'),
        ),
    ),
    Definition(
        ("data/test_corpus.py", "settings/test_file.py"),
        (Mutant("rows joined by two newlines", "data/corpus.py", 'join: str = "\\n\\n"', 'join: str = "\\n"'),),
    ),
    Definition(
        ("windows/test_places.py",),
        (
            Mutant("units: tokens of one character share it", _PLACES, "weights / holders", "weights"),
            Mutant("units: dropped spaces are of the token behind", _PLACES, "np.minimum(begins, before), before)", "begins, begins)"),
            Mutant("units: a word by the share of its characters", _PLACES, "np.repeat(1 / pieces.clip(1), pieces)", "1"),
            Mutant("units: only what is scored", _PLACES, "parts[here].sum(0)", "parts.sum(0)"),
        ),
    ),
    Definition(
        ("metrics/test_perplexity.py",),
        (
            Mutant("perplexity: bits", "metrics/likelihoods.py", "factor=per_unit / math.log(2) if bits", "factor=per_unit / math.log(10) if bits"),
            Mutant("perplexity: bytes", "metrics/likelihoods.py", '{"word": 0, "char": 1}.get(unit, 2)', '{"word": 0, "char": 1}.get(unit, 1)'),
            Mutant("perplexity: the 95% interval", "metrics/likelihoods.py", "noise.bounds(0.975)", "noise.bounds(0.95)"),
            Mutant("perplexity: llama.cpp's error", "metrics/likelihoods.py", "/ (len(nll) - 1))", "/ len(nll))"),
            Mutant("perplexity: means of windows weigh alike", "metrics/likelihoods.py", "self.window_sums(values) / windows", "self.window_sums(values)"),
        ),
    ),
    Definition(
        ("stats/test_means.py", "stats/test_paired.py", "stats/test_within.py", "metrics/test_perplexity.py"),
        (
            Mutant("noise: 64 blocks", _MEANS, "BLOCKS = 64", "BLOCKS = 32"),
            Mutant("noise: 8 blocks at least", _MEANS, "MIN_BLOCKS = 8", "MIN_BLOCKS = 4"),
            Mutant("noise: 6 cosines", _MEANS, "COSINES = 6", "COSINES = 8"),
            Mutant("noise: 512 clusters", _MEANS, "MAX_CLUSTERS = 512", "MAX_CLUSTERS = 256"),
            Mutant("noise: merged by a 508th", _MEANS, "// 508)", "// 512)"),
            Mutant("noise: middles of blocks", _MEANS, "(np.cumsum(n) - n / 2)", "np.cumsum(n)"),
            Mutant("noise: the cosines' sqrt(2)", _MEANS, "math.sqrt(2) * np.cos", "np.cos"),
            Mutant("noise: CR2's 1 - h", _MEANS, "residuals / np.sqrt(1 - h)\n    stderr", "residuals\n    stderr"),
            Mutant("noise: Bell-McCaffrey's 1 - h", _MEANS, "weight = 1 / np.sqrt(1 - n / total)", "weight = np.ones_like(n)"),
            Mutant("noise: Hall's k / 6", _MEANS, "(y - skewness / 6)", "(y - skewness / 3)"),
            Mutant("noise: Hall's 3 / k", _MEANS, "return 3 / skewness * (", "return 1 / skewness * ("),
            Mutant("noise: Hall's inverse", _MEANS, "skewness * x**2 / 3", "skewness * x**2 / 6"),
            Mutant("noise: the smallest skewness", _MEANS, "min(estimates, key=abs)", "max(estimates, key=abs)"),
            Mutant("noise: skewnesses that agree in sign", _MEANS, "if min(estimates) <= 0 <= max(estimates):", "if False:"),
            Mutant("noise: residuals over n^1/2 and n", _MEANS, "for q in (0.5, 1.0))", "for q in (0.5,))"),
            Mutant("noise: the wider of two bounds", _MEANS, "value + max(t, above) * stderr", "value + min(t, above) * stderr"),
            Mutant("verdict: power 80%", "stats/comparison.py", "POWER = 0.8", "POWER = 0.9"),
            Mutant("verdict: PASS at the tolerance itself", "stats/comparison.py", "upper <= tolerance.size", "upper < tolerance.size"),
            Mutant("verdict: FAIL only beyond it", "stats/comparison.py", "lower > tolerance.size", "lower >= tolerance.size"),
            Mutant("verdict: PASS at the gain itself", "stats/comparison.py", "gain <= lower", "gain < lower"),
            Mutant("verdict: FAIL of a gain", "stats/comparison.py", " or upper < gain", ""),
            Mutant("verdict: both sides' p-values", "stats/comparison.py", "max(p_pass, p_within)", "min(p_pass, p_within)"),
            Mutant("verdict: needed as the inverse square", "stats/comparison.py", "(visible / distance) ** 2)", "(visible / distance))"),
            Mutant("verdict: exp(d) - 1", "stats/paired.py", "math.log1p(tolerance.size)", "tolerance.size"),
        ),
    ),
    Definition(
        ("stats/test_bootstrap.py", "stats/test_paired.py", "metrics/test_texts.py"),
        (
            Mutant("bootstrap: 1,000 resamples", "stats/bootstrap.py", "RESAMPLES = 1000", "RESAMPLES = 999"),
            Mutant("bootstrap: seed 12345", "stats/bootstrap.py", "SEED = 12345", "SEED = 12346"),
            Mutant("bootstrap: sacrebleu's p-value", "stats/bootstrap.py", "(beyond + 1) / (RESAMPLES + 1)", "beyond / RESAMPLES"),
            Mutant("bootstrap: the 95% interval", "stats/bootstrap.py", "len(ordered) // 40", "len(ordered) // 20"),
            Mutant("bootstrap: clusters too few", "stats/bootstrap.py", "(self.clusters / (self.clusters - 1))", "(1.0)"),
        ),
    ),
    Definition(
        ("stats/test_proportions.py", "stats/test_paired.py"),
        (
            Mutant("tango: A = 2n", "stats/paired.py", "second, third = 2 * n,", "second, third = n,"),
            Mutant("tango: B", "stats/paired.py", "(2 * n - b + c) * loss", "(2 * n + b - c) * loss"),
            Mutant("tango: C", "stats/paired.py", "-c * loss * (1 - loss)", "-c * loss"),
            Mutant("tango: q", "stats/paired.py", "/ (2 * first))", "/ first)"),
            Mutant("tango: the variance", "stats/paired.py", "n * (2 * q + loss * (1 - loss))", "n * (2 * q)"),
            Mutant("tango: rows without a change", "stats/paired.py", "z**2 * (1 - tolerance) / tolerance", "z**2 / tolerance"),
            Mutant("wilson: z^2 / 2n", _SAMPLE, "p + z**2 / (2 * n)", "p + z**2 / (4 * n)"),
            Mutant("wilson: z^2 / 4n^2", _SAMPLE, "z**2 / (4 * n**2)", "z**2 / (2 * n**2)"),
            Mutant("clusters: a design effect of 1 at least", _SAMPLE, "max(least, stderr**2 / variance)", "stderr**2 / variance"),
            Mutant("clusters: one more that is dependent", _SAMPLE, "/ (clusters + 1)", "/ (clusters + 2)"),
        ),
    ),
    Definition(
        ("metrics/test_divergence.py",),
        (
            Mutant("divergence: the covariance's N - 1", "metrics/divergence.py", "(b - b.mean()))) / (len(a) - 1)", "(b - b.mean()))) / len(a)"),
            Mutant("divergence: u_r's - 2 cov", "metrics/divergence.py", "u_q**2 + u_p**2 - 2 * cov", "u_q**2 + u_p**2 - cov"),
            Mutant("divergence: sampled, lambda below 2", "metrics/divergence.py", "CONTROL_ERRORS = 2.0, 3.0", "CONTROL_ERRORS = 3.0, 3.0"),
            Mutant("divergence: sampled, -r + exp(r) - 1", "metrics/divergence.py", "-r + weight * np.expm1(r) if weight else -r", "-r"),
            Mutant("divergence: RMS of dp", "metrics/divergence.py", "rms = math.sqrt(squares.mean)", "rms = squares.mean"),
            Mutant("divergence: 99.9%", "metrics/divergence.py", '"99.9%": 99.9', '"99.9%": 99.99'),
        ),
    ),
    Definition(
        ("engines/transformers/test_logits.py",),
        (
            Mutant("divergence: KL(p || q)", "engines/logits.py", "reference.total.log() + candidate.total.log()", "candidate.total.log() + reference.total.log()"),
            Mutant("divergence: dp = q - p", "engines/logits.py", "log_q.exp() - log_p.exp()", "log_p.exp() - log_q.exp()"),
            Mutant("divergence: of equally likely tokens the lowest", "engines/logits.py", "higher.nonzero()[:, 0]", "(~(self._highest > logits.amax(-1))).nonzero()[:, 0]"),
        ),
    ),
    Definition(
        ("metrics/test_accuracy.py",),
        (
            Mutant("choices: acc_norm per character", "metrics/likelihoods.py", '"acc_norm": statistics.chars', '"acc_norm": statistics.utf8_bytes'),
            Mutant("choices: acc_bytes per byte", "metrics/likelihoods.py", '"acc_bytes": statistics.utf8_bytes', '"acc_bytes": statistics.chars'),
            Mutant("choices: of ties the first", "metrics/likelihoods.py", "ties[np.searchsorted(ties, begins)]", "ties[np.searchsorted(ties, begins + statistics.counts) - 1]"),
        ),
    ),
    Definition(
        ("metrics/test_rouge.py",),
        (
            Mutant("rouge: W's exponent", _ROUGE, "1.2", "1.3"),
            Mutant("rouge: W's inverse", _ROUGE, "math.pow(share, 1 / variant.exponent) for share in", "math.pow(share, 1.0) for share in"),
            Mutant("rouge: a run's weight as a whole", _ROUGE, "value = before + weights[length + 1]", "value = above[place - 1] + 1"),
            Mutant("rouge: F1", _ROUGE, "2 * precision * recall / total", "1.25 * precision * recall / total"),
            Mutant("rouge: S4 has at most four words between", _ROUGE, "reach = len(tokens) if gap is None else gap + 1", "reach = len(tokens) if gap is None else gap"),
            Mutant("rouge: S4's totals", _ROUGE, "min(gap + 1, length)", "min(gap, length)"),
            Mutant("rouge: SU adds unigrams", _ROUGE, "unigrams = slice(None)", "unigrams = slice(0)"),
            Mutant("rouge: counts are clipped", _ROUGE, "unmatched[item] -= 1", "pass"),
            Mutant("rouge: L of the whole text", _ROUGE, 'by_sentence = frozenset({"Lsum"})', 'by_sentence = frozenset({"L", "Lsum"})'),
            Mutant("rouge: Lsum's union by sentence", _ROUGE, 'by_sentence = frozenset({"Lsum"})', "by_sentence = frozenset()"),
            Mutant("rouge: the union is clipped", _ROUGE, "return clipped_overlap(union, chain.from_iterable(candidate))", "return len([*union])"),
            Mutant("rouge: the best reference by F", _ROUGE, "return self.scores(variant, overlap).fmeasure", "return self.scores(variant, overlap).recall"),
            Mutant("rouge: average pools counts", _ROUGE, "reduce(Overlap.plus, (overlap for overlap, _ in pairs)), -1", "pairs[0][0], -1"),
            Mutant("rouge: words over three letters are stemmed", _ROUGE, "_STEMMED_BEYOND = 3", "_STEMMED_BEYOND = 4"),
            Mutant("rouge: words of any script", _ROUGE, '    "unicode": _unicode,', '    "unicode": _rouge_score,'),
            Mutant("rouge: Han has a token for each letter", _ROUGE, r"\p{Han}", ""),
            Mutant("rouge-1.5.5: five digits", _ROUGE, "_PRINTED_DIGITS = 5", "_PRINTED_DIGITS = 4"),
            Mutant("rouge-1.5.5: F of rounded R and P", _ROUGE, "        precision, recall = round(precision, _PRINTED_DIGITS), round(recall, _PRINTED_DIGITS)\n", ""),
            Mutant("rouge-1.5.5: SU without the last unigram", _ROUGE, "unigrams = slice(-1)", "unigrams = slice(None)"),
            Mutant("rouge-1.5.5: W weighs the reference twice", _ROUGE, "math.pow(_weight_of_sentences(reference, exponent), exponent)", "_weight_of_sentences(reference, exponent)"),
            Mutant("rouge-1.5.5: the best reference by recall", _ROUGE, "return recall if variant.family in self.by_sentence else round(recall, _PRINTED_DIGITS)", "return super().rank(variant, overlap, reference)"),
            Mutant("rouge-1.5.5: L by sentence", _ROUGE, 'frozenset({"L", "Lsum", "W"})', 'frozenset({"Lsum", "W"})'),
            Mutant("rouge-1.5.5: stepwise weights of a run", _ROUGE, "weights[length + 1] - weights[length]", "1"),
        ),
    ),
    Definition(
        ("metrics/test_sacrebleu.py", "metrics/test_texts.py"),
        (
            Mutant("bleu: 4-grams", "metrics/sacrebleu_metrics.py", "max_ngram_order: int = 4,", "max_ngram_order: int = 3,"),
            Mutant("bleu: the tokenizer 13a", "metrics/sacrebleu_metrics.py", 'tokenize: str = "13a"', 'tokenize: str = "intl"'),
            Mutant("bleu: smoothing exp", "metrics/sacrebleu_metrics.py", 'smooth_method: str = "exp"', 'smooth_method: str = "floor"'),
            Mutant("chrf: six characters", "metrics/sacrebleu_metrics.py", "char_order: int = 6", "char_order: int = 5"),
            Mutant("chrf: no words", "metrics/sacrebleu_metrics.py", "word_order: int = 0", "word_order: int = 2"),
            Mutant("chrf: beta 2", "metrics/sacrebleu_metrics.py", "beta: float = 2", "beta: float = 1"),
        ),
    ),
    Definition(
        ("engines/transformers/test_masked.py",),
        (
            Mutant("masked: one mask at a time", "windows/requests.py", "ids[at[copy]] = mask", "ids[at] = mask"),
            Mutant("masked: special tokens are not scored", "windows/requests.py", "if token not in tokenizer.special]", "]"),
        ),
    ),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Try the changes whose name has one of the words; all without words."""
    chosen = [
        (definition.tests, mutant)
        for definition in DEFINITIONS
        for mutant in definition.mutants
        if not words or any(word in mutant.name for word in words)
    ]
    survived = []
    with tempfile.TemporaryDirectory(prefix="lmgate-mutants-") as folder:
        copy = Path(folder) / "copy"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        for tests in dict.fromkeys(tests for tests, _ in chosen):
            if not passes(copy, tests):
                print(f"the tests fail without a change: {' '.join(tests)}")
                return 1
        for tests, mutant in chosen:
            said = tried(copy, tests, mutant)
            print(f"{said:9} {mutant.name} ({mutant.file})", flush=True)
            survived += [mutant] * (said != "noticed")
    print(f"{len(chosen) - len(survived)} of {len(chosen)} changes were noticed")
    return 1 if survived else 0


def tried(copy: Path, tests: Sequence[str], mutant: Mutant) -> str:
    """Make a change, run its tests, and take it back; say whether they noticed."""
    file = copy / "pytest_lmgate" / mutant.file
    text = file.read_text(encoding="utf-8")
    if mutant.old not in text:
        return "NOT THERE"
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return "SURVIVED" if passes(copy, tests) else "noticed"
    finally:
        file.write_text(text, encoding="utf-8")


def passes(copy: Path, tests: Sequence[str]) -> bool:
    """Return whether tests pass on the copy; those that need what is beside a checkout skip."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in tests)],
        cwd=copy,
        env=_kept() | environment,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _kept() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if not name.startswith(("LMGATE_", "PYTEST_"))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
