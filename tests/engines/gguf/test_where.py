"""Where a GGUF got worse than another: rows and tokens are named from the cache, and no weights are loaded for that.

To the model ``fair`` each of 320 tokens is equally likely, whatever it reads. To ``deaf`` one of them is less likely.
"""

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from tests.engines.projects import Project, write_float_model
from tests.models.tiny import made_once

WORD, LOWER = " the", 4.0
GATE = "no_regression: {metric: ppl, model: deaf, against: fair, dataset: text, tolerance: 1%, protocol: document}"
NOTES_LOADS = """
import pathlib
from pytest_lmgate.engines.llamacpp.library import Weights

plain = Weights.__init__

def init(self, name, file, options=None):
    if options is not None:  # else the vocabulary alone is read
        with (pathlib.Path(__file__).parent / "loads.txt").open("a") as log:
            log.write(f"{name}\\n")
    plain(self, name, file, options)

Weights.__init__ = init
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        import torch

        from tests.engines.gguf.converting import write_gguf

        model, tokenizer = write_float_model(folder / "float")
        (token,) = tokenizer.encode(WORD, add_special_tokens=False)
        with torch.no_grad():
            for name, weights in model.named_parameters():
                if "norm" not in name:
                    weights.zero_()
            model.model.embed_tokens.weight[:, 0] = 1
            write_gguf(folder / "fair.gguf", model, tokenizer)
            # The last norm makes the one number of a state that is not 0 the root of how many there are.
            model.lm_head.weight[token, 0] = -LOWER / math.sqrt(model.config.hidden_size)
            write_gguf(folder / "deaf.gguf", model, tokenizer)

    return made_once(tmp_path_factory.getbasetemp(), "gguf-where", make)


def test_worse_rows_and_tokens_are_named_and_no_weights_are_loaded_for_that(tmp_path: Path, files: Path) -> None:
    project = Project(tmp_path, files, {name: f"{{path: {{files}}/{name}.gguf}}" for name in ("fair", "deaf")}).fill()
    (tmp_path / "conftest.py").write_text(NOTES_LOADS)
    texts = [" ".join(["a cat sat on a log"] * 4) for _ in range(12)]
    worse = {3: 2, 7: 1}  # how often the word stands in a row
    for row, times in worse.items():
        texts[row] += " and the dog" * times
    project.write("text.jsonl", [{"text": text} for text in texts])
    for run in ("measured", "cached"):
        said = project.run([GATE])
        assert project.status == 1, said
        (gate,) = json.loads((tmp_path / "report.json").read_text())["gates"]
        assert gate["cached"] == (run == "cached")
        where = gate["where"]
        assert where["notes"] == []
        assert [passage["place"] for passage in where["passages"]] == [f"row {row}" for row in worse]
        for passage, (row, times) in zip(where["passages"], worse.items(), strict=True):
            assert [token["token"] for token in passage["tokens"]] == [WORD.strip()] * times
            gained = math.log(320) - math.log(319 + math.exp(-LOWER))
            assert passage["rise"] == pytest.approx(LOWER * times - gained * passage["count"], rel=1e-4)
            for token in passage["tokens"]:
                assert token["reference"] == pytest.approx(math.log(320), rel=1e-5)
                assert f"{token['before']}{token['token']}{token['after']}" in texts[row]
        assert f"[{WORD.strip()}]" in said
        assert sorted((tmp_path / "loads.txt").read_text().split()) == ["deaf", "fair"]
