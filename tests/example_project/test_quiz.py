from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from example_project.weather.climate import DIRECTIONS, SKIES, WINDS
from example_project.weather.notes import prompt
from example_project.weather.quiz import CHOICES, QUESTIONS, Question, held_out_questions, lines
from example_project.weather.tokenizer import word_tokenizer
from example_project.weather.tokens import split
from example_project.weather.wording import sky_sentence, temperature_sentence, wind_sentence


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return list(held_out_questions())


def test_the_committed_questions_are_what_the_generator_writes(example):
    committed = (example / "data" / "quiz.jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in lines()).encode() == committed


@pytest.fixture(scope="module")
def facts(derivations) -> Callable[[Question], dict[str, str | int | tuple]]:
    """Return what gives the fact that each possible way to go on tells, by its text."""
    winds = [("calm", None), *product(WINDS[1:], DIRECTIONS)]

    def told(question: Question) -> dict[str, str | int | tuple]:
        index = question.bulletin.count("\nT") - 1
        if not question.bulletin.endswith("."):
            before = question.record.periods[index - 1].sky
            label = question.bulletin.rpartition("\n")[2]
            phrases = {sky: sky_sentence(index, before, sky) for sky in SKIES}
            return {
                text.removeprefix(f"{label} "): sky
                for sky, phrase in phrases.items()
                for text, _ in derivations(phrase)
            }
        phrases = {celsius: temperature_sentence(celsius, night=index % 2 == 1) for celsius in range(-40, 50)}
        phrases |= {wind: wind_sentence(*wind) for wind in winds}
        return {text.removeprefix(" "): fact for fact, phrase in phrases.items() for text, _ in derivations(phrase)}

    return told


def test_the_answer_tells_the_record_and_the_other_choices_three_other_facts_of_its_kind(questions, facts):
    assert len(questions) == QUESTIONS
    for question in questions:
        period = question.record.periods[question.bulletin.count("\nT") - 1]
        told = [facts(question)[choice] for choice in question.choices]
        assert told[question.answer] in (period.sky, period.celsius, (period.wind, period.direction))
        assert len(set(told)) == CHOICES
        assert len({type(fact) for fact in told}) == 1


def test_the_bulletin_with_the_answer_begins_one_that_tells_the_record(questions, tells):
    winds = {"calm": " No wind", "light": " Light winds", "fresh": " Fresh winds", "strong": " Strong winds"}
    for question in questions:
        index = question.bulletin.count("\nT") - 1
        last = replace(question.record.periods[index], warning=None)
        record = replace(question.record, periods=(*question.record.periods[:index], last))
        degrees = f"minus {-last.celsius}" if last.celsius < 0 else last.celsius
        temperature = f" {'Lows' if index % 2 else 'Highs'} near {degrees}."
        wind = f"{winds[last.wind]}{f' from the {last.direction}' if last.direction else ''}."
        begun = f"{question.bulletin} {question.choices[question.answer]}"
        assert [end for end in ("", temperature, wind, temperature + wind) if tells(begun + end, record)], begun


def test_skies_temperatures_and_winds_are_asked_and_any_place_may_be_right(questions):
    answers = Counter(question.answer for question in questions)
    assert set(answers) == set(range(CHOICES))
    assert max(answers.values()) < QUESTIONS / 2, "always the same choice would be little better than chance"
    asked = Counter(
        "temperature"
        if any(character.isdigit() for character in question.choices[0])
        else "wind"
        if question.bulletin.endswith(".")
        else "sky"
        for question in questions
    )
    assert set(asked) == {"sky", "temperature", "wind"}
    assert min(asked.values()) > QUESTIONS / 6


def test_questions_with_choices_have_no_unknown_token(questions):
    tokenizer = word_tokenizer()
    for question in questions:
        for choice in question.choices:
            text = f"{prompt(question.record)}{question.bulletin} {choice}"
            assert tokenizer.encode(text).tokens == split(text)
            assert tokenizer.token_to_id("<unk>") not in tokenizer.encode(text).ids
