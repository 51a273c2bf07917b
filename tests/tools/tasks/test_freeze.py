"""What becomes of a task, without a project and a model: refusals, notes, gates, and the harness's own words."""

import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.errors import ConfigError, LmgateError, MetricInputError
from pytest_lmgate.settings.entries import DatasetSpec, TaskSpec
from pytest_lmgate.tools.tasks import harness
from pytest_lmgate.tools.tasks.freeze import Frozen, freeze
from pytest_lmgate.tools.tasks.scoring import task_metric
from tests.tools.tasks.test_import import CHOICE, ROWS, TEXT, write_class, write_task

Loaded = Callable[..., Any]
LIKELIHOOD = {"output_type": "loglikelihood", "doc_to_target": "q", "metric_list": [{"metric": "acc"}]}
ROLLING = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "q",
           "metric_list": [{"metric": "word_perplexity"}]}  # fmt: skip
FIRST = {"function": "take_first"}


def filters(**first: dict[str, Any]) -> dict[str, Any]:
    """Return a text's task with filters by name, each followed by take_first if it is not that itself."""
    listed = {name: [each, *[FIRST] * (each != FIRST)] for name, each in first.items()}
    return {**TEXT, "filter_list": [{"name": name, "filter": each} for name, each in listed.items()]}


@pytest.fixture
def load(tmp_path: Path) -> Loaded:
    """Write a task and load it by the harness."""
    import datasets

    datasets.disable_progress_bars()

    def load(rows: Sequence[dict[str, Any]] = ROWS, code: str = "", **config: Any) -> Any:
        write_task(tmp_path, "quiz", rows, code, **config)
        task = harness.find("quiz", tmp_path).tasks["quiz"]
        harness.prepare(task, shots=None, seed=1234, split=None)
        return task

    return load


def frozen(task: Any) -> Frozen:
    return freeze(task, harness.documents(task, rows=None, chat=False), chat=False, file="quiz.yaml")


def score(returned: str) -> str:
    return f"def score(doc, results):\n    return {returned}\n"


@pytest.mark.parametrize(
    ("config", "rows", "code", "said"),
    [
        (CHOICE, [{**ROWS[0], "c": ["a", "b", "b"], "a": 2}], "", "the first; nor could it be on any other document"),
        (CHOICE, ROWS, score("{'acc': 1 / 0}"), "its scoring code fails: ZeroDivisionError: division by zero"),
        (CHOICE, ROWS, score("{'acc': 0.0}"), "document 0: no choice is right by the task's own code"),
        (CHOICE, [{**ROWS[0], "c": ["a", "b", "b"]}], score("{'acc': results[0][0]}"),
         "acc is left out: code of the task reads more than one likelihood of each different choice (document 0)"),
        ({**CHOICE, "metric_list": [{"metric": "exact_match"}]}, ROWS, "",
         "exact_match is left out: pytest-lmgate has no such metric"),
        ({**CHOICE, "metric_list": [{"metric": "acc", "higher_is_better": False}]}, ROWS, "",
         "acc is left out: the task says that lower is better"),
        ({**TEXT, "metric_list": [{"metric": "exact_match", "higher_is_better": False}]}, ROWS, "",
         "exact_match is left out: the task says that lower is better"),
        (LIKELIHOOD, ROWS, score("{'acc': 1.0}"), "code of its own scores its likelihoods"),
        ({**LIKELIHOOD, "metric_list": [{"metric": "acc", "aggregation": "median"}]}, ROWS, "",
         "acc is left out: its aggregation median is not a mean over rows"),
        ({**ROLLING, "metric_list": [{"metric": "word_perplexity", "aggregation": "mean"}]}, ROWS, "",
         "word_perplexity is left out: pytest-lmgate has no such metric"),
        (ROLLING, ROWS, score("{'word_perplexity': (results[0], 99)}"),
         "word_perplexity is left out: the task counts words or bytes of a text that no column holds"),
        (TEXT, ROWS, score("{'exact_match': 1 / 0}"),
         "code of its own, which cannot run here: task: its scoring code fails: ZeroDivisionError: division by zero"),
        ({**TEXT, "repeats": 4, "filter_list": [{"name": "all", "filter": [{"function": "lowercase"}]}]}, ROWS, "",
         "the filter all is left out: it needs 4 texts of a prompt, which are all the same because the task does not"),
        ({**TEXT, "repeats": 4, "generation_kwargs": {"do_sample": True, "temperature": 0.5},
          "metric_list": [{"metric": "bleu"}],
          "filter_list": [{"name": "vote", "filter": [{"function": "majority_vote"}, FIRST]}]}, ROWS, "",
         "bleu is left out: it would be a mean over the 4 texts of a row"),
        ({**TEXT, "metric_list": [{"metric": "bleu"}],
          "filter_list": [{"name": "low", "filter": [{"function": "lowercase"}, FIRST]}]}, ROWS, "",
         "bleu is left out: it scores a part of the text"),
    ],
)  # fmt: skip
def test_what_no_gate_can_be_made_of_is_refused_with_reasons(
    load: Loaded, config: Any, rows: Any, code: str, said: str
):
    task = load(rows, code, **config)
    with pytest.raises(LmgateError) as caught:
        frozen(task)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("config", "gates", "extract"),
    [
        ({**filters(some=FIRST, low={"function": "lowercase"}),
          "metric_list": [*TEXT["metric_list"], {"metric": "bleu"}]},
         [("exact", {"variant": "some", "strip": False}), ("bleu", {}), ("exact", {"variant": "low", "strip": False})],
         {"raw": ["take_first"], "some": ["take_first"], "low": ["lowercase", "take_first"]}),
        (filters(span={"function": "format_span"}, half={"function": "regex", "fallback": 0.5},
                 yes={"function": "map", "mapping_dict": {1: 2}, "default_value": 0.5}),
         [("task.exact_match.span", {}), ("task.exact_match.half", {}), ("exact", {"variant": "yes", "strip": False})],
         {"yes": [{"map": {"mapping": {"1": "2"}, "default": "0.5"}}, "take_first"], "raw": ["take_first"]}),
        ({**TEXT, "filter_list": [
            {"name": "first", "filter": [FIRST, {"function": "regex", "regex_pattern": "cat"}]},
            {"name": "last", "filter": [{"function": "regex", "regex_pattern": "cat"}, FIRST]}]},
         [("task.exact_match.first", {}), ("exact", {"variant": "last", "strip": False})],
         {"last": [{"regex": {"pattern": "cat"}}, "take_first"], "raw": ["take_first"]}),
    ],
)  # fmt: skip
def test_filters_become_extractions_and_others_code_of_the_task(load: Loaded, config: Any, gates: Any, extract: Any):
    found = frozen(load(**config))
    assert found.gates == gates
    assert found.entry["extract"] == extract


def test_a_reference_may_be_one_of_the_choices_and_words_be_counted_in_a_column_behind_others(load: Loaded):
    found = frozen(load(**{**TEXT, "doc_to_choice": "c"}))
    assert [row["references"] for row in found.rows] == [["the cat"], ["a dog"]] * 2
    code = score("{'word_perplexity': (results[0], len(doc['long'].split()))}")
    rows = [{"n": 1, "q": "the cat", "long": "the cat sat"}]
    found = frozen(load(rows, code, **ROLLING))
    assert found.rows == [{"id": 0, "text": "the cat", "counted": "the cat sat"}]


def test_choices_after_different_delimiters_and_documents_that_json_cannot_hold_are_refused(load: Loaded):
    task = load(**CHOICE)
    one, other, *_ = harness.documents(task, rows=2, chat=False)
    other = replace(other, arguments=[(prompt, text.strip()) for prompt, text in other.arguments])
    with pytest.raises(ConfigError, match="its choices follow '' and ' ': one delimiter is needed"):
        freeze(task, [one, other], chat=False, file="quiz.yaml")
    task = load(ROWS, score("{'exact_match': 1.0}"), **TEXT)
    (document,) = harness.documents(task, rows=1, chat=False)
    document = replace(document, doc={**document.doc, "day": datetime.date(2024, 2, 29)})
    with pytest.raises(ConfigError, match="reads a document 0 that JSON cannot hold: Object of type date is not JSON"):
        freeze(task, [document], chat=False, file="quiz.yaml")


def test_without_the_harness_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match=r"lm-evaluation-harness is not installed.*pytest-lmgate\[tasks\]"):
        harness.installed()


def test_a_group_without_a_task_is_refused_and_one_with_mappings_is_found(tmp_path: Path):
    write_task(tmp_path, "quiz", ROWS, **CHOICE)
    (tmp_path / "none.yaml").write_text("group: none\ntask: []\n")
    (tmp_path / "some.yaml").write_text("group: some\ntask:\n- task: quiz\n  num_fewshot: 1\n")
    with pytest.raises(ConfigError, match="none: the group has no task"):
        harness.find("none", tmp_path)
    assert [task.get_config("num_fewshot") for task in harness.find("some", tmp_path).tasks.values()] == [1]


def test_another_split_and_the_revision_of_downloaded_data_are_named(load: Loaded):
    import datasets

    task = load(**CHOICE)
    url = f"hf://datasets/some/data@{'0123456789' * 4}/rows.jsonl"
    info = datasets.DatasetInfo(download_checksums={url: {"num_bytes": 1, "checksum": None}})
    task.dataset["other"] = datasets.Dataset.from_list(ROWS, info=info)
    harness.prepare(task, shots=None, seed=1, split="other")
    assert harness.described(task) == "json at 012345678901, split other"


def test_requests_that_the_harness_cannot_make_are_an_error_with_its_words(load: Loaded):
    task = load([*ROWS, {**ROWS[0], "q": None}], **{**CHOICE, "doc_to_text": "{{q.upper()}}"})
    with pytest.raises(ConfigError, match="task quiz: the harness cannot make its requests: UndefinedError"):
        harness.documents(task, rows=None, chat=False)


def test_beams_are_taken_over():
    found = harness.generation({"until": ["\n"], "num_beams": 3, "max_gen_toks": 5})
    assert found == {"stop": ["\n"], "max_new_tokens": 5, "num_beams": 3}


def test_a_file_of_the_harness_is_named_from_its_tasks_and_one_of_the_user_from_the_project(tmp_path: Path):
    import lm_eval.tasks

    own = Path(lm_eval.tasks.__file__).parent / "arc" / "arc_easy.yaml"
    assert harness.relative_file(own, tmp_path) == "arc/arc_easy.yaml"
    assert harness.relative_file(tmp_path / "tasks" / "quiz.yaml", tmp_path / "project") == "../tasks/quiz.yaml"


def test_a_task_that_cannot_be_loaded_when_it_is_judged_says_why(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"task: no file quiz\.yaml in .* or among the tasks of lm-evaluation-harne"):
        harness.offline_task("quiz.yaml", tmp_path, ROWS[0])
    (tmp_path / "quiz.yaml").write_text("task: quiz\noutput_type: none\n")
    with pytest.raises(ConfigError, match=r"task: the harness cannot load quiz\.yaml: "):
        harness.offline_task("quiz.yaml", tmp_path, ROWS[0])


def test_the_metric_of_a_task_refuses_rows_and_values_that_it_cannot_use(load: Loaded, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"the dataset 'quiz' has no task:, which `lmgate import` writes"):
        task_metric("task", "quiz", DatasetSpec(path="quiz.jsonl"), tmp_path)
    load(ROWS, score("{'exact_match': 'good'}"), **TEXT)
    of_task = TaskSpec(file="quiz.yaml", metrics={"exact_match": "higher"})
    spec = DatasetSpec(path="q.jsonl", source="q", references="a", task=of_task)
    metric = task_metric("task", "quiz", spec, tmp_path)
    with pytest.raises(MetricInputError, match="row 0: expected the task's document in the column doc"):
        metric.statistics(["a"], [["a"]], [{}])
    with pytest.raises(MetricInputError, match="row 0: expected a number as task, got 'good' of the task's code"):
        metric.statistics(["a"], [["a"]], [{"doc": ROWS[0]}])


_PLAIN = """
from pathlib import Path
import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task

class Own(Task):
    VERSION, OUTPUT_TYPE = 1, "generate_until"
    DATASET_PATH, DATASET_NAME = "json", None

    def download(self, *_, **__):
        self.dataset = datasets.load_dataset("json", data_files={"test": str(Path(__file__).with_suffix(".jsonl"))})

    def has_training_docs(self): return False
    def has_validation_docs(self): return False
    def has_test_docs(self): return True
    def test_docs(self): return self.dataset["test"]
    def doc_to_text(self, doc): return doc["q"]
    def doc_to_target(self, doc): return str(doc["a"])
    def construct_requests(self, doc, ctx, **how):
        return Instance("generate_until", doc, (ctx, {"until": ["\\n"]}), 0, metadata=how["metadata"])
    def process_results(self, doc, results): return {"size": len(results[0])}
    def aggregation(self): return {"size": lambda each: sum(each) / len(each)}
    def higher_is_better(self): return {"size": True}
"""


def test_a_class_that_is_no_configurable_task_is_scored_by_its_own_code(tmp_path: Path):
    write_class(tmp_path, "plain", _PLAIN)
    task = harness.find("plain", tmp_path).tasks["plain"]
    harness.prepare(task, shots=None, seed=1234, split=None)
    assert frozen(task).gates == [("task.size", {})]
    assert harness.scores(harness.offline_task("plain.yaml", tmp_path, ROWS[0]), ROWS[:1], ["abc"]) == [{"size": 3}]


def test_a_document_with_a_choice_without_text_or_a_reference_that_makes_a_wrong_text_right_is_left_out(load: Loaded):
    found = frozen(load([ROWS[0], {**ROWS[0], "c": ["a", ""]}], **CHOICE))
    assert found.unjudgeable == ["document 1: expected choices that are texts, got ['a', '']"]
    assert len(found.rows) == 1
    several = {"doc_to_target": "c"}
    ignored = [{"metric": "exact_match", "ignore_punctuation": True}]
    rows = [{**row, "c": texts} for row, texts in zip(ROWS, (["yes", ""], ["?!"], ["yes"]), strict=False)]
    found = frozen(load(rows, **{**TEXT, **several, "metric_list": ignored}))
    assert [row["references"] for row in found.rows] == [["yes"]]
    (beside, nothing) = found.unjudgeable
    assert beside.startswith("document 0: one of its 2 references is empty")
    assert nothing.startswith("document 1: exact: nothing is left of the reference '?!'")
