"""A tiny float32 Llama that vLLM can run, and checkpoints that it cannot."""

import json
import os
from pathlib import Path

import pytest

from tests.engines.projects import CONTEXT, Project, damaged, write_float_model
from tests.models.tiny import made_once


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model, and of checkpoints that vLLM refuses; copy a file before changing it."""

    def make(folder: Path) -> None:
        from tests.models.zoo import build

        model, tokenizer = write_float_model(folder / "float")
        damaged(model).save_pretrained(folder / "damaged")
        tokenizer.save_pretrained(folder / "damaged")
        tokenizer.save_pretrained(folder / "small-heads")
        small = build("llama", vocab_size=320, max_position_embeddings=CONTEXT, hidden_size=64, num_attention_heads=4)
        small.save_pretrained(folder / "small-heads")
        write_float_model(folder / "strange")
        config = json.loads((folder / "strange" / "config.json").read_text())
        (folder / "strange" / "config.json").write_text(json.dumps({**config, "architectures": ["StrangeForCausalLM"]}))

    return made_once(tmp_path_factory.getbasetemp(), "vllm", make)


@pytest.fixture
def project(tmp_path: Path, files: Path) -> Project:
    """A project with a text, questions and prompts; vLLM looks for the program lscpu."""
    entries = {"vllm": "{path: {files}/float, backend: vllm}"}
    return Project(tmp_path, files, entries, environment={"PATH": os.defpath}, patience=900).fill()
