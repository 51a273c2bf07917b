"""A plan counts the tokens that the measurement then reads, whatever is measured, and loads no model."""

from typing import Any

import pytest

from pytest_lmgate.cache.store import find_entries
from pytest_lmgate.engines.transformers.decoding import Decoding
from pytest_lmgate.errors import DataError
from pytest_lmgate.measure.plan import Plan
from pytest_lmgate.settings.decoding import parse_fixture_call
from tests.measure.entries import entry, write_rows
from tests.models.encoders import encoder_decoder, framed_tokenizer, masked

CALLS = {
    "windows": ("ppl_of", ("float", "text"), {"stride": 8}),
    "documents": ("bpb_of", ("float", "rows"), {"protocol": "document"}),
    "repeated windows": ("ppl_of", ("float", "text"), {"protocol": "gptq", "max_length": 13}),
    "choices": ("accuracy_of", ("float", "quiz"), {}),
    "two models": ("kl_of", ("half", "float", "text"), {"max_length": 16}),
    "masked copies": ("pppl_of", ("masked", "words"), {}),
    "pairs": ("ppl_of", ("pairs", "words"), {}),
    "texts": ("bleu_of", ("float", "words"), {"max_new_tokens": 5}),  # the model's tokenizer has no end of text
}


@pytest.fixture
def project(workplace: Any) -> Any:
    quiz = [{"q": "the cat sat on", "c": ["the mat", "a log"], "a": 0}, {"q": "the dog", "c": ["ran", "sat"], "a": 1}]
    entry(workplace, "quiz", path=write_rows(workplace, "quiz", quiz), question="q", choices="c", answer="a")
    words = [{"text": "a b c", "says": "b"}, {"text": "a b c", "says": "b"}, {"text": "c", "says": "a a"}]
    entry(workplace, "words", path=write_rows(workplace, "words", words), source="text", references=["says"])
    for name, model in (("masked", masked("bert")), ("pairs", encoder_decoder("t5"))):
        model.save_pretrained(workplace.folder / "models" / name)
        framed_tokenizer(mask=name == "masked").save_pretrained(workplace.folder / "models" / name)
        entry(workplace, name, section="models", path=f"models/{name}")
    return workplace


@pytest.mark.parametrize("what", CALLS)
def test_the_tokens_are_those_that_are_read(project: Any, what: str, loads: list[str]) -> None:
    fixture, args, kwargs = CALLS[what]
    asked, folder = parse_fixture_call(fixture, args, kwargs), project.folder / ".lmgate_cache"
    plan = Plan(folder)
    plan.add(project.session().evaluator, asked)
    assert (loads, list(plan.problems)) == ([], [])
    (planned,) = plan.measurements
    assert not planned.is_cached

    evaluator = project.session().evaluator
    (evaluator.evaluate if asked.is_number else evaluator.compare)(asked)
    (found,) = find_entries(folder)
    assert planned.tokens == int(found.facts["tokens"]) > 0
    again = Plan(folder)
    again.add(project.session().evaluator, asked)
    assert [each.is_cached for each in again.measurements] == [True]


def test_interrupted_texts_say_how_many_are_written(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "a" * count, "says": "a"} for count in range(1, 6)]
    entry(project, "words", path=write_rows(project, "words", rows), source="text", references=["says"])
    entry(project, "float", section="models", batch_size=1)
    asked = parse_fixture_call("bleu_of", ("float", "words"), {"max_new_tokens": 5})
    monkeypatch.setattr("pytest_lmgate.measure.loop.SAVE_SECONDS", 0.0)
    write, left = Decoding.texts, [2]

    def interrupted(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return write(*given)

    monkeypatch.setattr(Decoding, "texts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        project.session().evaluator.evaluate(asked)

    plan = Plan(project.folder / ".lmgate_cache")
    plan.add(project.session().evaluator, asked)
    (planned,) = plan.measurements
    assert (planned.done, planned.tokens, planned.is_most) == (2 / 5, 5 * 5, True)
    assert planned.protocol == "max_new_tokens:5|num_beams:1"


def test_blank_references_and_targets_are_refused(project: Any) -> None:
    rows = write_rows(project, "blank", [{"text": "a b", "says": " "}, {"text": "a", "says": ""}])
    entry(project, "blank", path=rows, source="text", references=["says"])
    for names, message in (
        (("pairs", "blank"), "dataset 'blank': every reference is empty"),
        (("float", ["a" + " " * 40]), "no target to score under .* that is not white space"),
    ):
        with pytest.raises(DataError, match=message):
            project.session().score("ppl_of", *names)


@pytest.mark.parametrize(
    ("fixture", "models", "how"),
    [("self_kl_of", ("float",), {}), ("kl_of", ("half", "float"), {"estimator": "sampled"})],
)
def test_texts_that_are_drawn_are_planned_as_if_none_ended_early(
    project: Any, fixture: str, models: tuple[str, ...], how: dict[str, Any]
) -> None:
    plan = Plan(project.folder / ".lmgate_cache")
    asked = parse_fixture_call(fixture, (*models, ["the cat", "a dog ran."]), {"max_new_tokens": 5, **how})
    evaluator = project.session().evaluator
    plan.add(evaluator, asked)
    (planned,) = plan.measurements
    evaluator.evaluate(asked)
    own = parse_fixture_call("self_kl_of", ("float", asked.dataset), {"max_new_tokens": 5})
    _, drawn = evaluator.cached_statistics(own)
    assert planned.tokens == int(drawn.prompt_tokens.sum()) + 2 * 5
