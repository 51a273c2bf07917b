"""Which texts BLEU's usual tokenizer cannot split."""

from __future__ import annotations

import pytest

from pytest_lmgate.metrics.texts.scripts import tokenizer_hint


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["今天天气很好。", "我们明天去北京。"], "tokenize='zh'"),
        (["今日は天気がいいです。", "カメラを買いました。"], "tokenize='ja-mecab'"),
        (["東京へ行く", "雨が降る"], "tokenize='ja-mecab'"),
        (["วันนี้อากาศดีมาก"], "tokenize='flores200' or 'char'"),
    ],
)
def test_texts_without_spaces_get_a_tokenizer(texts: list[str], says: str) -> None:
    assert says in tokenizer_hint(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["The weather is fine today."],
        ["류현진이 공을 힘껏 던졌다."],
        ["The word 天气 means weather, and 很好 very good."],
        ["Сегодня хорошая погода", "1,234 + 5 = ...", ""],
        [],
    ],
)
def test_texts_with_spaces_get_none(texts: list[str]) -> None:
    assert tokenizer_hint(texts) == ""
