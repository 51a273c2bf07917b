"""A model that knows its own texts, its rounding to 8 bits, and gates on likelihoods, texts and choices."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import zoo
from tests.models.tiny import word_level
from tests.tools.fix.test_costs import quantize

LAYERS, ROWS, TOKENS, WRITTEN, NEW = 3, 40, 24, 12, 6
GATES = """
defaults: {device: cpu}
models: {float: {path: ./float}, int8: {path: ./int8}}
datasets:
  rows: {path: ./rows.jsonl, text: text}
  written: {path: ./written.jsonl, prompt: "{prompt}", references: answer}
gates:
  - no_regression:
      {metric: ppl, model: int8, dataset: rows, against: float, tolerance: 2%, protocol: document, max_length: 32}
  - kl_max: {model: int8, reference: float, dataset: rows, limit: 0.01, protocol: document, max_length: 32}
  - ppl_max: {model: int8, dataset: rows, limit: 1000, protocol: document, max_length: 32}
"""
PPL, KL, LIMIT = (
    "no_regression:ppl[int8-rows-vs-float-protocol:document-max_length:32]",
    "kl_max[int8-float-rows-protocol:document-max_length:32]",
    "ppl_max[int8-rows-protocol:document-max_length:32]",
)
EXACT = "  - exact_min: {model: float, dataset: written, limit: 0.95, max_new_tokens: 6}\n"
TEMPLATE = "{% for message in messages %}<s> {{ message.content }} {% endfor %}"


def make_model() -> Any:
    """Return a model that ends some of its texts."""
    model = zoo.build("llama", num_hidden_layers=LAYERS).requires_grad_(False)
    model.lm_head.weight[2] *= 4
    return model


def make_tokenizer() -> Any:
    words = ["<unk>", "<s>", "</s>", *(f"w{index}" for index in range(3, zoo.VOCABULARY))]
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = word_level(words, template="<s> $A", framed_by={"<s>": 1}, **special)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_project(folder: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer()
    torch.manual_seed(0)
    ids = torch.cat([torch.ones(ROWS, 1, dtype=torch.long), torch.randint(3, zoo.VOCABULARY, (ROWS, 1))], 1)
    with torch.inference_mode():
        for _ in range(TOKENS):
            likely = model(input_ids=ids).logits[:, -1].softmax(-1)
            likely[:, :3] = 0
            ids = torch.cat([ids, torch.multinomial(likely, 1)], 1)
        best = ids[:WRITTEN, :9]
        for _ in range(NEW):
            best = torch.cat([best, model(input_ids=best).logits[:, -1].argmax(-1, keepdim=True)], 1)
    texts = [tokenizer.decode(row[1:]) for row in ids]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = []
    for row in best.tolist():
        answer = tokenizer.decode(row[9 : row.index(2, 9) if 2 in row[9:] else None], skip_special_tokens=True)
        rows.append({"prompt": tokenizer.decode(row[1:9]), "answer": answer})
    (folder / "written.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("float", "int8"):
        if name == "int8":
            quantize(model.model.layers, 8)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "lmgate.yaml").write_text(GATES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drill")
    make_project(folder)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, the current one; nothing says that pytest runs."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_VERSION")
    return tmp_path
