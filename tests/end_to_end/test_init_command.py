"""``lmgate init`` in a folder with a model and a text: what it writes is green, and red once the model is damaged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import yaml

from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.projects import Project
from tests.end_to_end.writers import MASKED_WORDS, writing_project

Start = Callable[..., Project]


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Start:
    """Make a folder with copies of models, and a text."""

    def made(*names: str) -> Project:
        project = Project(tmp_path / "start")
        project.folder.mkdir()
        for name in names:
            shutil.copytree(models / name, project.folder / "models" / name)
        (project.folder / "data").mkdir()
        shutil.copy(models / "words.txt", project.folder / "data" / "words.txt")
        return project

    return made


def damage(project: Project, name: str, models: Path) -> None:
    """Put another model's weights into a model."""
    shutil.copy(models / "sure" / "model.safetensors", project.folder / "models" / name / "model.safetensors")


def test_from_a_model_and_a_text_to_gates_that_pass_and_fail(start: Start, models: Path) -> None:
    project = start("die")
    done = lmgate(project.folder, "init", "--yes")
    done.says("die on words: ppl 60", "limit 63", "tolerance 1%", "lmgate.yaml, lmgate-baseline.json, pytest.ini")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert written["models"] == {"die": {"path": "models/die"}}
    assert written["datasets"] == {"words": {"path": "data/words.txt"}}
    green = project.run().expect(0, passed=2)
    green.says("cached", "2 gates: 2 pass")  # init measured into the cache of pytest
    damage(project, "die", models)
    project.run().expect(1, failed=2).says("above the limit 63", "worse than 60 of the baseline")


def rounded(project: Project, name: str, wanted: str) -> None:
    """Make a copy of a model with weights in half precision."""
    folder = project.folder / "models"
    shutil.copytree(folder / name, folder / wanted)
    weights = safetensors.numpy.load_file(folder / name / "model.safetensors")
    halves = {key: value.astype(np.float16) for key, value in weights.items()}
    safetensors.numpy.save_file(halves, folder / wanted / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / wanted / "config.json").read_text())
    (folder / wanted / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))


def test_a_rounded_model_is_gated_against_its_original_in_the_same_folder(start: Start, models: Path) -> None:
    project = start("die")
    rounded(project, "die", "half")
    found = lmgate_json(project.folder, "init", "--model=models/half", "--yes")
    (gate,) = (each for each in found["gates"] if "against" in each["arguments"])
    assert gate["arguments"] == {
        "metric": "ppl", "model": "half", "dataset": "words", "tolerance": "1%", "against": "die",
    }  # fmt: skip
    assert "tolerance 1%: half is " in gate["reasons"][-1]
    assert len(found["gates"]) == 3
    project.run("--lmgate-require-all", "--lmgate-report=json:report.json").expect(0)
    gates = {each["id"].rpartition("::")[2]: each for each in project.report()["gates"]}
    assert gates.keys() >= {"ppl_max[half-words]", "no_regression:ppl[half-words-vs-die]"}
    assert all(each["cached"] and each["verdict"] == "pass" for each in gates.values())
    damage(project, "half", models)
    project.run().expect(1).says("worse than 60 of the model 'die'")


def test_a_model_far_from_its_original_gets_no_gate_against_it_and_a_table_its_column(
    start: Start, models: Path
) -> None:
    project = start("sure")
    rounded(project, "sure", "half")
    shutil.copy(models / "die" / "model.safetensors", project.folder / "models" / "sure")
    (project.folder / "models" / "rows.jsonl").write_text('{"question": "w1 w2 w3 w4"}\n' * 9)
    command = ("init", "--model=models/half", "--rows=8", "--yes")
    lmgate(project.folder, *command, "--against=models/sure", code=3).says("it is no longer the same model")
    lmgate(project.folder, *command).says("no gate of half against sure: half is ")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert list(written["models"]) == ["half"]
    assert written["datasets"] == {"rows": {"path": "models/rows.jsonl", "text": "question", "limit": 8}}
    project.run().expect(0, passed=2).says("cached")


def test_the_first_of_several_models_is_taken_and_a_file_that_is_there_is_an_error(start: Start) -> None:
    project = start("die", "sure")
    (project.folder / "lmgate-baseline.json").write_text("mine")
    done = lmgate(project.folder, "init", "--yes", code=3)
    done.says("model: models/sure, against models/die; --model names another", "lmgate-baseline.json exists")
    assert (project.folder / "lmgate-baseline.json").read_text() == "mine"
    assert sorted(each.name for each in project.folder.iterdir()) == ["data", "lmgate-baseline.json", "models"]
    project.write(pytest_ini="[pytest]\nlmgate_baseline = /proc/none/baseline.json\n")
    lmgate(project.folder, "init", "--yes", code=3).says("a file cannot be written", "/proc/none")
    assert not (project.folder / "lmgate.yaml").exists()  # or the next `lmgate init` would refuse it


def test_a_masked_model_is_gated_by_its_pseudo_perplexity_and_an_encoder_decoder_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    paths = {name: entry["path"] for name, entry in yaml.safe_load(made.settings)["models"].items()}
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "words.jsonl").write_text('{"text": "w1 w2 w3 w4 w5 w6 w7"}\n' * 2)
    lmgate(folder, "init", f"--model={paths['translator']}", "--yes", code=3).says("ppl of the encoder-decoder model")
    lmgate(folder, "init", f"--model={paths['masked']}", "--yes").says(f"masked on words: pppl {MASKED_WORDS}")
    Project(folder).run().expect(0, passed=2).says("pppl_max[masked-words]", "no_regression:pppl[masked-words]")


def test_it_asks_and_refuses_a_text_on_which_no_gate_could_decide_before_anything_is_measured(start: Start) -> None:
    project = start("die", "sure")
    config = project.folder / "models" / "die" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 4096}))
    (project.folder / "data" / "words.txt").write_text(" ".join(f"w{n * n % 57}" for n in range(1000)))
    done = lmgate(project.folder, "init", "--margin=10", typed="2\ndata/words.txt\n", code=3)
    done.says("1  models/sure, against models/die", "2  models/die", "Which model?")
    done.says("gates on it could never decide: 3 blocks of windows", "about 3 times as much text")
    assert not (project.folder / "lmgate.yaml").exists()
