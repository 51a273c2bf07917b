"""``lmgate import`` through the command line: what it writes, refuses and compares, and pytest without the harness."""

import errno
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_lmgate.errors import ConfigError, DataError, LmgateError
from tests.end_to_end.projects import Project
from tests.models.tiny import made_once
from tests.tools.tasks.harness_run import make_task
from tests.tools.tasks.test_equal import make

# The harness is not there for pytest: every import of it fails.
_BLOCKED = "import sys\nsys.modules['lm_eval'] = None\n"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of tasks with local data, beside which the harness has its tasks of ARC; no other data can be fetched."""
    import datasets
    import lm_eval.tasks
    from lm_eval.tasks._index import TaskIndex

    own, files = Path(lm_eval.tasks.__file__).parent, TaskIndex._iter_yaml_files
    assert own / "arc" / "arc_easy.yaml" in files(own / "arc")  # of 13,000, which take seconds
    monkeypatch.setattr(TaskIndex, "_iter_yaml_files", lambda root: files(own / "arc" if root == own else root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    folder = tmp_path / "tasks"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copytree(made_once(tmp_path_factory.getbasetemp(), "answering", make), folder / "model")
    (folder / "lmgate.yaml").write_text(
        "# ours\nmodels:\n  tiny: {path: model, device: cpu}  # the first\n  other: {path: model}\n\n# the end\n"
    )
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(tasks: Path) -> Callable[..., dict[str, Any]]:
    """Run ``lmgate import`` and return what it prints for programs."""
    from pytest_lmgate.cli.app import app

    def run(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["import", *words, "--include-path", str(tasks), "--json"])
        return {**json.loads(done.stdout), "exit": done.exit_code}

    return run


@pytest.fixture
def refused(project: Path, tasks: Path) -> Callable[..., str]:
    """Run ``lmgate import`` and return the error that it ends with, having left lmgate.yaml as it was."""
    from pytest_lmgate.cli.app import app

    def run(*words: str) -> str:
        before = (project / "lmgate.yaml").read_text()
        done = CliRunner().invoke(app, ["import", *words, "--include-path", str(tasks)])
        assert isinstance(done.exception, LmgateError), done.output
        assert (project / "lmgate.yaml").read_text() == before
        return str(done.exception)

    return run


@pytest.fixture
def evaluate(project: Path) -> Callable[..., Any]:
    """Measure by what was imported, as a fixture of pytest does."""
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.settings.decoding import parse_fixture_call
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options

    def evaluate(fixture: str, *words: Any, **given: Any) -> Any:
        evaluator = Evaluator(load_project(project), Options(cache=project / "cache"))
        return evaluator.evaluate(parse_fixture_call(fixture, words, given))

    return evaluate


def write_task(folder: Path, name: str, rows: Sequence[dict[str, Any]], code: str = "", **config: Any) -> None:
    """Write a task, with code of its own whose function `score` scores its documents if it is given."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
             "test_split": "test", "doc_to_text": "q", "metadata": {"version": 1.0}, **config}  # fmt: skip
    scores = f"process_results: !function utils_{name}.score\n" if code else ""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(local) + scores)
    (folder / f"utils_{name}.py").write_text(code)


_CLASS = """
from pathlib import Path
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

class Own(ConfigurableTask):
    def __init__(self, config=None):
        data = str(Path(__file__).with_suffix(".jsonl"))
        super().__init__(config={
            "task": "own", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data}},
            "test_split": "test", "doc_to_text": "q", "doc_to_target": "a", "output_type": "generate_until",
            "metric_list": [{"metric": "exact_match"}],
        })
"""
_TURNS = """
    def construct_requests(self, doc, ctx, **how):
        return [
            Instance("generate_until", doc, (ctx + turn, {"until": ["\\n"]}), index, metadata=how["metadata"])
            for index, turn in enumerate(("", " Why?"))
        ]
"""
_MEANS = """
    def process_results(self, doc, results): return {"even": doc["a"] == 0, "most": len(results[0])}
    def aggregation(self): return {"even": np.mean, "most": np.max}
    def higher_is_better(self): return {"even": True, "most": True}
"""
CHOICE = {"output_type": "multiple_choice", "doc_to_choice": "c", "doc_to_target": "a",
          "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}  # fmt: skip
TEXT = {"output_type": "generate_until", "doc_to_target": "a", "generation_kwargs": {"until": ["\n"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}  # fmt: skip
ROWS = [{"q": f"one {at}", "c": ["the cat", "a dog"], "a": at % 2} for at in range(4)]


def write_class(folder: Path, name: str, code: str) -> None:
    """Write a task that is a class ``Own``."""
    write_task(folder, name, ROWS)
    (folder / f"{name}.py").write_text(code)
    (folder / f"{name}.yaml").write_text(f"task: {name}\nclass: !function {name}.Own\n")


def write_pair(folder: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Write two tasks, and a group of both."""
    write_task(folder, "one", ROWS, **one)
    write_task(folder, "other", ROWS, **other)
    (folder / "both.yaml").write_text("group: both\ntask: [one, other]\n")


def test_it_adds_an_entry_a_file_and_a_gate_and_leaves_all_else(project: Path, tasks: Path, run: Any):
    make_task(tasks / "arc", "arc_easy")
    before = (project / "lmgate.yaml").read_text()
    found = run("arc_easy", "--shots", "2")
    text = (project / "lmgate.yaml").read_text()
    assert text.startswith(before)
    assert "lmgate import arc_easy --shots 2" in text
    assert "0.4.13, arc_easy (version 1.0), 2 shots, seed 1234" in " ".join(text.replace("#", "").split())
    (gate,) = found["gates"]
    assert gate["arguments"] | {"tolerance": 0} == {
        "metric": "accuracy", "model": "tiny", "dataset": "arc_easy", "tolerance": 0, "variant": "acc_norm",
    }  # fmt: skip
    rows = [json.loads(line) for line in (project / "data" / "arc_easy.jsonl").read_text().splitlines()]
    assert len(rows) == found["rows"]
    assert all(row["question"].count("Question:") == 3 for row in rows)
    run("arc_easy", "--name", "again", "--model", "other")
    assert [*yaml.safe_load((project / "lmgate.yaml").read_text())["datasets"]] == ["arc_easy", "again"]


def test_a_file_that_the_harness_leaves_out_for_its_include_is_named(project: Path, tasks: Path, refused: Any):
    (tasks / "quiz.yaml").write_text("task: quiz\ninclude: gone.yaml\n")
    (tasks / "other.yaml").write_text("task: other\ninclude: lost.yaml\n")
    said = refused("quiz")
    assert f"{tasks / 'quiz.yaml'} cannot be read" in said
    assert "gone.yaml" in said
    assert "lost.yaml" not in said


def test_a_command_writes_the_same_again_and_check_names_changes(project: Path, tasks: Path, run: Any, refused: Any):
    make_task(tasks / "gsm8k", "gsm8k")
    words = ["gsm8k", "--shots", "1"]
    run(*words)
    file = project / "data" / "gsm8k.jsonl"
    first = file.read_bytes()
    run(*words, "--name", "twice")
    assert (project / "data" / "twice.jsonl").read_bytes() == first
    assert run(*words, "--check") == {"same": True, "changes": [], "exit": 0}
    file.write_bytes(first.replace(b"Question: ", b"question: ", 1))
    found = run(*words, "--check")
    assert found["exit"] == 1
    assert "line 1: prompt: was 'question: " in found["changes"][0]
    assert run("gsm8k", "--shots", "0", "--check")["exit"] == 1
    file.write_text("{}\n[1]\n")
    assert "line 2: expected an object" in refused(*words, "--check")


def test_pytest_judges_without_the_harness_and_reads_the_cache_again(project: Path, tasks: Path, run: Any):
    for name in ("arc_easy", "gsm8k"):
        make_task(tasks / name, name)
        run(name)
    (project / "conftest.py").write_text(_BLOCKED)
    text = (project / "lmgate.yaml").read_text()
    assert "tolerance: 0.1," in text
    assert re.search(r"rows show no loss below 0\.\d+: import 25 or more", " ".join(text.replace("#", "").split()))
    for was, now in (("max_new_tokens: 256", "max_new_tokens: 16"),
                     ("variant: strict-match", "variant: flexible-extract")):  # fmt: skip
        text = text.replace(was, now)
    (project / "lmgate.yaml").write_text(text)
    session = Project(project)
    session.run("--rootdir", ".", ".", "--lmgate-update").expect(0, passed=2)
    again = session.run("--rootdir", ".", ".", "--lmgate-explain-cache", torch_free=True).expect(0, passed=2)
    assert again.out.count("hit") >= 2


_FILTERS = [{"name": "x", "filter": [{"function": "regex", "regex_pattern": "(["}, {"function": "take_first"}]}]
_ROLLING = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "q"}


@pytest.mark.parametrize(
    ("task", "rows", "words", "said"),
    [
        (CHOICE, ROWS, ["quizz"], "did you mean 'quiz'"),
        (CHOICE, ROWS, ["arc_esay"], "did you mean 'arc_easy'"),
        (CHOICE, ROWS, ["quiz", "--split", "tset"], "no split 'tset' (did you mean 'test'?)"),
        (CHOICE, ROWS, ["quiz", "--model", "tini"], "no model 'tini'"),
        (CHOICE, [*ROWS, {**ROWS[0], "a": 7}], ["quiz"], "its answer 7 is none of its 2 choices"),
        ({**CHOICE, "num_fewshot": 0}, ROWS, ["quiz", "--shots", "2"], "defined without examples"),
        ({**CHOICE, "metric_list": [{"metric": "mcc"}]}, ROWS, ["quiz"], "matthews_corrcoef"),
        ({**TEXT, "doc_to_image": "q"}, ROWS, ["quiz"], "it shows images"),
        ({**TEXT, "unsafe_code": True}, ROWS, ["quiz"], "it runs the code that a model writes"),
        ({**TEXT, "generation_kwargs": {"until": ["\n"], "min_p": 0.1}}, ROWS, ["quiz"], "generation setting min_p"),
        ({**TEXT, "doc_to_text": "question"}, ROWS, ["quiz"], "every prompt is 'question'"),
        ({**TEXT, "doc_to_text": "{{question}}"}, ROWS, ["quiz"], "'question' is undefined"),
        ({**TEXT, "filter_list": _FILTERS}, ROWS, ["quiz"], "step 1: regex: pattern: "),
        (CHOICE, [*ROWS, {**ROWS[0], "c": ["a"], "a": 0}], ["quiz"], "expected two choices or more, got 1"),
        (CHOICE, [], ["quiz"], "cannot be read, or have no rows"),
        ({**_ROLLING, "metric_list": [{"metric": "word_perplexity"}]}, [{"q": " "}], ["quiz"], "expected text, got "),
        (CHOICE, ROWS, ["quiz", "--out", "lmgate.yaml"], "a file cannot be written: "),
        ({**CHOICE, "dataset_path": "no/data", "dataset_kwargs": None}, ROWS, ["quiz"], "load_dataset('no/data')"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_refused_with_its_reason(
    project: Path, tasks: Path, refused: Any, task: Any, rows: Any, words: Any, said: str
):
    write_task(tasks, "quiz", rows, **task)
    assert said in refused(*words)
    assert not list(project.glob("data/*"))


def test_nothing_of_users_is_replaced_and_check_names_other_rows(project: Path, tasks: Path, run: Any, refused: Any):
    write_task(tasks, "quiz", ROWS, **CHOICE)
    data, before = project / "data" / "quiz.jsonl", (project / "lmgate.yaml").read_text()
    data.parent.mkdir()
    data.write_text("mine")
    assert "quiz.jsonl exists and holds something else" in refused("quiz")
    assert data.read_text() == "mine"
    data.unlink()
    for written in (f"{before}datasets: {{}}\n", "datasets: [1]", "text", "a: [", "datasets: {quiz: 5}"):
        (project / "lmgate.yaml").write_text(written)
        assert "lmgate.yaml" in refused("quiz")
        assert not data.exists()

    (project / "lmgate.yaml").write_text(before)
    run("quiz")
    assert "already has a dataset 'quiz': choose another with --name" in refused("quiz")
    write_task(tasks, "quiz", ROWS[:3], **{**CHOICE, "target_delimiter": ""})
    changes = run("quiz", "--check")["changes"]
    assert "rows: were 4, would be 3" in changes
    assert any(each.startswith("delimiter: was ") for each in changes)
    data.unlink()
    assert "quiz.jsonl cannot be read" in refused("quiz", "--check")


_ASKS = "def score(doc, results):\n    return {'exact_match': OpenAI()}\n"
_MADE = "OpenAI = type('OpenAI', (), {'__module__': 'openai.client'})\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (_ASKS.replace("    return", "    from openai import OpenAI\n    return"), "a judge model by openai"),
        (f"{_MADE}{_ASKS}", "a judge model by openai"),
        ("import sys\nprint('no swipl in PATH')\nsys.exit(1)\n", "ends Python, exit code 1: no swipl in PATH"),
    ],
)
def test_code_that_asks_a_judge_model_or_ends_python_is_refused(tasks: Path, refused: Any, code: str, said: str):
    write_task(tasks, "quiz", ROWS, code, **TEXT)
    assert said in refused("quiz")


def test_a_class_whose_own_aggregation_is_the_mean_is_gated(tasks: Path, project: Path, run: Any, evaluate: Any):
    write_class(tasks, "spans", _CLASS + _MEANS)
    found = run("spans")
    assert found["metrics"] == [{"metric": "task.even", "arguments": {}}]
    assert found["notes"] == ["most is left out: its aggregation, code of the task, is not a mean over rows"]
    assert evaluate("metric_of", "task.even", "tiny", "spans", max_new_tokens=4) == 0.5


def test_code_that_scores_choices_gets_no_text_and_no_greedy_flags(tasks: Path, run: Any, refused: Any, evaluate: Any):
    scores = "import math\n\ndef score(doc, results):\n    return {'acc': math.exp(results[doc['a']][0])}\n"
    write_task(tasks, "likely", ROWS, scores, **CHOICE)
    greedy = "def score(doc, results):\n    return {'acc': float(results[doc['a']][1])}\n"
    write_task(tasks, "greedy", ROWS, greedy, **CHOICE)
    assert run("likely")["metrics"] == [{"metric": "task.acc", "arguments": {}}]
    assert 0 < evaluate("metric_of", "task", "tiny", "likely") < 1
    assert evaluate("accuracy_of", "tiny", "likely").cached, "both are made of the same likelihoods"
    with pytest.raises(ConfigError, match=r"max_new_tokens: .* generates no text"):
        evaluate("metric_of", "task", "tiny", "likely", max_new_tokens=3)
    assert "acc is left out: code of the task looks at whether a choice is the greedy" in refused("greedy")


def test_several_requests_of_a_document_and_a_prompt_for_each_choice_in_a_chat_are_refused(tasks: Path, refused: Any):
    write_class(tasks, "turns", _CLASS + _TURNS)
    assert "it makes several requests of a document" in refused("turns")
    make_task(tasks / "winogrande", "winogrande")
    assert "a prompt for each choice, which cannot be messages" in refused("winogrande", "--chat")


def test_a_group_of_unequal_tasks_or_whose_number_is_no_mean_over_rows_is_refused(tasks: Path, refused: Any):
    write_pair(tasks, CHOICE, TEXT)
    assert "different kinds" in refused("both")
    for task, metric, said in (
        (TEXT, "bleu", "bleu, which is not a mean"),
        (_ROLLING, "bits_per_byte", "bpb, which is"),
    ):
        write_pair(tasks, *({**task, "metric_list": [{"metric": metric}]},) * 2)
        assert f"a mean of its tasks' {said}" in refused("both")


def test_a_reference_that_no_extraction_reads_is_told_and_left_out_on_request(tasks: Path, run: Any, refused: Any):
    rows = [{"q": f"one {at}", "a": f"a sum\n#### {at}"} for at in range(4)]
    steps = [{"function": "regex", "regex_pattern": "#### ([0-9]+)"}, {"function": "take_first"}]
    metric = {**TEXT["metric_list"][0], "regexes_to_ignore": ["(?s).*#### "]}
    config = {**TEXT, "filter_list": [{"name": "number", "filter": steps}], "metric_list": [metric]}
    write_task(tasks, "sums", [*rows, {"q": "x", "a": "a sum\n#### none"}], **config)
    assert "document 4: the extraction number cannot read its own reference" in refused("sums")
    found = run("sums", "--skip-rows")
    assert found["rows"] == 4
    assert "left out, because they cannot be judged: sums: document 4" in found["notes"][0]
    steps[0]["group_select"] = 3
    write_task(tasks, "fourth", rows, **config)
    (note,) = run("fourth")["notes"]
    assert note.startswith("the extraction number reads 0 of 4 references")


def test_code_of_a_task_scores_when_a_gate_is_judged_and_says_if_it_cannot(tasks: Path, run: Any, evaluate: Any):
    code = "def score(doc, results):\n    return {'length': len(results[0])}\n"
    metrics = [{"metric": "length", "aggregation": "mean", "higher_is_better": True}]
    settings = {"until": ["<s>"], "max_gen_toks": 5}
    write_task(tasks, "essay", ROWS, code, **{**TEXT, "metric_list": metrics, "generation_kwargs": settings})
    assert run("essay")["metrics"] == [{"metric": "task.length", "arguments": {}}]
    for name, given, characters in (("task", {}, 5), ("task.length", {}, 5), ("task", {"max_new_tokens": 8}, 8)):
        assert evaluate("metric_of", name, "tiny", "essay", **given) == characters
    with pytest.raises(ConfigError, match=r"max_new_tokens:5, .*not the function"):
        evaluate("metric_of", "task", lambda prompts: prompts, "essay")
    with pytest.raises(ConfigError, match="no metric 'lenght'"):
        evaluate("metric_of", "task.lenght", "tiny", "essay")


def test_votes_among_several_texts_equal_the_harness_on_the_same_texts(project: Path, tasks: Path, run: Any):
    from lm_eval.api.instance import Instance

    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.measure.texts import WrittenTexts, score_texts, text_metric
    from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options
    from pytest_lmgate.tools.tasks import harness

    name = "gsm8k_cot_self_consistency"
    make_task(tasks / name, name)
    found = run(name)
    evaluator = Evaluator(load_project(project), Options(cache=project / "cache"))
    rows = evaluator.resolver.rows(name)
    assert (rows.spec.repeats, rows.spec.temperature, rows.spec.seed) == (64, 0.2, 1234)
    drawn, count = random.Random(0), found["rows"]
    said = ["The answer is 7.", "The answer is 7,748", "The answer is 7748.", "The answer is 48", "seven", "#### 7"]
    texts = [drawn.choice(said) for _ in range(64 * count)]
    (task,) = harness.find(name, tasks).tasks.values()
    docs = list(task.eval_docs)
    instances = [Instance("generate_until", docs[row], ("", {}), 0, metadata=(name, row, 64)) for row in range(count)]
    for row, instance in enumerate(instances):
        instance.resps = texts[row::count]
    for ensemble in task._filters:
        ensemble.apply(instances)
    assert len(found["metrics"]) == len(task._filters) == 3
    values = {}
    for ensemble, gate in zip(task._filters, found["metrics"], strict=True):
        theirs = [
            task.process_results(each.doc, [each.filtered_resps[ensemble.name]])["exact_match"] for each in instances
        ]
        asked = parse_fixture_call("exact_of", ("tiny", name), gate["arguments"])
        ours = score_texts(text_metric(asked.how, {}), rows, WrittenTexts(texts, [None] * len(texts)))
        assert ours.sample is not None
        assert ours.sample.by_row.sums[:, 0].tolist() == theirs
        values[ensemble.name] = ours.value
    assert len(set(values.values())) > 1
    with pytest.raises(ConfigError, match="expected repeats=8 or more"):
        evaluator.bind_gate(parse_marker("exact_min", ("tiny", name, 0.5), {"variant": "maj-8", "repeats": 4}))
    with pytest.raises(ConfigError, match="makes one of all texts"):
        evaluator.bind_gate(parse_marker("exact_min", ("tiny", name, 0.5), {"variant": "maj-8:pass@4"}))


def test_a_gate_may_lack_a_model_and_a_group_without_a_number_is_the_mean_of_rows(project: Path, tasks: Path, run: Any):
    write_pair(tasks, CHOICE, CHOICE)
    (project / "lmgate.yaml").write_text("defaults: {batch_size: 2}")
    found = run("both")
    assert found["rows"] == 8
    assert found["notes"] == ["the harness gives the group no number of its own; here it is the mean over all rows"]
    assert found["gates"][0]["arguments"]["model"] == "MODEL"
    written = (project / "lmgate.yaml").read_text()
    assert written.startswith("defaults: {batch_size: 2}\ndatasets:\n")
    assert "gates:" not in written


@pytest.mark.parametrize("number", [1, 2])
def test_a_full_disk_leaves_lmgate_yaml_as_it_was_and_no_data(
    project: Path, tasks: Path, refused: Any, monkeypatch: pytest.MonkeyPatch, number: int
):
    write_task(tasks, "quiz", ROWS, **CHOICE)
    synced, fsync = list[int](), os.fsync

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2 * number - 1:  # of each file, then of its folder
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", full)
    assert "a file cannot be written: " in refused("quiz")
    assert [path.name for path in project.rglob("*") if path.suffix in (".jsonl", ".tmp")] == []


@pytest.mark.parametrize("value", [float("nan"), "\ud800"])
def test_a_document_that_is_no_json_in_utf_8_is_an_error(value: Any):
    from pytest_lmgate.tools.tasks.command import Imported

    with pytest.raises(DataError, match="the task's documents cannot be written as JSON in UTF-8: "):
        _ = Imported([{"q": value}], {}, [], [], "").data
