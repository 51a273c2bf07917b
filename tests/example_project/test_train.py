from __future__ import annotations

import json
from itertools import islice

import pytest

from example_project.weather.corpus import draw_bulletins
from example_project.weather.tokenizer import word_tokenizer


@pytest.fixture
def train(script):
    return script("train")


def test_rows_are_running_text_and_every_fourth_begins_with_a_bulletin_between_bos_and_eos(train):
    tokenizer = word_tokenizer()
    rows = list(islice(train.token_rows(tokenizer), 40))
    assert {len(row) for row in rows} == {train.CONTEXT}
    bulletins = [bulletin.text for bulletin in islice(draw_bulletins(train.SEED), 400)]
    unmarked = set(bulletins)
    for number, row in enumerate(rows):
        text = tokenizer.decode(row, skip_special_tokens=False)
        if number % 4 == 3:
            first, *_, last = text.split("</s>")
            assert first.startswith("<s>")
            assert first.removeprefix("<s>") in unmarked
            assert any(whole.startswith(last.removeprefix("<s>")) for whole in bulletins), "cut off at the row's end"
        else:
            assert "<s>" not in text
            assert "</s>" not in text
    # Three rows of four go on where the one before was cut.
    running = "".join(tokenizer.decode(row) for number, row in enumerate(rows) if number % 4 != 3)
    assert all(text in unmarked for text in running.split("\n\n")[:-1])


def test_the_rate_rises_then_falls(train):
    rates = [train.rate_at(step, 900) for step in range(900)]
    peak = rates.index(max(rates))
    assert max(rates) == 1
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0 < rates[-1] < 0.03


def test_the_committed_model_is_of_the_script_s_shape(train, example):
    config = train.small_llama(word_tokenizer()).config
    committed = json.loads((example / "models" / "float" / "config.json").read_text("utf-8"))
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"):
        assert committed[key] == getattr(config, key)
