"""``lmgate why`` as a user runs it: a table and a sentence, or JSON, for the models of lmgate.yaml or by path."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.projects import environment
from tests.evaluate.conftest import make_tokenizer
from tests.evaluate.test_why import make_reference, quantize, text
from tests.warm import warm_python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    model = make_reference(layers=4)
    model.save_pretrained(folder / "float")
    quantize(model.model.layers[2], bits=4)
    model.save_pretrained(folder / "int4")
    for name in ("float", "int4"):
        make_tokenizer().save_pretrained(folder / name)
    (folder / "text.txt").write_text(text(600))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "lmgate.yaml").write_text("models: {original: {path: float}}\ndatasets: {words: {path: text.txt}}\n")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [warm_python(environment()), "-m", "pytest_lmgate.cli", "why", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_damaged_layer_is_named_in_a_sentence_and_in_json(folder: Path) -> None:
    asked = ("int4", "words", "--against", "original", "--tokens", "1000", "--device", "cpu")
    done = run(folder, *asked)
    assert done.returncode == 0, done.stderr
    assert "model.layers.2 stands out: put into original, it alone costs " in done.stdout
    assert done.stdout.splitlines()[3].split() == ["part", "KL,", "put", "in", "perplexity", "KL,", "put", "back"]
    found = json.loads(run(folder, *asked, "--json").stdout)
    assert [part["part"] for part in found["parts"] if part["stands_out"]] == ["model.layers.2"]
    assert found["kl"]["mean"] == pytest.approx(found["parts"][2]["kl"]["mean"])


def test_a_model_that_is_not_there_is_one_message(folder: Path) -> None:
    done = run(folder, "int8", "words", "--against", "original")
    assert done.returncode == 3
    assert done.stderr.startswith("lmgate: model 'int8' is not known; ")
