"""Which values become entries of ``.eval_results``, under which task, and in which file."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries
from msgspec.structs import replace

from pytest_lmgate.judge.result import FixtureCall, HubDataset, Verdict
from pytest_lmgate.report.formats import write_reports
from pytest_lmgate.report.services import eval_results
from tests.judge.records import record, results_of
from tests.report.hostile import HOSTILE

GSM8K = HubDataset("openai/gsm8k", "main", "test")
EVAL_YAML = """
name: GSM8K
evaluation_framework: inspect-ai
tasks:
  - {id: gsm8k, config: main, split: test, scorers: [{name: match}]}
  - {id: gsm8k_easy, config: easy}
  - {id: gsm8k_whole}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of files of ``openai/gsm8k`` in a hub cache, where there is no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "datasets--openai--gsm8k"
    snapshot = repository / "snapshots" / ("a" * 40)
    for folder in (repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "eval.yaml").write_text(EVAL_YAML)
    return snapshot


def accuracy(hub: HubDataset | None = GSM8K, **facts: Any) -> Verdict:
    return record(facts.pop("value", 0.75), 0.01, **{"metric": "accuracy", "unit": "row", "hub": hub, **facts})


def written(*verdicts: Verdict, **others: Any) -> tuple[dict[str, list[EvalResultEntry]], list[str]]:
    """What huggingface_hub reads in each file, and what is said of the rest."""
    texts, left_out = eval_results(results_of(verdicts, **others), offline=False)
    return {name: parse_eval_result_entries(yaml.safe_load(text)) for name, text in texts.items()}, left_out


@pytest.mark.parametrize(
    ("hub", "task"),
    [
        (GSM8K, "gsm8k"),
        (HubDataset("openai/gsm8k", "main"), "gsm8k"),  # the configuration has one split
        (HubDataset("openai/gsm8k", "easy", "test"), "gsm8k_easy"),
        (HubDataset("openai/gsm8k", "", "test"), "gsm8k_whole"),
        (HubDataset("openai/gsm8k", "default", "test"), "gsm8k_whole"),
    ],
)
def test_the_task_is_the_one_that_reads_the_configuration_and_the_split(hub: HubDataset, task: str) -> None:
    files, left_out = written(accuracy(hub))
    (entry,) = files["m.yaml"]
    assert (entry.dataset_id, entry.task_id, entry.value, left_out) == ("openai/gsm8k", task, 0.75, [])


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"hub": None}, "local or in memory"),
        ({"hub": replace(GSM8K, is_part=True)}, "a part of the rows"),
        ({"hub": replace(GSM8K, split="train")}, "'train', got 0; its tasks: gsm8k (main, test), gsm8k_easy (easy, te"),
        ({"hub": replace(GSM8K, name="other", split="")}, "'that is the only one', got 0"),
        ({"hub": replace(GSM8K, id="org/gone")}, "eval.yaml of org/gone, which names its tasks, is not in the local"),
        ({"value": None}, "nothing was measured"),
        ({"value": float("inf")}, "nothing was measured"),
        ({"metric": "kl"}, "a divergence compares two models"),
        ({"metric": "of_mine"}, None),
    ],
)
def test_a_value_without_a_place_on_the_hub_is_left_out_with_the_reason(
    facts: dict[str, Any], reason: str | None
) -> None:
    files, left_out = written(accuracy(**facts), accuracy(None))
    assert bool(files) is (reason is None)
    assert reason is None or any(reason in sentence for sentence in left_out)
    assert sum(int(sentence.split()[0]) for sentence in left_out) == 2 - bool(files)


@pytest.mark.parametrize(
    ("text", "reason"),
    [(text, "eval.yaml") for text in ("", "tasks: 3", "tasks: [{id: 3}]", "{", "tasks: []", "name: x")]
    + [(f"{EVAL_YAML}  - {{id: again, config: main}}\n", "got 2")],
)
def test_an_eval_yaml_that_is_damaged_or_has_two_tasks_of_the_same_rows_is_a_reason_too(
    cache: Path, text: str, reason: str
) -> None:
    (cache / "eval.yaml").write_text(text)
    files, (sentence,) = written(accuracy())
    assert not files
    assert reason in sentence


@pytest.mark.parametrize(("revision", "kept"), [("b" * 40, "b" * 40), ("main", None), ("", None)])
def test_only_a_commit_is_a_revision(revision: str, kept: str | None) -> None:
    (entry,) = written(accuracy(replace(GSM8K, revision=revision)))[0]["m.yaml"]
    assert entry.dataset_revision == kept


def test_gates_that_share_a_measurement_share_an_entry_and_fixtures_have_theirs() -> None:
    facts = {"test": "t", "fixture": "f", "fingerprint": "", "cached": True, "seconds": 0.0}
    measured = FixtureCall(
        metric="exact", model="m", dataset="d", value=0.5, n=8, unit="row", signature="s", stderr=None, interval=None,
        hub=GSM8K, **facts,
    )  # fmt: skip
    files, _ = written(accuracy(), accuracy(id="other", verdict="fail"), measured=(measured,))
    assert [entry.value for entry in files["m.yaml"]] == [0.75, 0.5]
    assert files["m.yaml"][1].notes == "lmgate|metric:exact|n:8|n_unit:row|s"


def test_each_model_has_a_file_whose_name_is_safe_and_its_own_and_a_signature_comes_through() -> None:
    models = ["int8", "org/m", "org_m", "ORG/M", "../../etc/x", "", ".", "a" * 300, "a" * 301, *HOSTILE.values()]
    files, left_out = written(*(accuracy(model=model) for model in models))
    assert len({name.casefold() for name in files}) == len(set(models))
    assert {"int8.yaml", "etc_x.yaml"} <= set(files)
    assert "org_m.yaml" not in files
    assert not left_out
    assert all(Path(name).name == name and len(name) < 120 and name.isascii() for name in files)
    for text in HOSTILE.values():
        (entry,) = written(accuracy(signature=text[:10_000]))[0]["m.yaml"]
        assert (entry.notes or "").endswith(f"|{text[:10_000].encode('utf-8', 'backslashreplace').decode()}")


def test_a_folder_that_cannot_be_written_is_a_problem_and_the_other_reports_are_there(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    problems: list[str] = []
    reports = [("eval-results", "out"), ("json", "report.json")]
    write_reports(results_of([accuracy()]), reports, tmp_path, [], problems)
    (problem,) = problems
    assert problem.startswith("--lmgate-report eval-results:out: cannot be written: ")
    assert (tmp_path / "report.json").exists()
