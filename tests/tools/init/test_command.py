"""What ``lmgate init`` finds, refuses and proposes, before any model is loaded."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.measure import Measuring
from pytest_lmgate.errors import ComparisonError, EngineError
from pytest_lmgate.metrics.likelihoods import LikelihoodStatistics, perplexity
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.tools.init import command as init
from pytest_lmgate.tools.init.command import add_pair, count_tokens, find_places, propose, text_column


def write(folder: Path, *files: str, size: int = 10) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x" * size)


def test_checkpoints_and_texts_are_found_and_other_files_are_not(tmp_path: Path):
    files = "models/b/config.json models/b/model.safetensors models/b/merges.txt models/a.gguf "
    files += "models/adapter/adapter_model.safetensors .venv/lib/config.json .venv/lib/model.safetensors "
    files += "node_modules/words.txt requirements.txt LICENSE.txt README.md data/small.txt "
    files += "models/b/c.gguf models/imatrix.gguf models/mmproj-a.gguf models/d-00001-of-00002.gguf "
    files += "models/d-00002-of-00002.gguf"
    write(tmp_path, *files.split())
    write(tmp_path, "data/empty.txt", size=0)
    write(tmp_path, "data/large.raw", size=1000)
    (tmp_path / "data" / "numbers.jsonl").write_text('{"n": 3}')
    (tmp_path / "data" / "lines.jsonl").write_text('\n{"text": null}\n{"text": "a"}')
    (tmp_path / "data" / "chats.jsonl").write_text('{"id": "0c-2f", "messages": []}')
    (tmp_path / "data" / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "data" / "loop").symlink_to(tmp_path)
    models, texts = find_places(tmp_path)
    assert [str(path.relative_to(tmp_path / "models")) for path in models] == [
        "a.gguf",
        "b",
        "b/c.gguf",
        "d-00001-of-00002.gguf",
    ]
    assert [path.name for path in texts] == ["large.raw", "lines.jsonl", "small.txt"]


def test_of_a_checkpoint_in_the_folder_itself_the_texts_beside_it_are_found(tmp_path: Path):
    write(tmp_path, "config.json", "model.safetensors", "merges.txt", "vocab.txt", "evaluation.txt")
    assert find_places(tmp_path) == ([tmp_path], [tmp_path / "evaluation.txt"])


def test_the_text_column_has_the_longest_texts_that_are_no_ids(tmp_path: Path):
    for name, row in {
        "a.csv": "sha,story,title\n%s,once upon a time,a day\n",
        "b.tsv": "sha\tstory\n%s\tof old\n",
    }.items():
        (tmp_path / name).write_text(row % ("0f" * 40))
        assert text_column(tmp_path / name) == "story"
    (tmp_path / "d.jsonl").write_text('{"text": {"en": "a day"}, "story": "of old"}')
    assert text_column(tmp_path / "d.jsonl") == "story"
    (tmp_path / "c.csv").write_text('sha,story\n"')
    assert text_column(tmp_path / "c.csv") is None  # which reading the dataset explains


def test_of_a_table_only_the_text_column_is_counted(tmp_path: Path):
    rows = [json.dumps({"id": "x" * 300, "text": "word " * 8, "more": list(range(90))}) for _ in range(2000)]
    (tmp_path / "table.jsonl").write_text("\n".join(rows))
    (tmp_path / "plain.txt").write_text("word " * 8 * 2000)
    assert abs(count_tokens(tmp_path / "table.jsonl", None) / count_tokens(tmp_path / "plain.txt", None) - 1) < 0.01
    assert count_tokens(tmp_path / "table.jsonl", 20) == 20 * 40 // 4
    (tmp_path / "damaged.jsonl").write_text(rows[0] + "\n{")
    assert count_tokens(tmp_path / "damaged.jsonl", None) > 0


def test_the_search_ends_in_deep_and_in_wide_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "a/b/c/d/e/f/g.txt")
    assert find_places(tmp_path) == ([], [])
    monkeypatch.setattr(init, "_MOST_ENTRIES", 3)
    write(tmp_path, *(f"wide/{number}.dat" for number in range(10)), "zz/z.txt")
    assert find_places(tmp_path) == ([], [])


def test_an_answer_that_is_no_number_and_no_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "model/config.json", "model/model.safetensors", "words.txt", "pytest.ini", size=0)
    monkeypatch.chdir(tmp_path)
    for answer in ("2", "0", "modle"):
        arguments = ["init", "--dataset", "words.txt"]
        result = CliRunner().invoke(app, arguments, input=f"{answer}\n", env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert "1  model" in result.stderr
        assert f"expected a number from the list or a path, got '{answer}'" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "pytest.ini", "words.txt"]


@pytest.mark.parametrize(
    ("ini", "arguments", "says"),
    [
        ("lmgate_config = other.yaml", ["--yes"], "name .*other.yaml"),
        ("", ["--rows=3", "--dataset=words.txt", "--model=model"], "words.txt is one text"),
        ("", ["--dataset=words.txt", "--yes"], "no model was found"),
        ("", ["--model=model", "--rows=3", "--yes"], r"no dataset was found .*a .jsonl file"),
        ("", ["--model=model"], "no answer: give --dataset PATH"),
        ("", ["--model=model", "--dataset=words.txt", "--against=./model"], "expected another model than --model"),
        ("", ["--model=..", "--dataset=words.txt"], "no config.json in"),
    ],
)
def test_what_cannot_lead_to_gates_is_refused_before_anything_is_measured(
    ini: str, arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "model").mkdir()
    for name, text in {"pytest.ini": f"[pytest]\n{ini}", "words.txt": "words", "other.yaml": ""}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["init", *arguments])
    assert re.search(says, f"{result.stderr}{result.exception}")
    assert result.exit_code != 0
    assert not (tmp_path / "lmgate.yaml").exists()


Nll = list[float]


def session(**models: tuple[str, Nll, str]) -> Measuring:
    """Return a session in which each model has a kind, a loss in each window of a text, and a digest of its tokens."""

    def measure(metric: str, *, model: str, dataset: str) -> Any:
        kind, nll, targets = models[model]
        ones = np.ones(len(nll), dtype=np.int64)
        facts: dict[str, Any] = dict.fromkeys(("words", "chars", "utf8_bytes"), np.array([len(nll)]))
        facts |= {"window_targets": ones, "window_document": 0 * ones, "running_text": True, "targets": targets}
        signature = Signature.parse("protocol:masked" if kind == "masked" else "protocol:sliding")
        statistics = LikelihoodStatistics(nll=np.array(nll), **facts)
        return perplexity(statistics, signature=signature, metric=metric).identified(dataset)

    resolver = SimpleNamespace(model=lambda name: SimpleNamespace(kind=models[name][0]))
    return cast(Measuring, SimpleNamespace(evaluator=SimpleNamespace(resolver=resolver), measure=measure))


GOOD, BETTER = [1.0, 1.2, 0.8, 1.1] * 10, [1.0, 1.1, 0.8, 1.1] * 10


def test_the_limit_of_a_noisy_value_is_beyond_its_interval_and_of_an_infinite_one_there_is_none():
    measured: Any = session(a=("causal", GOOD, "t"))
    (_, limit), *_ = propose(measured, "a", "words", 0.001).gates
    end = measured.measure("ppl", model="a", dataset="words").interval[1]
    assert end < limit["limit"] < 1.01 * end
    with pytest.raises(EngineError, match="perplexity of 'a' on 'words' is inf: no limit"):
        propose(session(a=("causal", [1e4] * 4, "t")), "a", "words", 0.05)


def test_models_that_cannot_be_compared_are_no_pair():
    for kind, targets, why in (("masked", "t", "the protocol differs"), ("causal", "others", "tokens")):
        both = session(a=("causal", GOOD, "t"), b=(kind, BETTER, targets))
        with pytest.raises(ComparisonError, match=f"^a and b cannot be compared: .*{why}"):
            add_pair(both, propose(both, "a", "words", 0.05), "b")


def test_a_model_is_gated_against_its_original_and_a_gain_that_no_rounding_gives_is_doubted():
    gate = {"metric": "ppl", "model": "a", "dataset": "words", "tolerance": "1%", "against": "b"}
    reasons = []
    for nll in (BETTER, [loss / 2 for loss in BETTER]):
        both = session(a=("causal", nll, "t"), b=("causal", GOOD, "t"))
        found = propose(both, "a", "words", 0.05)
        add_pair(both, found, "b")
        assert found.gates[-1] == ("no_regression", gate)
        reasons.append(found.reasons[-1])
    close, far = reasons
    assert "a is 2.5% better than b today" in close
    assert "the smallest change that this text shows is " in close
    assert "its original" not in close
    assert far.endswith("check that b is its original: rounding gains no 10%")
