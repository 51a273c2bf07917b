"""``lmgate import`` through the command line: what it writes, refuses and compares, and pytest without the harness."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_lmgate.errors import ConfigError, DataError, LmgateError
from tests.end_to_end.projects import environment
from tests.models.tiny import made_once
from tests.tasks.harness_run import make_task
from tests.tasks.test_equal import make
from tests.warm import warm_python

# The harness is not there for pytest: every import of it fails.
_BLOCKED = "import sys\nsys.modules['lm_eval'] = None\n"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of tasks with local data; no other data can be fetched."""
    import datasets

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
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run ``lmgate import`` and return what it prints for programs."""
    from pytest_lmgate.cli.app import app

    def run(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(["import", *words, "--json"], standalone_mode=True)
        found = json.loads(capsys.readouterr().out)
        return {**found, "exit": ended.value.code}

    return run


def write_task(folder: Path, name: str, rows: Sequence[dict[str, Any]], **config: Any) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
             "test_split": "test", "doc_to_text": "q", "metadata": {"version": 1.0}, **config}  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(local))


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
    def process_results(self, doc, results):
        return {"even": doc["a"] == 0, "most": len(results[0])}

    def aggregation(self):
        return {"even": np.mean, "most": np.max}

    def higher_is_better(self):
        return {"even": True, "most": True}
"""
CHOICE = {"output_type": "multiple_choice", "doc_to_choice": "c", "doc_to_target": "a",
          "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}  # fmt: skip
TEXT = {"output_type": "generate_until", "doc_to_target": "a", "generation_kwargs": {"until": ["\n"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}  # fmt: skip
ROWS = [{"q": f"one {at}", "c": ["the cat", "a dog"], "a": at % 2} for at in range(4)]


def test_it_adds_an_entry_a_file_and_a_gate_and_leaves_all_else(project: Path, tasks: Path, run: Any) -> None:
    make_task(tasks / "arc", "arc_easy")
    before = (project / "lmgate.yaml").read_text()
    found = run("arc_easy", "--include-path", str(tasks), "--shots", "2")
    text = (project / "lmgate.yaml").read_text()
    assert text.startswith(before)
    assert "lmgate import arc_easy --shots 2" in text
    assert "lm-evaluation-harness 0.4.13, arc_easy (version 1.0), 2 shots, seed 1234" in " ".join(
        text.replace("#", "").split()
    )
    (gate,) = found["gates"]
    assert gate["arguments"] | {"tolerance": 0} == {
        "metric": "accuracy", "model": "tiny", "dataset": "arc_easy", "tolerance": 0, "variant": "acc_norm",
    }  # fmt: skip
    rows = [json.loads(line) for line in (project / "data" / "arc_easy.jsonl").read_text().splitlines()]
    assert len(rows) == found["rows"]
    assert all(row["question"].count("Question:") == 3 for row in rows)
    run("arc_easy", "--include-path", str(tasks), "--name", "again", "--model", "other")
    assert [*yaml.safe_load((project / "lmgate.yaml").read_text())["datasets"]] == ["arc_easy", "again"]


def test_the_same_command_writes_the_same_and_check_names_what_differs(project: Path, tasks: Path, run: Any) -> None:
    make_task(tasks / "gsm8k", "gsm8k")
    words = ["gsm8k", "--include-path", str(tasks), "--shots", "1"]
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
    found = run("gsm8k", "--include-path", str(tasks), "--shots", "0", "--check")
    assert found["exit"] == 1


def test_pytest_judges_without_the_harness_and_reads_the_cache_again(project: Path, tasks: Path, run: Any) -> None:
    for name in ("arc_easy", "gsm8k", "lambada_openai"):
        make_task(tasks / name, name)
        run(name, "--include-path", str(tasks))
    (project / "conftest.py").write_text(_BLOCKED)
    text = (project / "lmgate.yaml").read_text()
    for was, now in (("max_new_tokens: 256", "max_new_tokens: 16"), ("tolerance: 0.205", "tolerance: 0.1"),
                     ("variant: strict-match", "variant: flexible-extract")):  # fmt: skip
        text = text.replace(was, now)
    (project / "lmgate.yaml").write_text(text)
    command = [warm_python(environment(), "torch"), "-m", "pytest", "--rootdir", ".", "."]

    def session(*options: str) -> str:
        variables = environment() | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=variables, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    session("--lmgate-update")
    assert "3 passed" in session()
    assert session("--lmgate-explain-cache").count("hit") >= 3


@pytest.mark.parametrize(
    ("task", "rows", "words", "said"),
    [
        (CHOICE, ROWS, ["quizz"], "did you mean 'quiz'"),
        (CHOICE, ROWS, ["quiz", "--split", "tset"], "no split 'tset' (did you mean 'test'?)"),
        (CHOICE, ROWS, ["quiz", "--model", "tini"], "no model 'tini'"),
        (CHOICE, [*ROWS, {**ROWS[0], "a": 7}], ["quiz"], "its answer 7 is none of its 2 choices"),
        (CHOICE, [*ROWS, {**ROWS[0], "c": ["a", "b", "b"], "a": 2}], ["quiz"], "answer 'b' stands there twice"),
        ({**CHOICE, "num_fewshot": 0}, ROWS, ["quiz", "--shots", "2"], "defined without examples"),
        ({**CHOICE, "metric_list": [{"metric": "mcc"}]}, ROWS, ["quiz"], "aggregation matthews_corrcoef is no mean"),
        ({**TEXT, "doc_to_image": "q"}, ROWS, ["quiz"], "it shows images"),
        ({**TEXT, "unsafe_code": True}, ROWS, ["quiz"], "it runs the code that a model writes"),
        ({**TEXT, "generation_kwargs": {"until": ["\n"], "min_p": 0.1}}, ROWS, ["quiz"], "generation setting min_p"),
        ({**TEXT, "doc_to_text": "question"}, ROWS, ["quiz"], "every prompt is 'question'"),
        ({**TEXT, "doc_to_text": "{{question}}"}, ROWS, ["quiz"], "'question' is undefined"),
        ({**TEXT, "metric_list": [{"metric": "exactmatch", "aggregation": "mean"}]}, ROWS, ["quiz"],
         "exactmatch is left out: the harness has no such metric"),
        ({**TEXT, "filter_list": [{"name": "x", "filter": [{"function": "regex", "regex_pattern": "(["},
                                                           {"function": "take_first"}]}]}, ROWS, ["quiz"],
         "step 1: regex: pattern: expected a regular expression of Python, got '(['"),
        (CHOICE, [*ROWS, {**ROWS[0], "c": ["a"], "a": 0}], ["quiz"], "expected two choices or more, got 1"),
        (CHOICE, [], ["quiz"], "cannot be read, or have no rows"),
        ({"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "q",
          "metric_list": [{"metric": "word_perplexity"}]}, [{"q": " "}], ["quiz"], "expected text, got none (1 rows"),
        (CHOICE, ROWS, ["quiz", "--out", "lmgate.yaml"], "a file cannot be written: "),
        ({**CHOICE, "dataset_path": "no/data", "dataset_kwargs": None}, ROWS, ["quiz"], "load_dataset('no/data')"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_refused_with_its_reason(
    project: Path, tasks: Path, task: dict[str, Any], rows: list[dict[str, Any]], words: list[str], said: str
) -> None:
    from pytest_lmgate.cli.app import app

    write_task(tasks, "quiz", rows, **task)
    before = (project / "lmgate.yaml").read_text()
    with pytest.raises(LmgateError) as caught:
        app(["import", *words, "--include-path", str(tasks)], standalone_mode=False)
    assert said in str(caught.value)
    assert (project / "lmgate.yaml").read_text() == before
    assert not list(project.glob("data/*"))


def test_nothing_of_the_users_is_written_over_and_check_names_other_rows(project: Path, tasks: Path, run: Any) -> None:
    from pytest_lmgate.cli.app import app

    write_task(tasks, "quiz", ROWS, **CHOICE)
    words = ["quiz", "--include-path", str(tasks)]
    data, before = project / "data" / "quiz.jsonl", (project / "lmgate.yaml").read_text()
    data.parent.mkdir()
    data.write_text("mine")
    with pytest.raises(ConfigError, match=r"quiz\.jsonl exists and holds something else"):
        app(["import", *words], standalone_mode=False)
    assert (data.read_text(), (project / "lmgate.yaml").read_text()) == ("mine", before)
    data.unlink()
    (project / "lmgate.yaml").write_text(f"{before}datasets: {{}}\n")
    with pytest.raises(ConfigError, match=r"datasets: expected its entries on lines of their own"):
        app(["import", *words], standalone_mode=False)
    assert not data.exists()

    (project / "lmgate.yaml").write_text(before)
    run(*words)
    write_task(tasks, "quiz", ROWS[:3], **{**CHOICE, "target_delimiter": ""})
    changes = run(*words, "--check")["changes"]
    assert "rows: were 4, would be 3" in changes
    assert any(each.startswith("delimiter: was ") for each in changes)
    data.unlink()
    with pytest.raises(LmgateError, match=r"quiz\.jsonl cannot be read"):
        app(["import", *words, "--check"], standalone_mode=False)


@pytest.mark.parametrize(
    "code",
    [
        "def ask(text):\n    from openai import OpenAI\n    return OpenAI().ask(text)\n",
        "OpenAI = type('OpenAI', (), {'__module__': 'openai.client'})\ndef ask(text):\n    return OpenAI()\n",
    ],
)
def test_a_judge_model_is_refused_before_it_is_asked(project: Path, tasks: Path, code: str) -> None:
    from pytest_lmgate.cli.app import app

    (tasks / "utils.py").write_text(
        f"{code}\ndef score(doc, results):\n    return {{'exact_match': ask(results[0])}}\n"
    )
    write_task(tasks, "quiz", ROWS, **TEXT)
    with (tasks / "quiz.yaml").open("a") as file:
        file.write("process_results: !function utils.score\n")
    with pytest.raises(ConfigError, match="its scoring code asks a judge model by openai"):
        app(["import", "quiz", "--include-path", str(tasks)], standalone_mode=False)


def test_a_task_whose_code_ends_python_is_an_error_with_its_words(project: Path, tasks: Path) -> None:
    from pytest_lmgate.cli.app import app

    (tasks / "utils.py").write_text("import sys\nprint('no swipl in PATH')\nsys.exit(1)\n")
    write_task(tasks, "quiz", ROWS, **TEXT)
    with (tasks / "quiz.yaml").open("a") as file:
        file.write("process_results: !function utils.score\n")
    with pytest.raises(ConfigError, match="code of the task ends Python, exit code 1: no swipl in PATH"):
        app(["import", "quiz", "--include-path", str(tasks)], standalone_mode=False)


def test_a_class_whose_own_aggregation_is_the_mean_is_gated(project: Path, tasks: Path, run: Any) -> None:
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.settings.decoding import parse_fixture_call
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options

    write_task(tasks, "spans", ROWS, **TEXT)
    (tasks / "spans.py").write_text(_CLASS + _MEANS)
    (tasks / "spans.yaml").write_text("task: spans\nclass: !function spans.Own\n")
    found = run("spans", "--include-path", str(tasks))
    assert found["metrics"] == [{"metric": "task.even", "arguments": {}}]
    assert found["notes"] == ["most is left out: its aggregation, code of the task, is no mean over rows"]
    score = Evaluator(load_project(project), Options(cache=project / "cache")).evaluate(
        parse_fixture_call("metric_of", ("task.even", "tiny", "spans"), {"max_new_tokens": 4})
    )
    assert score == 0.5


def test_code_that_scores_choices_gets_no_text_and_no_greedy_flags(project: Path, tasks: Path, run: Any) -> None:
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.settings.decoding import parse_fixture_call
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options

    (tasks / "utils.py").write_text(
        "import math\n\n"
        "def score(doc, results):\n    return {'acc': math.exp(results[doc['a']][0])}\n\n"
        "def greedy(doc, results):\n    return {'acc': float(results[doc['a']][1])}\n"
    )
    for name in ("score", "greedy"):
        write_task(tasks, name, ROWS, **CHOICE)
        with (tasks / f"{name}.yaml").open("a") as file:
            file.write(f"process_results: !function utils.{name}\n")
    found = run("score", "--include-path", str(tasks))
    assert found["metrics"] == [{"metric": "task.acc", "arguments": {}}]
    evaluator = Evaluator(load_project(project), Options(cache=project / "cache"))
    probability, accuracy = (
        evaluator.evaluate(parse_fixture_call(fixture, (*named, "tiny", "score"), {}))
        for fixture, named in (("metric_of", ("task",)), ("accuracy_of", ()))
    )
    assert 0 < probability < 1
    assert accuracy.cached, "both are made of the same likelihoods"
    with pytest.raises(ConfigError, match=r"max_new_tokens: .* generates no text"):
        evaluator.evaluate(parse_fixture_call("metric_of", ("task", "tiny", "score"), {"max_new_tokens": 3}))
    from pytest_lmgate.cli.app import app

    with pytest.raises(ConfigError, match="acc is left out: code of the task looks at whether a choice is the greedy"):
        app(["import", "greedy", "--include-path", str(tasks)], standalone_mode=False)


def test_several_requests_of_a_document_are_refused(project: Path, tasks: Path) -> None:
    from pytest_lmgate.cli.app import app

    write_task(tasks, "turns", ROWS, **TEXT)
    (tasks / "turns.py").write_text(_CLASS + _TURNS)
    (tasks / "turns.yaml").write_text("task: turns\nclass: !function turns.Own\n")
    with pytest.raises(ConfigError, match="it makes several requests of a document"):
        app(["import", "turns", "--include-path", str(tasks)], standalone_mode=False)


def test_a_taken_name_and_unequal_tasks_of_a_group_are_refused(project: Path, tasks: Path, run: Any) -> None:
    from pytest_lmgate.cli.app import app

    write_task(tasks, "quiz", ROWS, **CHOICE)
    write_task(tasks, "essay", ROWS, **TEXT)
    (tasks / "both.yaml").write_text(yaml.safe_dump({"group": "both", "task": ["quiz", "essay"]}))
    run("quiz", "--include-path", str(tasks))
    with pytest.raises(ConfigError, match="already has a dataset 'quiz': choose another with --name"):
        app(["import", "quiz", "--include-path", str(tasks)], standalone_mode=False)
    with pytest.raises(ConfigError, match="different kinds"):
        app(["import", "both", "--include-path", str(tasks)], standalone_mode=False)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**TEXT, "metric_list": [{"metric": "bleu"}]}, "a mean of its tasks' bleu, which is no mean over rows"),
        (
            {
                "output_type": "loglikelihood_rolling",
                "doc_to_text": "",
                "doc_to_target": "q",
                "metric_list": [{"metric": "bits_per_byte"}],
            },
            "a mean of its tasks' bpb, which is no mean over rows; import its tasks one by one",
        ),
    ],
)
def test_a_group_whose_number_is_no_mean_over_rows_is_refused(
    project: Path, tasks: Path, config: dict[str, Any], said: str
) -> None:
    from pytest_lmgate.cli.app import app

    rows = [{"q": "the cat sat", "a": "on a mat"}]
    for name in ("one", "other"):
        write_task(tasks, name, rows, **config)
    (tasks / "both.yaml").write_text(yaml.safe_dump({"group": "both", "task": ["one", "other"]}))
    with pytest.raises(ConfigError, match=said):
        app(["import", "both", "--include-path", str(tasks)], standalone_mode=False)


def test_a_prompt_for_each_choice_cannot_be_messages(project: Path, tasks: Path) -> None:
    from pytest_lmgate.cli.app import app

    make_task(tasks / "winogrande", "winogrande")
    with pytest.raises(ConfigError, match="a prompt for each choice, which cannot be messages; leave out --chat"):
        app(["import", "winogrande", "--include-path", str(tasks), "--chat"], standalone_mode=False)


@pytest.mark.parametrize("written", ["datasets: [1]", "text", "a: [", "datasets: {quiz: 5}"])
def test_a_file_that_pytest_could_not_read_is_refused(project: Path, tasks: Path, written: str) -> None:
    from pytest_lmgate.cli.app import app

    write_task(tasks, "quiz", ROWS, **CHOICE)
    (project / "lmgate.yaml").write_text(written)
    with pytest.raises(ConfigError, match=r"lmgate\.yaml"):
        app(["import", "quiz", "--include-path", str(tasks)], standalone_mode=False)
    assert (project / "lmgate.yaml").read_text() == written


def test_a_damaged_row_is_named_by_check(project: Path, tasks: Path, run: Any) -> None:
    from pytest_lmgate.cli.app import app

    write_task(tasks, "quiz", ROWS, **CHOICE)
    run("quiz", "--include-path", str(tasks))
    (project / "data" / "quiz.jsonl").write_text("{}\n[1]\n")
    with pytest.raises(LmgateError, match="line 2: expected an object"):
        app(["import", "quiz", "--include-path", str(tasks), "--check"], standalone_mode=False)


def test_a_choice_that_stands_there_twice_is_left_out(project: Path, tasks: Path, run: Any) -> None:
    write_task(tasks, "quiz", [*ROWS, {**ROWS[0], "c": ["b", "b", "a"], "a": 2}], **CHOICE)
    assert run("quiz", "--include-path", str(tasks))["rows"] == 5
    last = json.loads((project / "data" / "quiz.jsonl").read_text().splitlines()[-1])
    assert (last["choices"], last["answer"]) == (["b", "a"], 1)


def test_rows_on_which_no_model_could_be_right_are_left_out_on_request(project: Path, tasks: Path, run: Any) -> None:
    write_task(tasks, "quiz", [*ROWS, {**ROWS[0], "a": 7}], **CHOICE)
    found = run("quiz", "--include-path", str(tasks), "--skip-rows")
    assert found["rows"] == 4
    assert "left out, because no model could be right: quiz: document 4" in found["notes"][0]


def test_a_reference_that_the_extraction_cannot_read_is_told(project: Path, tasks: Path, run: Any) -> None:
    from pytest_lmgate.cli.app import app

    rows = [{"q": f"one {at}", "a": f"a sum\n#### {at}"} for at in range(4)]
    steps = [{"function": "regex", "regex_pattern": "#### ([0-9]+)"}, {"function": "take_first"}]
    metric = {**TEXT["metric_list"][0], "regexes_to_ignore": ["(?s).*#### "]}
    config = {**TEXT, "filter_list": [{"name": "number", "filter": steps}], "metric_list": [metric]}
    write_task(tasks, "sums", [*rows, {"q": "x", "a": "a sum\n#### none"}], **config)
    with pytest.raises(LmgateError, match="document 4: the extraction number cannot read its own reference"):
        app(["import", "sums", "--include-path", str(tasks)], standalone_mode=False)
    assert run("sums", "--include-path", str(tasks), "--skip-rows")["rows"] == 4
    steps[0]["group_select"] = 3
    write_task(tasks, "fourth", rows, **config)
    (note,) = run("fourth", "--include-path", str(tasks))["notes"]
    assert note.startswith("the extraction number reads 0 of 4 references")


def test_code_of_a_task_scores_when_a_gate_is_judged_and_says_if_it_cannot(
    project: Path, tasks: Path, run: Any
) -> None:
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.settings.decoding import parse_fixture_call
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options

    (tasks / "utils.py").write_text("def score(doc, results):\n    return {'length': len(results[0])}\n")
    write_task(tasks, "essay", ROWS, **{**TEXT, "metric_list": [{"metric": "length", "aggregation": "mean",
                                                               "higher_is_better": True}],
                                        "generation_kwargs": {"until": ["<s>"], "max_gen_toks": 5}})  # fmt: skip
    text = (tasks / "essay.yaml").read_text()
    (tasks / "essay.yaml").write_text(text + "process_results: !function utils.score\n")
    found = run("essay", "--include-path", str(tasks))
    assert found["metrics"] == [{"metric": "task.length", "arguments": {}}]
    evaluator = Evaluator(load_project(project), Options(cache=project / "cache"))
    for name, given, characters in (("task", {}, 5), ("task.length", {}, 5), ("task", {"max_new_tokens": 8}, 8)):
        assert evaluator.evaluate(parse_fixture_call("metric_of", (name, "tiny", "essay"), given)) == characters
    with pytest.raises(
        ConfigError, match=r"max_new_tokens:5, .*: only a model has generation settings, not the function"
    ):
        evaluator.evaluate(parse_fixture_call("metric_of", ("task", lambda prompts: prompts, "essay"), {}))
    with pytest.raises(ConfigError, match="no metric 'lenght'"):
        evaluator.evaluate(parse_fixture_call("metric_of", ("task.lenght", "tiny", "essay"), {}))


def test_votes_among_several_texts_equal_the_harness_on_the_same_texts(project: Path, tasks: Path, run: Any) -> None:
    import random

    from lm_eval.api.instance import Instance

    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.measure.texts import WrittenTexts, score_texts, text_metric
    from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options
    from pytest_lmgate.tasks import harness

    name = "gsm8k_cot_self_consistency"
    make_task(tasks / name, name)
    found = run(name, "--include-path", str(tasks))
    evaluator = Evaluator(load_project(project), Options(cache=project / "cache"))
    rows = evaluator.resolver.rows(name)
    settings = rows.spec
    assert (settings.repeats, settings.temperature, settings.seed) == (64, 0.2, 1234)
    drawn, count = random.Random(0), found["rows"]
    said = ["The answer is 7.", "The answer is 7,748", "The answer is 7748.", "The answer is 48", "seven", "#### 7"]
    texts = [drawn.choice(said) for _ in range(64 * count)]
    (task,) = harness.find(name, tasks).tasks.values()
    docs = list(task.eval_docs)
    instances = []
    for row in range(count):
        instances.append(Instance("generate_until", docs[row], ("", {}), 0, metadata=(name, row, 64)))
        instances[-1].resps = texts[row::count]
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
        evaluator.check(parse_marker("exact_min", ("tiny", name, 0.5), {"variant": "maj-8", "repeats": 4}))
    with pytest.raises(ConfigError, match="makes one of all texts"):
        evaluator.check(parse_marker("exact_min", ("tiny", name, 0.5), {"variant": "maj-8:pass@4"}))


def test_without_a_model_the_command_says_to_add_one_and_a_last_line_without_an_end_gets_one(
    project: Path, tasks: Path, run: Any
) -> None:
    write_task(tasks, "quiz", ROWS, **CHOICE)
    (project / "lmgate.yaml").write_text("defaults: {batch_size: 2}")
    assert run("quiz", "--include-path", str(tasks))["gates"][0]["arguments"]["model"] == "MODEL"
    written = (project / "lmgate.yaml").read_text()
    assert written.startswith("defaults: {batch_size: 2}\ndatasets:\n")
    assert "gates:" not in written


def test_a_group_without_a_number_of_its_own_gets_the_mean_over_all_rows(project: Path, tasks: Path, run: Any) -> None:
    for name in ("one", "other"):
        write_task(tasks, name, ROWS, **CHOICE)
    (tasks / "both.yaml").write_text(yaml.safe_dump({"group": "both", "task": ["one", "other"]}))
    found = run("both", "--include-path", str(tasks))
    assert found["notes"] == ["the harness gives the group no number of its own; here it is the mean over all rows"]
    assert found["rows"] == 8


@pytest.mark.parametrize("value", [float("nan"), "\ud800"])
def test_a_document_that_is_no_json_in_utf_8_is_an_error(value: Any) -> None:
    from pytest_lmgate.cli.tasks import Imported

    with pytest.raises(DataError, match="the task's documents cannot be written as JSON in UTF-8: "):
        _ = Imported([{"q": value}], {}, [], [], "").data
