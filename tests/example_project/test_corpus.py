from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace
from itertools import islice, product
from random import Random

import pytest

from example_project.weather.climate import DIRECTIONS, SKIES, WARNINGS, WINDS
from example_project.weather.corpus import HELD_OUT_SEED, draw_bulletins, held_out_lines
from example_project.weather.record import Period, draw_record, period_surprisal, record_surprisal
from example_project.weather.wording import word


def test_the_committed_text_is_what_the_generator_writes(example):
    committed = (example / "data" / "bulletins.jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in held_out_lines()).encode() == committed


def test_a_seed_gives_the_same_bulletins_everywhere():
    text = "\n\n".join(bulletin.text for bulletin in islice(draw_bulletins(seed=1), 500))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "96703dde2bf0a054f868007147b0cd7ae9f30e312aff06fd893bce652dd6ce06"
    )


def test_seeds_differ():
    held_out = {bulletin.text for bulletin in islice(draw_bulletins(HELD_OUT_SEED), 300)}
    assert held_out.isdisjoint(bulletin.text for bulletin in islice(draw_bulletins(seed=1), 2_000))


def test_a_row_has_the_record_that_its_text_tells(example):
    rows = [json.loads(line) for line in (example / "data" / "bulletins.jsonl").read_text("utf-8").splitlines()]
    for row, bulletin in zip(rows, draw_bulletins(HELD_OUT_SEED), strict=False):
        assert row["record"] == json.loads(json.dumps(asdict(bulletin.record)))
        told = [line for line in row["text"].split("\n")[1:] if not line.startswith("Attention")]
        assert len(told) == len(row["record"]["periods"])
        for line, period in zip(told, row["record"]["periods"], strict=True):
            degrees = f"minus {-period['celsius']}" if period["celsius"] < 0 else f" {period['celsius']}"
            assert f"{degrees} degrees." in line or f"{degrees}." in line
            assert period["direction"] is None or f" {period['direction']}." in line


def test_one_record_can_be_worded_in_many_ways():
    random = Random(3)
    record = draw_record(random)
    assert len({word(record, random)[0] for _ in range(20)}) > 10


def test_a_record_that_cannot_be_is_infinitely_surprising():
    record = draw_record(Random(4))
    assert math.isfinite(record_surprisal(record))
    snow = replace(record.periods[0], sky="snow")
    assert record_surprisal(replace(record, season="summer", periods=(snow, *record.periods[1:]))) == math.inf


@pytest.mark.parametrize("before", [None, Period("rain", "strong", "northwest", 4, "gale")])
def test_the_periods_that_may_come_next_share_all_probability(before):
    every = product(SKIES, WINDS, (None, *DIRECTIONS), range(-9, 12), (None, *WARNINGS))
    shares = (math.exp(-sum(period_surprisal("winter", "coast", 1, before, Period(*facts)))) for facts in every)
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)
