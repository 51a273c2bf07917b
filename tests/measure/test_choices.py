"""Multiple choice end to end: equal to lm-evaluation-harness on a task of its own, measured once for all variants."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from pytest_lmgate.errors import ProtocolError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.decoding import parse_fixture_call
from tests.conftest import SHARED
from tests.measure.conftest import ALPHABET, make_model
from tests.measure.entries import by_the_harness, entry, write_rows
from tests.models.tiny import word_level

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

# The winner is decided by what is before the target, as in winogrande.
SEVERAL = [
    {"q": ["the cat sat on the mat and the dog", "the mat"], "t": "ran", "a": 0},
    {"q": ["a log lay on the mat as the cat ", "a log", "the dog. " * 40], "t": "sat on it", "a": 2},
    {"q": ["한국어", "the cat ate"], "t": "the log", "a": 1},
] * 3
SEVERAL_SHOTS = [{"q": ["the mat lay", "the log lay"], "t": "on a dog", "a": 1}]
# Several choices are right, as in truthfulqa's first form.
LISTED = [{**row, "a": [row["a"], (row["a"] + 2) % len(row["c"])]} for row in HARD if len(row["c"]) > 2] * 2

# The harness writes nothing between question and target. The tiny model repeats some tokens.
REPEATED = ("the", "dog", "mat", "log", "ran", "lay", "a", "on", "sat", "ate")
TARGETS = [
    {"q": "the cat sat on", "t": " the mat"},
    {"q": "the cat sat on ", "t": "the"},
    {"q": "", "t": "the cat"},
    {"q": "the dog. " * 40, "t": " ran"},
    {"q": "한국어", "t": "中文 é"},
    *({"q": f"{word} a cat {word}", "t": f" {word}"} for word in REPEATED),
]
_RUN = """
import json, sys

import torch
from lm_eval import evaluator
from lm_eval.tasks import TaskManager

evaluator.add_env_info = lambda results: None  # asks pip, for seconds
torch.set_num_threads(1)
found = {}
for tasks, chat, model in json.loads(sys.argv[1]):
    done = evaluator.simple_evaluate(
        model="hf", model_args=f"pretrained={model},dtype=float32", tasks=["quiz"], batch_size=4, device="cpu",
        task_manager=TaskManager(include_path=tasks, include_defaults=False), log_samples=True, bootstrap_iters=0,
        apply_chat_template=chat,
    )
    samples = sorted(done["samples"].get("quiz", []), key=lambda sample: sample["doc_id"])
    figures = [(*name.split(","), value) for name, value in done["results"]["quiz"].items() if "," in name]
    found[tasks] = {
        "accuracy": {name: value for name, _, value in figures if not name.endswith("_stderr")},
        "answers": [answer[0] for sample in samples for answer in sample["resps"]],
    }
print("found:" + json.dumps(found))
"""
TRAINED = SHARED / "models" / "llama2xs-279K-hf"
CLOZE = SHARED / "choice" / "tinystories_cloze_200.jsonl"
ASKED = 8  # of its questions


def _greedy_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows whose targets a model would write; by chance the random model has none."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in ("the cat", "a log on", "the dog sat on the mat", "on the log", "the", "a mat", "lay", "ran, and"):
        ids = tokenizer(text, return_tensors="pt").input_ids
        written = model.generate(ids, max_new_tokens=2, do_sample=False, min_new_tokens=2)[0].tolist()
        target = "".join(tokenizer.convert_ids_to_tokens(written[ids.shape[1] :]))
        if tokenizer(text + target).input_ids == written:
            rows.append({"q": text, "t": target})
    return rows


def _columns(**columns: str) -> dict[str, str]:
    return {f"doc_to_{what}": column for what, column in columns.items()}


@dataclass
class Task:
    """A task of the harness."""

    rows: list[dict[str, Any]]
    model: Path
    shots: list[dict[str, Any]] = field(default_factory=list)
    description: str | None = None
    kind: str = "multiple_choice"
    columns: dict[str, str] = field(default_factory=lambda: _columns(text="q", choice="c", target="a"))
    metrics: tuple[str, ...] = ("acc", "acc_norm", "acc_bytes")

    def write(self, folder: Path) -> None:
        """Write the task's files into a folder."""
        for file, some in (("quiz", self.rows), ("shots", self.shots or self.rows[:1])):
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        files = {"test": f"{folder}/quiz.jsonl", "shots": f"{folder}/shots.jsonl"}
        read = {"dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test"}
        shown = {"fewshot_split": "shots", "fewshot_config": {"sampler": "first_n"}, "num_fewshot": len(self.shots)}
        asked = {"output_type": self.kind, "description": self.description, **self.columns}
        metrics = [{"metric": name} for name in self.metrics]
        (folder / "quiz.yaml").write_text(
            yaml.safe_dump({"task": "quiz", **read, **shown, **asked, "metric_list": metrics})
        )


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
def harness(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, chatty: Path) -> dict[str, dict[str, Any]]:
    """What lm-evaluation-harness finds on each local task: all of it in one process."""
    base = tmp_path_factory.mktemp("harness")
    several = _columns(text="a", choice="q", target="t")
    target: Any = {
        "kind": "loglikelihood",
        "columns": {**_columns(text="q", target="t"), "target_delimiter": ""},
        "metrics": ("perplexity", "acc"),
    }
    asked = {
        "hard": Task(HARD, checkpoint),
        # Without a chat the harness puts nothing behind a task's description.
        "shown": Task(HARD, chatty, SHOTS, f"{SYSTEM}\n\n"),
        "chat": Task(HARD, chatty, SHOTS, SYSTEM),
        "several": Task(SEVERAL, checkpoint, columns=several),
        "several-shown": Task(SEVERAL, chatty, SEVERAL_SHOTS, columns=several),
        "several-chat": Task(SEVERAL, chatty, SEVERAL_SHOTS, columns=several),
        "listed": Task(LISTED, checkpoint),
        "target": Task(TARGETS + _greedy_rows(checkpoint), checkpoint, **target),
        "target-shown": Task(TARGETS[2:], chatty, TARGETS[:2], **target),
    }
    if SHARED.is_dir():
        rows = [json.loads(line) for line in CLOZE.read_text(encoding="utf-8").splitlines()[:ASKED]]
        cloze = [{"q": row["context"], "c": row["choices"], "a": row["answer"]} for row in rows]
        asked["cloze"] = Task(cloze, TRAINED)
    for name, task in asked.items():
        (base / name).mkdir()
        task.write(base / name)
    runs = [[str(base / name), name.endswith("chat"), str(task.model)] for name, task in asked.items()]
    found = by_the_harness(_RUN, base / "cache", json.dumps(runs))
    return {name: found[str(base / name)] for name in asked}


def _values(theirs: dict[str, Any]) -> list[float]:
    return [answer[0] for answer in theirs["answers"]]


def _accuracy(session: Any, model: Any = "float", dataset: Any = "quiz", **how: Any) -> Score:
    # Some questions are longer than the context.
    score: Score = session.score("accuracy_of", model, dataset, **{"truncate": "left", **how})
    return score


@pytest.fixture
def quiz(workplace: Any) -> Any:
    """The workplace with a file of questions."""
    entry(workplace, "quiz", path=write_rows(workplace, "quiz", QUIZ), question="q", choices="c", answer="a")
    return workplace


@pytest.mark.parametrize(
    ("task", "rows", "keys"),
    [
        ("hard", HARD, {"choices": "c"}),
        ("shown", HARD, {"choices": "c", "system": SYSTEM}),
        ("chat", HARD, {"choices": "c", "system": SYSTEM}),
        *[(task, SEVERAL, {"target": "t"}) for task in ("several", "several-shown", "several-chat")],
        ("listed", LISTED, {"choices": "c"}),
    ],
)
def test_every_log_likelihood_and_accuracy_is_the_harnesss(
    workplace: Any, checkpoint: Path, chatty: Path, harness: Any, task: str, rows: Any, keys: dict[str, Any]
) -> None:
    model, examples = checkpoint, SEVERAL_SHOTS if rows is SEVERAL else SHOTS
    if task.endswith(("shown", "chat")):
        model, chat = chatty, task.endswith("chat")
        keys = {**keys, "examples": write_rows(workplace, "shots", examples), "chat": chat}
    keys = {**keys, "truncate": "left"}  # as the harness does without a word
    entry(workplace, "quiz", path=write_rows(workplace, "rows", rows), question="q", answer="a", **keys)
    session, asked = workplace.session(), parse_fixture_call("accuracy_of", (model, "quiz"), {})
    score, theirs = session.evaluator.evaluate(asked), harness[task]
    np.testing.assert_allclose(session.evaluator.cached_statistics(asked)[1].log_likelihood, _values(theirs), rtol=1e-5)
    assert {name: score.details[name] for name in theirs["accuracy"]} == pytest.approx(theirs["accuracy"], abs=1e-12)
    if "examples" in keys:
        shown = f"|truncate:left|examples:{len(examples)}|{'chat|' * chat}delimiter:{'' if chat else ' '!r}|"
        assert shown in score.signature


@pytest.mark.parametrize("task", ["target", "target-shown"])
def test_the_perplexity_of_targets_and_the_share_of_greedy_ones_are_the_harnesss(
    workplace: Any, checkpoint: Path, chatty: Path, harness: Any, task: str
) -> None:
    model = checkpoint if task == "target" else chatty
    rows = TARGETS + _greedy_rows(checkpoint) if model is checkpoint else TARGETS[2:]
    keys: dict[str, Any] = {} if model is checkpoint else {"examples": write_rows(workplace, "shots", TARGETS[:2])}
    path = write_rows(workplace, "rows", rows)
    entry(workplace, "quiz", path=path, question="q", target="t", delimiter="", truncate="left", **keys)
    session, theirs = workplace.session(), harness[task]
    asked = parse_fixture_call("target_ppl_of", (model, "quiz"), {})
    perplexity = session.evaluator.evaluate(asked)
    share = _accuracy(session, model)
    assert share.cached
    _, found = session.evaluator.cached_statistics(asked)
    np.testing.assert_allclose(found.log_likelihood, _values(theirs), rtol=1e-5)
    assert found.greedy.tolist() == [answer[1] for answer in theirs["answers"]]
    assert model is chatty or 0 < share < 1
    assert {"perplexity": perplexity, "acc": share} == pytest.approx(theirs["accuracy"], rel=1e-6)
    assert perplexity.signature.startswith("target:perplexity per row|max_length:")
    assert share.signature.startswith("target:greedy match|max_length:")


@pytest.mark.shared
@pytest.mark.usefixtures("shared_data")
def test_the_accuracy_of_a_trained_model_is_the_harnesss(workplace: Any, harness: Any) -> None:
    keys = {"question": "context", "choices": "choices", "answer": "answer", "limit": ASKED}
    entry(workplace, "cloze", path=str(CLOZE), **keys)
    score, expected = _accuracy(workplace.session(), TRAINED, "cloze"), harness["cloze"]["accuracy"]
    assert {variant: score.details[variant] for variant in expected} == pytest.approx(expected, abs=1e-12)
    assert score.n == ASKED


def test_words_of_another_column_are_counted_where_rows_are_read_one_by_one(workplace: Any) -> None:
    rows = [{"text": "the cat sat on the mat", "page": "the cat sat on the mat ."}, {"text": " \n", "page": "no one"}]
    entry(workplace, "plain", path=write_rows(workplace, "pages", rows))
    entry(workplace, "pages", path="data/pages.jsonl", counted="page")

    def scores(protocol: str) -> list[Score]:
        session = workplace.session()
        return [session.score("ppl_of", "float", name, protocol=protocol, unit="word") for name in ("plain", "pages")]

    plain, counted = scores("document")
    # The first letter is a third of a word, and is not scored.
    share = (6 - 1 / 3) / 6
    assert (plain.n, counted.n) == (round(6 * share), round(7 * share))
    assert float(counted) ** 7 == pytest.approx(float(plain) ** 6)
    whole = scores("lm-eval")
    assert [score.n for score in whole] == [6, 7]
    assert math.log(float(whole[1])) * 7 == pytest.approx(math.log(float(whole[0])) * 6)


def test_variants_and_answers_need_no_second_measurement(quiz: Any, loads: list[str]) -> None:
    scores = {name: _accuracy(quiz.session(), variant=name) for name in ("acc", "acc_norm", "acc_bytes")}
    assert loads == ["float"]
    assert [score.cached for score in scores.values()] == [False, True, True]
    assert scores["acc"].signature.startswith("variant:acc|max_length:32|truncate:left|delimiter:' '|version:")
    write_rows(quiz, "quiz", [{**row, "a": 0} for row in QUIZ])
    assert _accuracy(quiz.session()).cached
    assert loads == ["float"]
    for changed in ({"q": "the cat lay on"}, {"c": ["the mat", "a log", "the log"]}):
        write_rows(quiz, "quiz", [{**QUIZ[0], **changed}, *QUIZ[1:]])
        assert not _accuracy(quiz.session()).cached


def test_nothing_is_read_beyond_the_context(quiz: Any) -> None:
    assert float(_accuracy(quiz.session(), max_length=32)) == float(_accuracy(quiz.session()))
    with pytest.raises(
        ProtocolError, match="max_length: 33 is longer than the context of the model 'float', 32 tokens"
    ):
        _accuracy(quiz.session(), max_length=33)


def test_rows_of_a_cluster_are_not_independent(quiz: Any) -> None:
    write_rows(quiz, "quiz", [{**row, "group": index // 4} for index, row in enumerate(QUIZ)])
    alone = _accuracy(quiz.session())
    entry(quiz, "quiz", cluster="group")
    together = _accuracy(quiz.session())
    assert (together, together.cached) == (alone, True)
    # Every group has the same four rows, and so the same share.
    assert together.stderr == pytest.approx(0, abs=1e-12)
    assert alone.stderr > 0.05
