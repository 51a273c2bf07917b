"""BLEU, chrF and TER: against the sacrebleu program in a process of its own, and their options."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import BLEU, CHRF, TER

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.sacrebleu_metrics import bleu, chrf, ter, tokenizer_hint
from pytest_lmgate.metrics.texts import TextMetric, exact, row_scores, text_score
from pytest_lmgate.stats.bootstrap import paired_bootstrap
from tests.metrics.conftest import corpus

ALL = ("-m", "bleu", "chrf", "ter")

CASES = {
    "defaults, three references": ("english", (), (bleu(), chrf(), ter())),
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
    "none, add-k, other orders, case": (
        "single",
        ("-tok", "none", "-s", "add-k", "-cc", "4", "-cw", "1", "--chrf-beta", "3", "--ter-case-sensitive"),
        (
            bleu(tokenize="none", smooth_method="add-k"),
            chrf(char_order=4, word_order=1, beta=3),
            ter(case_sensitive=True),
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_and_signatures_equal_the_program_at_ten_decimals(case: str, sacrebleu: Callable[..., str]) -> None:
    name, arguments, metrics = CASES[case]
    texts = corpus(name)
    printed = json.loads(sacrebleu(texts, *ALL, *arguments))
    assert len(printed) == 3
    for metric, theirs in zip(metrics, printed, strict=True):
        score = text_score(metric, texts.predictions, texts.references)
        assert round(float(score), 10) == theirs["score"]
        assert score.signature == f"{theirs['name']}|{theirs['signature']}"
        assert (score.n, score.unit) == (len(texts.predictions), "row")


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


def test_paired_p_values_equal_the_program(sacrebleu: Callable[..., str]) -> None:
    korean = corpus("korean")
    printed = sacrebleu(korean, *ALL, "--paired-bs", "-f", "text", systems=("predictions", "better"))
    theirs = re.findall(r"\(p = ([0-9.]+)\)", printed)
    ours = []
    for metric in (bleu(), chrf(), ter()):
        baseline, candidate = (
            metric.statistics(outputs, korean.references, []) for outputs in (korean.predictions, korean.better)
        )
        ours.append(f"{paired_bootstrap(metric, baseline, candidate).p_value:.4f}")
    assert ours == theirs
    assert min(map(float, theirs)) < 0.9  # or the corpora would tell nothing


@pytest.mark.parametrize("metric", [bleu(), chrf(), ter()], ids=lambda metric: metric.name)
def test_a_rows_own_score_equals_the_programs_sentence_level(
    metric: TextMetric, sacrebleu: Callable[..., str], english
) -> None:
    printed = sacrebleu(english, "-m", metric.name, "--sentence-level", "--score-only")
    scores = row_scores(metric, metric.statistics(english.predictions, english.references, []))
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
    padded = text_score(metric, english.predictions, [[*row, *[None] * (3 - len(row))] for row in references])
    assert (float(padded), padded.signature) == (float(score), score.signature)


# Options of the metrics: wrong ones are told at once, and what changes a number is in its signature.


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (bleu, {"max_ngram_order": 0}, "max_ngram_order to be a whole number from 1, got 0"),
        (bleu, {"max_ngram_order": True}, "max_ngram_order to be a whole number from 1, got True"),
        (bleu, {"tokenize": "13"}, r"tokenize to be one of 13a, .*, zh; got '13' \(did you mean '13a'\?\)"),
        (bleu, {"smooth_method": "flor"}, r"smooth_method to be one of add-k, exp, floor, none; .*'floor'\?"),
        (bleu, {"smooth_value": 0.1}, "smooth_value needs smooth_method 'floor' or 'add-k', got 'exp'"),
        (bleu, {"smooth_value": 0, "smooth_method": "add-k"}, "smooth_value to be a number above 0, got 0"),
        (bleu, {"smooth_value": math.nan, "smooth_method": "floor"}, "smooth_value to be 0 or .* above 0, got nan"),
        (bleu, {"lowercase": "no"}, "lowercase to be true or false, got 'no'"),
        (bleu, {"effective_order": 1}, "effective_order to be true or false, got 1"),
        (chrf, {"char_order": -1}, "char_order to be a whole number from 0, got -1"),
        (chrf, {"word_order": "2"}, "word_order to be a whole number from 0, got '2'"),
        (chrf, {"char_order": 0}, "char_order or word_order above 0, got 0 for both"),
        (chrf, {"beta": -2}, "beta to be a number above 0, got -2"),
        (ter, {"normalized": "yes"}, "normalized to be true or false, got 'yes'"),
        (exact, {"ignore_case": "yes"}, "ignore_case to be true or false, got 'yes'"),
    ],
)
def test_wrong_options_are_told_with_what_is_right(
    make: Callable[..., TextMetric], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_a_tokenizer_that_is_not_installed_names_its_extra(language: str) -> None:
    with pytest.raises(ConfigError, match=rf"tokenize='{language}-mecab': .*pip install sacrebleu\[{language}\]"):
        bleu(tokenize=f"{language}-mecab")


def test_a_tokenizers_model_is_never_fetched_from_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no file .*flores200sacrebleuspm; .*BLEU\(tokenize='flores200'\)"):
        bleu(tokenize="flores200")
    assert not list(tmp_path.iterdir())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "flores200sacrebleuspm").write_text("no model of SentencePiece")
    with pytest.raises((ConfigError, RuntimeError, OSError)) as failed:  # by the library, or because it is not there
        bleu(tokenize="flores200")
    assert "never use the network" not in str(failed.value)


def test_what_changes_the_number_is_in_the_signature() -> None:
    usual = bleu().signature
    assert usual.startswith("BLEU|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert bleu(max_ngram_order=2).signature == f"{usual}|max_ngram_order:2"
    # sacrebleu's own signature rounds this one to floor[0.00].
    assert bleu(smooth_method="floor", smooth_value=0.001).signature.endswith("|smooth_value:0.001")
    assert not bleu(smooth_method="floor", smooth_value=0.25).signature.endswith("0.25")
    assert chrf(beta=3, word_order=2).signature.startswith("chrF3++|")


# Which texts BLEU's usual tokenizer cannot split.


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["今天天气很好。", "我们明天去北京。"], "tokenize='zh'"),
        (["今日は天気がいいです。", "カメラを買いました。"], "tokenize='ja-mecab'"),
        (["東京へ行く", "雨が降る"], "tokenize='ja-mecab'"),
        (["วันนี้อากาศดีมาก"], "tokenize='flores200' or 'char'"),
        (["The weather is fine today."], ""),
        (["류현진이 공을 힘껏 던졌다."], ""),
        (["The word 天气 means weather, and 很好 very good."], ""),
        (["Сегодня хорошая погода", "1,234 + 5 = ...", ""], ""),
        ([], ""),
    ],
)
def test_texts_without_spaces_get_a_tokenizer_and_others_none(texts: list[str], says: str) -> None:
    hint = tokenizer_hint([texts])
    assert says in hint
    assert bool(hint) == bool(says)
