from __future__ import annotations

from itertools import islice

import pytest
import yaml

from example_project.weather.corpus import draw_bulletins
from example_project.weather.notes import PROMPT, columns, prompt
from example_project.weather.record import Period, Record
from example_project.weather.tokenizer import word_tokenizer
from example_project.weather.tokens import split

RECORD = Record(
    "winter",
    "Port Sorrel",
    (
        Period("rain", "calm", None, 3, None),
        Period("snow", "strong", "northwest", -4, "gale"),
        Period("cloudy", "light", "west", 0, "ice"),
        Period("clear", "fresh", "south", -11, None),
    ),
)


def test_a_note_says_all_of_its_record():
    assert columns(RECORD) == {
        "place": "Port Sorrel",
        "season": "winter",
        "weather": "Today: rain, 3, no wind.\n"
        "Tonight: snow, minus 4, gusts northwest, gale warning.\n"
        "Tomorrow: cloudy, 0, light west, ice warning.\n"
        "Tomorrow night: clear, minus 11, fresh south.",
    }
    assert prompt(RECORD).startswith("Port Sorrel, winter.\nToday: rain, 3,")
    assert prompt(RECORD).endswith(" fresh south.\n\n")


@pytest.mark.parametrize("dataset", ["records", "quiz"])
def test_the_datasets_ask_as_the_writer_was_trained(example, dataset):
    spec = yaml.safe_load((example / "lmgate.yaml").read_text("utf-8"))["datasets"][dataset]
    assert spec.get("prompt", spec.get("question")).removesuffix("{bulletin}") == PROMPT


def test_records_that_differ_have_notes_that_differ():
    records = {bulletin.record for bulletin in islice(draw_bulletins(seed=8), 5_000)}
    assert len({prompt(record) for record in records}) == len(records)


def test_notes_are_made_of_the_words_of_bulletins():
    tokenizer = word_tokenizer()
    unknown = tokenizer.token_to_id("<unk>")
    for bulletin in islice(draw_bulletins(seed=9), 1_000):
        note = prompt(bulletin.record)
        encoding = tokenizer.encode(note + bulletin.text)
        assert unknown not in encoding.ids
        assert encoding.tokens == split(note) + split(bulletin.text), "the prompt ends where a token does"
