from __future__ import annotations

import json
from itertools import combinations

import pytest

from example_project.weather.notes import columns, prompt
from example_project.weather.references import HELD_OUT, REFERENCES, held_out_records, lines
from example_project.weather.tokens import split


@pytest.fixture(scope="module")
def rows(example) -> list[dict]:
    return [json.loads(line) for line in (example / "data" / "records.jsonl").read_text("utf-8").splitlines()]


def test_the_committed_records_are_what_the_generator_writes(example):
    committed = (example / "data" / "records.jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in lines()).encode() == committed


def test_every_reference_tells_the_record_of_its_row_and_no_other(rows, tells):
    records = [record for record, _ in held_out_records()]
    assert len(rows) == len(set(records)) == HELD_OUT
    for row, record in zip(rows, records, strict=True):
        assert {key: row[key] for key in ("place", "season", "weather")} == columns(record)
        assert all(tells(text, record) for text in row["bulletins"])
    for (row, record), (other_row, other) in combinations(zip(rows, records, strict=True), 2):
        assert not tells(row["bulletins"][0], other)
        assert not tells(other_row["bulletins"][0], record)


def test_the_references_of_a_row_differ(rows):
    assert {len(set(row["bulletins"])) for row in rows} == {REFERENCES}


def test_note_and_bulletin_fit_the_context_and_the_default_of_new_tokens(rows):
    for row, (record, _) in zip(rows, held_out_records(), strict=True):
        assert len(split(prompt(record))) + 128 <= 256
        assert max(len(split(text)) for text in row["bulletins"]) < 128
