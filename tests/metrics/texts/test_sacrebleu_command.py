"""BLEU, chrF and TER against the sacrebleu program itself, run in a process of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from sacrebleu import BLEU, CHRF, TER

from pytest_lmgate.metrics.texts import (
    TextMetric,
    bleu,
    chrf,
    paired_bootstrap,
    row_scores,
    row_statistics,
    ter,
    text_score,
)

ALL = ("-m", "bleu", "chrf", "ter")

CASES = {
    "defaults, three references": ("english", (), (bleu(), chrf(), ter())),
    "defaults, one reference": ("single_reference", (), (bleu(), chrf(), ter())),
    "defaults, Korean": ("korean", (), (bleu(), chrf(), ter())),
    "intl, lower case, chrF++, normalized": (
        "english",
        ("--tokenize", "intl", "-lc", "-cw", "2", "--chrf-lowercase", "--ter-normalized"),
        (bleu(tokenize="intl", lowercase=True), chrf(word_order=2, lowercase=True), ter(normalized=True)),
    ),
    "zh, floor, eps, Asian": (
        "chinese",
        ("--tokenize", "zh", "-s", "floor", "--chrf-eps-smoothing", "--ter-normalized", "--ter-asian-support"),
        (
            bleu(tokenize="zh", smooth_method="floor"),
            chrf(eps_smoothing=True),
            ter(normalized=True, asian_support=True),
        ),
    ),
    "char, floor 0.25, white space, no punctuation": (
        "chinese",
        ("-tok", "char", "-s", "floor", "-sv", "0.25", "--chrf-whitespace", "--ter-no-punct", "--ter-asian-support"),
        (
            bleu(tokenize="char", smooth_method="floor", smooth_value=0.25),
            chrf(whitespace=True),
            ter(no_punct=True, asian_support=True),
        ),
    ),
    "none, add-k, other orders, case": (
        "single_reference",
        ("-tok", "none", "-s", "add-k", "-cc", "4", "-cw", "1", "--chrf-beta", "3", "--ter-case-sensitive"),
        (
            bleu(tokenize="none", smooth_method="add-k"),
            chrf(char_order=4, word_order=1, beta=3),
            ter(case_sensitive=True),
        ),
    ),
    "floor of 0, which smooths nothing": (
        "english",
        ("-s", "floor", "-sv", "0.0"),
        (bleu(smooth_method="floor", smooth_value=0.0), chrf(), ter()),
    ),
    "no smoothing": ("english", ("-s", "none"), (bleu(smooth_method="none"), chrf(), ter())),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_and_signatures_equal_the_program_at_ten_decimals(
    case: str, sacrebleu: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    name, arguments, metrics = CASES[case]
    corpus = request.getfixturevalue(name)
    printed = json.loads(sacrebleu(corpus, *ALL, *arguments))
    assert len(printed) == 3
    for metric, theirs in zip(metrics, printed, strict=True):
        score = text_score(metric, corpus.predictions, corpus.references)
        assert round(float(score), 10) == theirs["score"]
        assert score.signature == f"{theirs['name']}|{theirs['signature']}"
        assert score.direction == metric.direction
        assert score.n == len(corpus.predictions)
        assert score.unit == "row"


def test_precisions_and_brevity_penalty_equal_the_program(sacrebleu: Callable[..., str], english) -> None:
    theirs = json.loads(sacrebleu(english, "-m", "bleu"))["verbose_score"]
    details = text_score(bleu(), english.predictions, english.references).details
    precisions = "/".join(f"{precision:.1f}" for precision in details["precisions"])
    assert theirs.startswith(f"{precisions} (BP = {details['bp']:.3f} ")
    assert theirs.endswith(f"hyp_len = {details['sys_len']} ref_len = {details['ref_len']})")
    assert details["bp"] < 1


def test_intervals_are_those_of_the_programs_bootstrap(sacrebleu: Callable[..., str], english) -> None:
    for metric, theirs in zip(
        (bleu(), chrf(), ter()), json.loads(sacrebleu(english, *ALL, "--confidence")), strict=True
    ):
        score = text_score(metric, english.predictions, english.references)
        low, high = score.interval
        # It sums in single precision.
        assert (high - low) / 2 == pytest.approx(theirs["confidence_var"], rel=1e-5)
        assert low < score < high
        # An error that was divided by the root of the number of resamples would be 30 times too small.
        assert (high - low) / 2 == pytest.approx(1.96 * score.stderr, rel=0.1)
        assert f"bs:{score.details['resamples']}|seed:{score.details['seed']}" in theirs["signature"]


@pytest.mark.parametrize("name", ["english", "single_reference", "korean"])
def test_paired_p_values_equal_the_program(
    name: str, sacrebleu: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    corpus = request.getfixturevalue(name)
    printed = sacrebleu(corpus, *ALL, "--paired-bs", "-f", "text", systems=("predictions", "better"))
    theirs = re.findall(r"\(p = ([0-9.]+)\)", printed)
    ours = []
    for metric in (bleu(), chrf(), ter()):
        baseline, candidate = (
            row_statistics(metric, outputs, corpus.references) for outputs in (corpus.predictions, corpus.better)
        )
        ours.append(f"{paired_bootstrap(metric, baseline, candidate).p_value:.4f}")
    assert ours == theirs
    assert min(map(float, theirs)) < 0.9  # or the corpora would tell nothing


@pytest.mark.parametrize(
    ("name", "metric"), [("bleu", bleu()), ("chrf", chrf()), ("ter", ter())], ids=["bleu", "chrf", "ter"]
)
def test_a_rows_own_score_equals_the_programs_sentence_level(
    name: str, metric: TextMetric, sacrebleu: Callable[..., str], english
) -> None:
    printed = sacrebleu(english, "-m", name, "--sentence-level", "--score-only")
    scores = row_scores(metric, row_statistics(metric, english.predictions, english.references))
    assert [f"{score:.10f}" for score in scores] == printed.split()


@pytest.mark.parametrize(
    ("metric", "oracle"),
    [(bleu(), BLEU()), (chrf(word_order=2), CHRF(word_order=2)), (ter(), TER())],
    ids=["bleu", "chrf", "ter"],
)
def test_rows_may_differ_in_their_number_of_references(metric: TextMetric, oracle, english) -> None:
    references = [of_row[: 1 + row % 3] for row, of_row in enumerate(english.references)]
    streams = [[of_row[i] if i < len(of_row) else None for of_row in references] for i in range(3)]
    theirs = oracle.corpus_score(english.predictions, streams)
    score = text_score(metric, english.predictions, references)
    assert float(score) == theirs.score
    assert score.signature == f"{theirs.name}|{oracle.get_signature()}"
    assert "|nrefs:var|" in score.signature
    padded = [[*of_row, *[None] * (3 - len(of_row))] for of_row in references]
    assert float(text_score(metric, english.predictions, padded)) == float(score)
    assert text_score(metric, english.predictions, padded).signature == score.signature


def test_white_space_at_the_end_is_cut_as_the_program_cuts_it() -> None:
    for metric in (bleu(), chrf(whitespace=True), ter()):
        clean = text_score(metric, ["a small cat sat"], [["a small cat sits"]])
        assert float(text_score(metric, ["a small cat sat \n"], [["a small cat sits\t"]])) == float(clean)


def test_resampling_takes_the_rows_that_sacrebleu_takes(english) -> None:
    from sacrebleu.significance import _bootstrap_resample

    from pytest_lmgate.metrics.texts.bootstrap import resampled_scores, resampled_sums

    metric = bleu()
    statistics = row_statistics(metric, english.predictions, english.references)
    seed, theirs = _bootstrap_resample(statistics.tolist(), BLEU(), n_samples=200)
    assert seed == "12345"
    ours = resampled_scores(metric, resampled_sums(statistics, resamples=200))
    np.testing.assert_allclose(ours, [score.score for score in theirs], rtol=1e-6)
