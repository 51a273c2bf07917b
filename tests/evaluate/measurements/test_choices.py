"""Multiple choice end to end: equal to lm-evaluation-harness on a task of its own, measured once for all variants."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.backends.hf.models.checkpoint import open_checkpoint
from pytest_lmgate.backends.hf.models.loading import load_checkpoint, tokenizer_facts
from pytest_lmgate.data.requests.choices import make_questions, plan_choices
from pytest_lmgate.errors import ConfigError, DataError, ModelError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.spec.markers import parse_fixture_call
from tests.conftest import SHARED
from tests.end_to_end.projects import environment as plain_environment
from tests.engine.measuring import measure_nll
from tests.evaluate.conftest import ALPHABET, make_model
from tests.evaluate.entries import entry, write_rows
from tests.models.tiny import word_level
from tests.warm import warm_python

QUIZ = [
    {"q": "the cat sat on", "c": ["the mat", "a log", "mat the"], "a": 0},
    {"q": "the dog ran to", "c": ["the cat", "on the mat by the log", "log"], "a": 1},
    {"q": "a log lay on", "c": ["the mat", "the log"], "a": "the log"},
    {"q": "the dog", "c": ["ran", "sat", "lay", "cat"], "a": 3},
] * 5

# What the two programs could easily do differently: no question, white space at both ends, letters without a token (of
# which the tiny model makes its BOS), choices that differ in bytes but not in characters, questions beyond the context.
HARD = [
    {"q": "", "c": ["the cat", "the dog sat", "on"], "a": 1},
    {"q": "the cat ", "c": ["sat", "ran"], "a": 0},
    {"q": "the cat\n\n", "c": ["sat ", " ran", "\nlay"], "a": 2},
    {"q": " the cat", "c": ["sat on the mat", "ran", "lay on"], "a": 0},
    {"q": "the dog ate", "c": ["été", "한국어", "abc", "中a文"], "a": 0},
    {"q": "한국어 中文 ", "c": ["the mat", "ñ", "log"], "a": 1},
    {"q": "the cat sat on the mat and the dog sat on the log. " * 12, "c": ["a cat", "the dog ran off"], "a": 1},
    {"q": "the dog. " * 70, "c": ["ran, and the cat lay on a", "a"], "a": 0},
]

# Two examples before each question, whose answers are the second and the first choice.
SHOTS = [
    {"q": "the mat lay ", "c": ["a dog", "on a log"], "a": 1},
    {"q": "a dog ate", "c": ["a log", "the mat"], "a": 0},
]
SYSTEM = "name the beast that did it."
# It ends with white space, which the harness counts to the choice.
TEMPLATE = """{{ bos_token }}{% for each in messages %}{{ each.role }}, {{ each.content }}
{% endfor %}{% if add_generation_prompt %}assistant,
{% endif %}"""

_TASK = """
task: quiz
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}/quiz.jsonl, shots: {data}/shots.jsonl}}}}
test_split: test
fewshot_split: shots
fewshot_config: {{sampler: first_n}}
num_fewshot: {shots}
description: {description}
output_type: multiple_choice
doc_to_text: q
doc_to_choice: c
doc_to_target: a
metric_list: [{{metric: acc}}, {{metric: acc_norm}}, {{metric: acc_bytes}}]
"""
_RUN = """
import json, sys

import torch
from lm_eval import evaluator
from lm_eval.tasks import TaskManager

evaluator.add_env_info = lambda results: None  # asks pip, for seconds
torch.set_num_threads(1)
found = {}
for tasks, chat, *models in json.loads(sys.argv[1]):
    for model in models:
        done = evaluator.simple_evaluate(
            model="hf", model_args=f"pretrained={model},dtype=float32", tasks=["quiz"], batch_size=4, device="cpu",
            task_manager=TaskManager(include_path=tasks, include_defaults=False), log_samples=True, bootstrap_iters=0,
            apply_chat_template=chat,
        )
        samples = sorted(done["samples"]["quiz"], key=lambda sample: sample["doc_id"])
        found[f"{tasks} {model}"] = {
            "accuracy": {name: done["results"]["quiz"][f"{name},none"] for name in ("acc", "acc_norm", "acc_bytes")},
            "log_likelihood": [answer[0][0] for sample in samples for answer in sample["resps"]],
        }
print("found:" + json.dumps(found))
"""
TRAINED = ("stories260K-hf", "llama2xs-279K-hf")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model that reads more, with a chat template, and a tokenizer that begins every text with a BOS."""
    folder = tmp_path_factory.mktemp("chatty")
    make_model(max_position_embeddings=256).save_pretrained(folder)
    framed = {"template": "<s> $A", "framed_by": {"<s>": 0}}
    word_level(["<s>", *ALPHABET], letters=True, **framed, bos_token="<s>", unk_token="<s>").save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def harness(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, chatty: Path
) -> Callable[[str, Path], dict[str, Any]]:
    """What lm-evaluation-harness finds on a local task, by task and model: all of it in one process."""
    base = tmp_path_factory.mktemp("harness")
    models = [SHARED / "models" / name for name in TRAINED] if SHARED.is_dir() else []
    asked = {"hard": (HARD, [checkpoint, *models]), "shown": (HARD, [chatty]), "chat": (HARD, [chatty])}
    if models:
        asked["cloze"] = (_cloze_rows(), models)
    # Without a chat the harness puts nothing behind a task's description.
    described = {"shown": json.dumps(f"{SYSTEM}\n\n"), "chat": SYSTEM}
    for task, (rows, _) in asked.items():
        (base / task).mkdir()
        for file, some in (("quiz", rows), ("shots", SHOTS)):
            (base / task / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        shots, description = len(SHOTS) * (task in described), described.get(task, "null")
        (base / task / "quiz.yaml").write_text(_TASK.format(data=base / task, shots=shots, description=description))
    environment = os.environ | {"HF_HOME": str(base / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    runs = [[str(base / task), task == "chat", *map(str, several)] for task, (_, several) in asked.items()]
    done = subprocess.run(
        [warm_python(plain_environment(), "torch"), "-c", _RUN, json.dumps(runs)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found:")] or [done.stderr]
    found: dict[str, Any] = json.loads(line.removeprefix("found:"))
    return lambda task, model: found[f"{base / task} {model}"]


def _cloze_rows() -> list[dict[str, Any]]:
    lines = (SHARED / "choice" / "tinystories_cloze_200.jsonl").read_text(encoding="utf-8").splitlines()
    return [{"q": row["context"], "c": row["choices"], "a": row["answer"]} for row in map(json.loads, lines)]


def _log_likelihoods(folder: Path, rows: list[dict[str, Any]]) -> list[float]:
    checkpoint = open_checkpoint(folder, name="m")
    loaded = load_checkpoint(
        checkpoint, tokenizer_folder=folder, adapter_folder=None, load={}, dtype="float32", device="cpu",
        trust_remote_code=False, pickle_weights=False,
    )  # fmt: skip
    questions = make_questions(rows, name="quiz", question="q", choices=["c"], answer="a")
    streams, plan = plan_choices(
        questions,
        tokenizer_facts(loaded.tokenizer),
        delimiter=" ",
        max_length=checkpoint.context,
        name="quiz",
        model="m",
    )
    nll = measure_nll(loaded, streams, plan, dataset="quiz")
    begins = np.concatenate([[0], np.cumsum(plan.targets)[:-1]])
    found: list[float] = (-np.add.reduceat(nll.astype(np.float64), begins)).tolist()
    return found


def _accuracy(session: Any, model: Any = "float", dataset: Any = "quiz", **how: Any) -> Score:
    return session.evaluator.evaluate(parse_fixture_call("accuracy_of", (model, dataset), how))


@pytest.fixture
def quiz(workplace: Any) -> Any:
    """The workplace with two files of questions."""
    for name, rows in {"quiz": QUIZ, "hard": HARD}.items():
        entry(workplace, name, path=write_rows(workplace, name, rows), question="q", choices="c", answer="a")
    return workplace


def test_every_log_likelihood_and_accuracy_is_the_harnesss(quiz: Any, checkpoint: Path, harness: Any) -> None:
    folder, theirs = quiz.folder / "models" / "float", harness("hard", checkpoint)
    np.testing.assert_allclose(_log_likelihoods(folder, HARD), theirs["log_likelihood"], rtol=1e-5)
    found = {name: float(_accuracy(quiz.session(), dataset="hard", variant=name)) for name in theirs["accuracy"]}
    assert found == pytest.approx(theirs["accuracy"], abs=1e-12)


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_with_examples_and_a_system_text_they_are_too(quiz: Any, chatty: Path, harness: Any, chat: bool) -> None:
    theirs = harness("chat" if chat else "shown", chatty)
    entry(quiz, "hard", examples=write_rows(quiz, "shots", SHOTS), system=SYSTEM, chat=chat)
    session, asked = quiz.session(), parse_fixture_call("accuracy_of", (chatty, "hard"), {})
    score = session.evaluator.evaluate(asked)
    _, found = session.evaluator.known(asked)
    np.testing.assert_allclose(found, theirs["log_likelihood"], rtol=1e-5)
    assert {name: score.details[name] for name in theirs["accuracy"]} == pytest.approx(theirs["accuracy"], abs=1e-12)
    assert f"|examples:2|{'chat|' * chat}delimiter:{'' if chat else ' '!r}|" in score.signature


@pytest.mark.shared
def test_every_log_likelihood_of_a_trained_model_is_the_harnesss(shared_data: Path, harness: Any) -> None:
    for name in TRAINED:
        model = shared_data / "models" / name
        np.testing.assert_allclose(_log_likelihoods(model, HARD), harness("hard", model)["log_likelihood"], rtol=1e-5)


@pytest.mark.shared
def test_the_accuracy_of_trained_models_is_the_harnesss(workplace: Any, shared_data: Path, harness: Any) -> None:
    path = shared_data / "choice" / "tinystories_cloze_200.jsonl"
    entry(workplace, "cloze", path=str(path), question="context", choices="choices", answer="answer")
    for name, acc in zip(TRAINED, (0.435, 0.29), strict=True):
        score = _accuracy(workplace.session(), shared_data / "models" / name, "cloze")
        expected = harness("cloze", shared_data / "models" / name)["accuracy"]
        assert {variant: score.details[variant] for variant in expected} == pytest.approx(expected, abs=1e-12)
        assert (score.n, score.details["acc"]) == (200, pytest.approx(acc)), "as known from another run of the harness"


def test_variants_and_answers_need_no_second_measurement(quiz: Any, loads: list[str]) -> None:
    scores = {name: _accuracy(quiz.session(), variant=name) for name in ("acc", "acc_norm", "acc_bytes")}
    assert loads == ["float"]
    assert [score.cached for score in scores.values()] == [False, True, True]
    assert scores["acc"].signature.startswith("variant:acc|max_length:32|delimiter:' '|version:")
    write_rows(quiz, "quiz", [{**row, "a": 0} for row in QUIZ])
    assert _accuracy(quiz.session()).cached
    assert loads == ["float"]


def test_another_question_choice_delimiter_or_length_is_measured_anew(quiz: Any, loads: list[str]) -> None:
    _accuracy(quiz.session())
    assert not _accuracy(quiz.session(), max_length=24).cached
    data = quiz.folder / "data" / "quiz.jsonl"
    before = data.read_text()
    for old, new in (("a log lay", "a log sat"), ("mat the", "the log")):
        data.write_text(before.replace(old, new))
        assert not _accuracy(quiz.session()).cached
    data.write_text(before)
    assert _accuracy(quiz.session()).cached
    shots = write_rows(quiz, "shots", SHOTS)
    before = _accuracy(quiz.session())
    for keys in ({"delimiter": "\n"}, {"system": SYSTEM}, {"examples": shots}):
        entry(quiz, "quiz", **keys)
        score = _accuracy(quiz.session())
        assert not score.cached
        assert score.sample.identity["data"] != before.sample.identity["data"] or "delimiter" in keys
    write_rows(quiz, "shots", SHOTS[:1])
    assert not _accuracy(quiz.session()).cached


def test_an_interrupted_measurement_goes_on_where_it_was(quiz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_lmgate.engine import loop

    expected = _accuracy(quiz.session(cache=quiz.folder / "elsewhere"))
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    entry(quiz, "float", section="models", batch_size=4)
    session = quiz.session()
    told: list[Any] = []

    def interrupt(progress: Any) -> None:
        told.append(progress)
        if len(told) == 2:  # equal questions are read once, so that few batches are left
            raise KeyboardInterrupt

    session.evaluator.report = interrupt
    with pytest.raises(KeyboardInterrupt):
        _accuracy(session)
    again = quiz.session()
    told.clear()
    again.evaluator.report = told.append
    score = _accuracy(again)
    assert (float(score), score.cached) == (float(expected), False)
    assert told[0].resumed > 0


def test_rows_of_a_cluster_are_not_independent(quiz: Any) -> None:
    write_rows(quiz, "quiz", [{**row, "group": index // 4} for index, row in enumerate(QUIZ)])
    alone = _accuracy(quiz.session())
    entry(quiz, "quiz", cluster="group")
    together = _accuracy(quiz.session())
    assert together == alone
    assert together.cached
    # Every group has the same four rows, and so the same share.
    assert together.stderr == pytest.approx(0, abs=1e-12)
    assert alone.stderr is not None
    assert 0 < alone < 1
    assert alone.stderr > 0.05


def test_rows_in_memory_have_columns_of_the_obvious_names(quiz: Any) -> None:
    rows = [{"question": row["q"], "choices": row["c"], "answer": row["a"]} for row in QUIZ]
    assert _accuracy(quiz.session(), dataset=rows) == _accuracy(quiz.session())


def test_what_is_no_quiz_is_an_error_that_says_what_is_missing(quiz: Any) -> None:
    with pytest.raises(ConfigError, match=r"dataset 'rows': accuracy needs question: .* choices: .* and answer:"):
        _accuracy(quiz.session(), dataset="rows")
    with pytest.raises(DataError, match=r"dataset 'in-memory list': row 0: choices: no column 'choices'"):
        _accuracy(quiz.session(), dataset=[{"question": "?"}])


def test_only_a_causal_model_has_likelihoods_of_choices(quiz: Any) -> None:
    config = quiz.folder / "models" / "float" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "BertForMaskedLM"))
    with pytest.raises(ModelError, match="accuracy is undefined for the masked model 'float'"):
        _accuracy(quiz.session())
