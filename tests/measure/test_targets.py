"""The targets of what a session has evaluated, and the text that they stand in; no model runs for them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.targets import Targets, tags_of, targets_of
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gate_options import MaskedRequest, WindowProtocol
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.settings.session import Options
from tests.end_to_end.writers import write_rows, writing_project
from tests.measure import entries
from tests.measure.conftest import ROWS, TEXT


def targets(evaluator: Evaluator, what: EvaluationSpec) -> Targets:
    evaluator.evaluate(what)
    return targets_of(evaluator, what, {})


def spelled(found: Targets) -> list[str]:
    """The text of each target."""
    places = found.places
    spellings = [places.spelling(text) for text in range(len(places.ids))]
    pairs = zip(places.text.tolist(), places.token.tolist(), strict=True)
    return [spellings[text].text[spellings[text].begins[token] : spellings[text].ends[token]] for text, token in pairs]


def causal(dataset: str = "text", **how: Any) -> EvaluationSpec:
    return EvaluationSpec("ppl", "float", dataset, WindowProtocol(**how))


def test_every_target_of_a_sliding_window_is_found_in_the_text(workplace: Any, loads: list[str]) -> None:
    found = targets(workplace.session().evaluator, causal(max_length=16, stride=8))
    assert "".join(spelled(found)) == TEXT[1:]
    again = targets(workplace.session().evaluator, causal(max_length=16, stride=8))  # from the cache
    assert again.loss.tolist() == found.loss.tolist()
    assert loads == ["float"]


@pytest.mark.parametrize("protocol", ["gptq", "bos-chunks", "llama.cpp", "disjoint"])
def test_of_joined_rows_each_row_knows_its_targets(workplace: Any, protocol: str) -> None:
    entries.write_rows(workplace, "rows", [{"text": row} for row in ROWS * 4])
    found = targets(workplace.session().evaluator, causal("rows", name=protocol, max_length=16))
    rows, texts = found.layout.rows_of(), spelled(found)
    for row in np.unique(rows):
        words = "".join(text for text, of in zip(texts, rows, strict=True) if of == row)
        within = f"{found.texts[found.rows[row]]}\n\n"
        letters = iter(within)
        assert all(letter in letters for letter in words), (words, within)  # in order, some left out at borders


def test_what_was_not_evaluated_has_no_targets(workplace: Any, loads: list[str]) -> None:
    assert targets_of(workplace.session().evaluator, causal(), {}) is None
    assert loads == []


def test_a_tokenizer_that_gives_other_tokens_than_were_read_tells_no_places(workplace: Any) -> None:
    session = workplace.session()
    session.evaluator.evaluate(causal(max_length=16))
    measurement, _ = session.evaluator.cached_statistics(causal(max_length=16))
    (model,) = measurement.models
    facts = model.tokenizer()
    other = replace(facts, encode=lambda text, special: [*facts.encode(text, special)][::-1], placed=lambda *_: None)
    found = replace(measurement, model=replace(model, tokenizer=lambda: other))
    statistics = session.evaluator.measurements.known(measurement)
    session.evaluator.cached_statistics = lambda _: (found, statistics)
    assert targets_of(session.evaluator, causal(max_length=16), {}).places is None


@pytest.fixture
def writers(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    sentences = [{"text": "w1 w2 w3", "l": "a"}, {"text": " ", "l": "b"}, {"text": "w4 w5 w6 w7", "l": "c"}]
    write_rows(made, "sentences", sentences)
    write_rows(made, "counting", [{"said": "seven", "counted": "one two"}, {"said": "one", "counted": "two three"}])
    with (made.folder / "lmgate.yaml").open("a") as file:
        file.write("  sentences: {path: sentences.jsonl, tags: l}\n")
        file.write("  counting: {path: counting.jsonl, source: said, references: counted, tags: [said]}\n")
    return Evaluator(load_project(made.folder), Options(cache=tmp_path / ".lmgate_cache"))


@pytest.mark.parametrize("length", [None, 4])
def test_masked_targets_are_found_in_the_pieces_of_their_rows(writers: Evaluator, length: int | None) -> None:
    what = EvaluationSpec("pppl", "masked", "sentences", MaskedRequest(max_length=length))
    found = targets(writers, what)
    assert [text.strip() for text in spelled(found)] == ["w1", "w2", "w3", "w4", "w5", "w6", "w7"]
    assert list(found.rows) == [0, 2]
    assert tags_of(writers, what) == {"l": ("a", "c")}


def test_the_targets_of_an_encoder_decoder_are_those_of_its_references(writers: Evaluator) -> None:
    what = EvaluationSpec("ppl", "translator", "counting", WindowProtocol())
    found = targets(writers, what)
    texts = [text.strip() for text in spelled(found)]
    assert [text for text in texts if text in ("one", "two", "three")] == ["one", "two", "two", "three"]
    assert list(found.texts) == ["one two", "two three"]
    assert tags_of(writers, what) == {"said": ("seven", "one")}
