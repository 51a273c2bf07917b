"""A gate is bound at collection: every error about what it names is told before a model or a dataset is opened.

In this project no file exists at all, so whatever opened one would say so instead.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.measure.binding import BoundGate
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.likelihoods import ChoiceLikelihoods, TargetLikelihoods
from pytest_lmgate.measure.measurement import CausalLikelihoods
from pytest_lmgate.measure.sampled import SampledDivergences
from pytest_lmgate.measure.texts import GeneratedTexts
from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
from pytest_lmgate.settings.file import parse_project
from pytest_lmgate.settings.gates import fixture
from pytest_lmgate.settings.session import Options

QUIZ = {"path": "quiz.jsonl", "question": "q", "choices": "options", "answer": "label"}
NEWS = {"path": "news.jsonl", "source": "article", "references": "summary"}
NAMES: dict[str, Any] = {
    "models": {"float": {"path": "float"}, "int8": {"path": "int8"}, "odd": {"path": "x", "backend": "odd"}},
    "datasets": {
        "text": {"path": "text.txt"},
        "cut": {"path": "text.txt", "tokens": 100},
        "counted": {"path": "rows.jsonl", "counted": "whole"},
        "news": NEWS,
        "drawn": {**NEWS, "temperature": 1.0, "seed": 1},
        "read": {**NEWS, "extract": {"last": "last-number"}},
        "quiz": QUIZ,
        "targets": {"path": "quiz.jsonl", "question": "q", "target": "text"},
        "grouped": {"path": "quiz.jsonl", "question": "q", "target": "text", "average_by": "subject"},
        "clusters": {**NEWS, "cluster": "author"},
    },
}


@pytest.fixture
def evaluator(tmp_path: Path) -> Evaluator:
    project = parse_project(yaml.safe_dump(NAMES), tmp_path / "lmgate.yaml")
    return Evaluator(project, Options(cache=tmp_path / "cache"))


@pytest.fixture
def bound(evaluator: Evaluator) -> Callable[..., BoundGate]:
    return lambda marker, *args, **kwargs: evaluator.bind_gate(parse_marker(marker, args, kwargs))


def write(prompts: list[str]) -> list[str]:
    return prompts


@pytest.mark.parametrize(
    ("marker", "args", "kwargs", "argument", "message"),
    [
        ("ppl_max", ("int4", "text", 9), {}, "model", "model 'int4' is not known (did you mean 'int8'?)"),
        ("ppl_max", ("float", "txt", 9), {}, "dataset", "dataset 'txt' is not known (did you mean 'text'?)"),
        ("ppl_max", ("text", "float", 9), {}, "model", "model 'text' is a dataset"),
        ("ppl_max", ("odd", "text", 9), {}, "model", "models.odd.backend: expected one of"),
        ("kl_max", ("int8", "flaot", "text", 1), {}, "reference", "model 'flaot' is not known"),
        ("no_regression", ("ppl", "int8", "text", "1%"), {"against": "flaot"}, "against", "model 'flaot' is not known"),
        ("ppl_max", ("int8", "cut", 9), {"unit": "word"}, "", "tokens: expected unit='token', got 'word'"),
        ("ppl_max", ("int8", "counted", 9), {"unit": "word"}, "", "counted: expected a protocol that reads row by row"),
        ("ppl_max", ("int8", "clusters", 9), {}, "dataset", "cluster: texts and multiple choice use it, but ppl"),
        ("accuracy_min", ("int8", "news", 0.5), {}, "dataset", "accuracy needs question:"),
        ("accuracy_min", ("int8", "targets", 0.5), {"variant": "acc_norm"}, "variant", "chooses between choices"),
        ("target_ppl_max", ("int8", "quiz", 9.0), {}, "", "target_ppl needs a dataset with question: and target:"),
        ("target_ppl_max", ("int8", "grouped", 9.0), {}, "", "target_ppl is not a mean over rows"),
        ("bleu_min", ("int8", "text", 9), {}, "dataset", "set references: COLUMN"),
        ("invalid_max", ("int8", "news", 0.5), {}, "", "invalid needs extract:"),
        ("exact_min", ("int8", "read", 0.5), {"variant": "lats"}, "variant", "lats"),
        ("exact_min", ("int8", "news", 0.5), {"temperature": 1.0}, "temperature", "sampling needs a seed"),
        ("exact_min", (write, "news", 0.5), {"max_new_tokens": 9}, "", "only a model has generation settings"),
        ("exact_min", (write, "drawn", 0.5), {}, "", "name the dataset 'drawn' a second time"),
        ("ppl_max", (write, "text", 9), {}, "", "model: expected a name of lmgate.yaml, a path, a hub id"),
    ],
)
def test_what_is_wrong_is_told_before_a_file_is_opened(
    bound: Callable[..., BoundGate], marker: str, args: Any, kwargs: Any, argument: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        bound(marker, *args, **kwargs)
    assert message in str(error.value)
    if argument:
        assert error.value.argument == argument


@pytest.mark.parametrize(
    ("marker", "args", "kwargs", "kind", "by_rows"),
    [
        ("ppl_max", ("int8", "text", 9), {}, CausalLikelihoods, False),
        ("kl_max", ("int8", "float", "text", 1), {}, Divergences, False),
        ("kl_max", ("int8", "float", "text", 1), {"estimator": "sampled"}, SampledDivergences, False),
        ("kl_max", ("int8", "float", "news", 1), {"estimator": "sampled"}, SampledDivergences, True),
        ("accuracy_min", ("int8", "quiz", 0.5), {}, ChoiceLikelihoods, True),
        ("accuracy_min", ("int8", "targets", 0.5), {}, TargetLikelihoods, True),
        ("bleu_min", ("int8", "news", 9), {}, GeneratedTexts, True),
        ("bleu_min", (write, "news", 9), {}, None, False),
    ],
)
def test_a_gate_is_bound_to_its_kind_of_measurement(
    bound: Callable[..., BoundGate], marker: str, args: Any, kwargs: Any, kind: Any, by_rows: bool
) -> None:
    found = bound(marker, *args, **kwargs).bound
    assert (found.measurement, found.by_rows) == (kind, by_rows)
    assert (found.reference is not None) == (marker == "kl_max")


def test_a_gate_against_a_model_measures_both_on_the_same_data(bound: Callable[..., BoundGate]) -> None:
    gate = bound("no_regression", "ppl", "int8", "text", "1%", against="float")
    names = [side.model.name for side in (gate.bound, gate.reference)]
    assert (names, gate.reference.data) == (["int8", "float"], gate.bound.data)


def test_what_a_fixture_gives_is_bound_when_it_has_run(evaluator: Evaluator) -> None:
    gate = parse_marker("ppl_max", (fixture("made"), "text", 9), {})
    early = evaluator.bind_gate(gate)
    assert early.has_fixtures
    assert early.bound.model is None
    late = evaluator.bind_gate(gate, lambda given: "int8" if given == fixture("made") else given)
    assert late.bound.model.name == "int8"
    with pytest.raises(ConfigError, match="model 'int4' is not known"):
        evaluator.bind_gate(gate, lambda given: "int4" if given == fixture("made") else given)


def test_given_texts_need_no_model_and_have_no_extraction(evaluator: Evaluator) -> None:
    texts = {"predictions": ["a"], "references": [["a"]]}
    assert evaluator.evaluate(parse_fixture_call("exact_of", (), texts)) == 1
    with pytest.raises(ConfigError, match="variant: only a dataset has extractions"):
        evaluator.bind(parse_fixture_call("exact_of", (), {**texts, "variant": "last"}))
