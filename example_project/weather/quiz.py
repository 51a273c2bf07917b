"""Multiple choice: a note, its bulletin up to some sentence, and four ways to go on of which one tells the note.

    python -m weather.quiz

writes data/quiz.jsonl, the same bytes each time. The wrong choices are good sentences that tell another sky,
temperature or wind, often that of another period of the same record.
"""

from __future__ import annotations

__all__ = ["CHOICES", "QUESTIONS", "Question", "held_out_questions", "lines"]

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from .chance import Chance, Phrase, write
from .climate import DIRECTIONS, SKIES, WINDS
from .notes import columns
from .record import Period, Record, draw_record, is_night
from .wording import PERIODS, sentences, sky_sentence, temperature_sentence, wind_sentence

QUESTIONS = 80
CHOICES = 4
_SEED = 4
_ASKED = Chance.of({"sky": 1, "temperature": 1, "wind": 1})
_EVERY_WIND = (("calm", None), *((wind, direction) for wind in WINDS[1:] for direction in DIRECTIONS))


@dataclass(frozen=True)
class Question:
    """One row.

    Attributes:
        record: What the bulletin tells.
        bulletin: Its beginning; the next sentence, or what is left of it, is asked.
        choices: Ways to go on, without the space before them.
        answer: Index of the one that tells the record.
    """

    record: Record
    bulletin: str
    choices: tuple[str, ...]
    answer: int


def held_out_questions() -> Iterator[Question]:
    """Yield the questions; the same on every machine."""
    random = Random(_SEED)
    for _ in range(QUESTIONS):
        yield _question(draw_record(random), random)


def lines() -> Iterator[str]:
    """Yield the lines of the file: the columns of `notes.columns`, ``bulletin``, ``choices`` and ``answer``."""
    for each in held_out_questions():
        row = {**columns(each.record), "bulletin": each.bulletin, "choices": each.choices, "answer": each.answer}
        yield json.dumps(row)


def _question(record: Record, random: Random) -> Question:
    asked = _ASKED.draw(random)
    # Not the first period, whose sky may be told with a colon: there a choice would not begin with a space.
    index = Chance.of(dict.fromkeys(range(1, len(record.periods)), 1)).draw(random)
    beginning, right = _cut(record, index, asked, random)
    told, choices = [record.periods[index]], [right]
    others = _others(asked, record, index)
    while len(choices) < CHOICES:
        period = others.draw(random)
        if period not in told:
            told.append(period)
            text, _ = write(_phrase(asked, period, record.periods[index - 1], index), random)
            choices.append(text.removeprefix(PERIODS[index]))
    answer = Chance.of(dict.fromkeys(range(CHOICES), 1)).draw(random)
    choices[0], choices[answer] = choices[answer], choices[0]
    return Question(record, beginning, tuple(choice.removeprefix(" ") for choice in choices), answer)


def _cut(record: Record, index: int, asked: str, random: Random) -> tuple[str, str]:
    """Word the record; return the bulletin before what is asked, and what comes then."""
    beginning, periods = "", 0
    for told, text, _ in sentences(record, random):
        periods += told == "sky"
        if periods == index + 1 and told == asked:
            # Which period it is stands in the question.
            period = f"\n{PERIODS[index]}" if asked == "sky" else ""
            return beginning + period, text.removeprefix(period)
        beginning += text
    raise AssertionError("unreachable: every period tells its sky, temperature and wind")


def _others(asked: str, record: Record, index: int) -> Chance[Period]:
    """Return a chance of periods that differ in what is asked alone, mostly as other periods of the record have it."""
    period = record.periods[index]
    anywhere = {
        "sky": [replace(period, sky=sky) for sky in SKIES],
        "temperature": [replace(period, celsius=period.celsius + change) for change in range(-5, 6)],
        "wind": [replace(period, wind=wind, direction=direction) for wind, direction in _EVERY_WIND],
    }
    in_record = {
        "sky": [replace(period, sky=other.sky) for other in record.periods],
        "temperature": [replace(period, celsius=other.celsius) for other in record.periods],
        "wind": [replace(period, wind=other.wind, direction=other.direction) for other in record.periods],
    }
    return Chance.of({**dict.fromkeys(anywhere[asked], 1), **dict.fromkeys(in_record[asked], 6), period: 0})


def _phrase(asked: str, period: Period, before: Period, index: int) -> Phrase:
    phrases = {
        "sky": sky_sentence(index, before.sky, period.sky),
        "temperature": temperature_sentence(period.celsius, is_night(index)),
        "wind": wind_sentence(period.wind, period.direction),
    }
    return phrases[asked]


if __name__ == "__main__":
    file = Path(__file__).parents[1] / "data" / "quiz.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8", newline="\n")
    print(f"wrote {QUESTIONS} questions with {CHOICES} choices each, {file.stat().st_size:,} bytes")
