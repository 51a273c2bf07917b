"""A tiny float32 Llama with a tokenizer of byte-level BPE, and GGUF files of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import made_once

CONTEXT = 640
SPECIAL = ("<pad>", "<s>", "</s>")
WORDS = [
    *("the", "a", "cat", "dog", "sat", "on", "mat", "log", "and", "or", "of", "in", "under", "river", "house", "green"),
    *("small", "12", "1984", "3.14", "It's", "don't", "Über", "naïve", "été\n猫", "狗", "がっこう", "🙂", '"quoted"'),
    *("(said)", "end.", "begin,", "new:", "old;", "why?", "yes!", "...", "--", "tab\ttab", "", "two"),
]


def text_of(words: int, seed: int = 0) -> str:
    """Return a text of random words, some of them in other scripts."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def trained_tokenizer(seed: int = 0, *, bos: bool = True) -> Any:
    """Return a tokenizer of byte-level BPE as GPT-2's, trained on a text."""
    import tokenizers
    import transformers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text_of(2000, seed)], trainer)
    if bos:
        processing = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        backend.post_processor = processing
    named = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model, GGUF files of it, and tokenizers; copy a file before changing it."""

    def make(folder: Path) -> None:
        from tests.gguf.converting import write_gguf
        from tests.models.zoo import build

        tokenizer = trained_tokenizer()
        tokenizer.chat_template = (
            "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        )
        model = build("llama", vocab_size=320, max_position_embeddings=CONTEXT, intermediate_size=64)
        model.save_pretrained(folder / "float")
        tokenizer.save_pretrained(folder / "float")
        trained_tokenizer(1).save_pretrained(folder / "other-words")
        trained_tokenizer(bos=False).save_pretrained(folder / "no-bos")
        for dtype in ("f32", "f16", "q8_0"):
            write_gguf(folder / f"{dtype}.gguf", model, tokenizer, dtype=dtype)
        write_gguf(folder / "parts.gguf", model, tokenizer, parts_of=8)
        write_gguf(folder / "encoder.gguf", model, tokenizer, attention__causal=False)

    return made_once(tmp_path_factory.getbasetemp(), "gguf", make)


@dataclass
class Project:
    """A project whose models are those of `files`, run in processes of their own."""

    folder: Path
    models: Path

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write rows as JSON lines."""
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def run(self, gates: list[str], models: dict[str, str] | None = None, **env: str) -> str:
        """Run gates in a new process, and return what it printed, without line breaks.

        Args:
            gates: As in lmgate.yaml.
            models: Entries beside those of all files; ``{files}`` is their folder.
            env: Environment variables.
        """
        entries = {
            "float": "{path: {files}/float}",
            **{name: f"{{path: {{files}}/{name}.gguf}}" for name in ("f32", "f16", "q8_0")},
            **(models or {}),
        }
        lines = ["models:", *(f"  {name}: {entry}" for name, entry in entries.items())]
        lines += ["datasets:", "  text: {path: text.jsonl}", "  long: {path: long.txt}"]
        lines += ["  quiz: {path: quiz.jsonl, question: q, choices: options, answer: label}"]
        lines += ["  news: {path: news.jsonl, source: article, references: [summary]}", "gates:"]
        lines += [f"  - {gate}" for gate in gates]
        yaml = "\n".join(lines).replace("{files}", str(self.models))
        (self.folder / "lmgate.yaml").write_text(yaml, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lmgate-report", "json:report.json"]
        found = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={"PATH": "", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "160", "OMP_NUM_THREADS": "1", **env},
        )
        self.status, self.stderr = found.returncode, found.stderr
        return " ".join((found.stdout + found.stderr).split())

    @property
    def values(self) -> dict[str, Any]:
        """The value of each gate of the report by its id, as in ``ppl_max[float-text]``."""
        gates = json.loads((self.folder / "report.json").read_text())["gates"]
        return {gate["id"].rpartition("::")[2]: gate["value"] for gate in gates}


@pytest.fixture
def project(tmp_path: Path, files: Path) -> Project:
    """A project with a text, questions and prompts."""
    project = Project(tmp_path, files)
    project.write("text.jsonl", [{"text": text_of(120, seed)} for seed in range(6)])
    (tmp_path / "long.txt").write_text(text_of(900, 9), encoding="utf-8")
    questions = [
        {"q": text_of(12, row), "options": [text_of(4, 100 * row + k) for k in range(4)], "label": row % 4}
        for row in range(20)
    ]
    project.write("quiz.jsonl", questions)
    project.write("news.jsonl", [{"article": text_of(9, row), "summary": text_of(9, row + 50)} for row in range(8)])
    return project


@pytest.fixture(scope="session")
def opened(files: Path) -> Callable[..., Any]:
    """Opens a model of `files` by its name there; further arguments are those of its entry."""
    from pytest_lmgate.backends.base import Entry
    from pytest_lmgate.backends.table import backend_of
    from pytest_lmgate.config.specs import ModelSpec

    def open_(name: str, **entry: Any) -> Any:
        spec = ModelSpec(path=str(files / name), **entry)
        backend = backend_of(spec, name, {})
        known = {"path": Path, "hub_id": lambda _: None, "digest": lambda path: path.name, "device": "cpu"}
        return backend.describe(Entry(name=name, spec=spec, **known)).open()

    return open_
