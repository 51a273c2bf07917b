"""Real texts with one to four references, and Korean pairs, against the interface of sacrebleu."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sacrebleu import BLEU, CHRF, TER

from pytest_lmgate.metrics.texts import bleu, chrf, ter, text_score

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("table", ["rouge155_clean", "rouge155_unicode_ko"])
def test_real_outputs_score_as_sacrebleu_scores_them(table: str, shared_data: Path) -> None:
    file = shared_data / "oracles" / "rouge" / f"{table}.json"
    # Long articles would keep the edit rate busy for minutes.
    pairs = [
        (" ".join(pair["candidate"]), [" ".join(reference) for reference in pair["references"]])
        for pair in json.loads(file.read_text(encoding="utf-8"))["pairs"]
    ]
    pairs = [pair for pair in pairs if max(len(text) for text in (pair[0], *pair[1])) < 300]
    assert len(pairs) >= 30
    outputs, references = zip(*pairs, strict=True)
    width = max(map(len, references))
    streams = [[of_row[i] if i < len(of_row) else None for of_row in references] for i in range(width)]
    for metric, oracle in [
        (bleu(), BLEU()),
        (bleu(tokenize="intl", lowercase=True), BLEU(tokenize="intl", lowercase=True)),
        (bleu(max_ngram_order=2), BLEU(max_ngram_order=2)),
        (chrf(), CHRF()),
        (chrf(word_order=2), CHRF(word_order=2)),
        (ter(), TER()),
    ]:
        theirs = oracle.corpus_score(outputs, streams)
        score = text_score(metric, outputs, references)
        assert float(score) == pytest.approx(theirs.score, rel=1e-12)
        assert f"{theirs.name}|{oracle.get_signature()}" in score.signature
        assert score > 0
