"""What the tests of every engine share: a tiny float32 Llama, its tokenizer of byte-level BPE, and a project."""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.end_to_end.projects import LEFT_OUT
from tests.warm import Imported, run_warm, warm_python

CONTEXT = 640
SPECIAL = ("<pad>", "<s>", "</s>")
WORDS = [
    *("the", "a", "cat", "dog", "sat", "on", "mat", "log", "and", "or", "of", "in", "under", "river", "house", "green"),
    *("small", "12", "1984", "3.14", "It's", "don't", "Über", "naïve", "été\n猫", "狗", "がっこう", "🙂", '"quoted"'),
    *("(said)", "end.", "begin,", "new:", "old;", "why?", "yes!", "...", "--", "tab\ttab", "", "two"),
]


def ppl(model: str, options: str = "protocol: sliding, max_length: 96, stride: 32") -> str:
    return f"ppl_max: {{model: {model}, dataset: text, limit: 999999, {options}}}"


def text_of(words: int, seed: int = 0) -> str:
    """Return a text of random words, some of them in other scripts."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def trained_tokenizer(seed: int = 0, *, bos: bool = True, texts: Sequence[str] = ()) -> Any:
    """Return a tokenizer of byte-level BPE as GPT-2's, trained on texts; by default on a random one of `text_of`."""
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
    backend.train_from_iterator(texts or [text_of(2000, seed)], trainer)
    if bos:
        processing = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        backend.post_processor = processing
    named = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def with_ids_swapped(tokenizer: Any, *tokens: str) -> Any:
    """Return a tokenizer that cuts texts alike and has the same tokens, of which two have each other's id."""
    import tokenizers
    import transformers

    state, (first, second) = json.loads(tokenizer.backend_tokenizer.to_str()), tokens
    ids = state["model"]["vocab"]
    ids[first], ids[second] = ids[second], ids[first]
    named = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def damaged(model: Any, noise: float = 0.3) -> Any:
    """Return a copy of a model with noise on its matrices, as a share of their standard deviation."""
    import torch

    found, drawn = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for weight in found.parameters():
        if weight.ndim == 2:
            weight.data += noise * weight.data.std() * torch.randn(weight.shape, generator=drawn)
    return found


def float_model(**config: Any) -> tuple[Any, Any]:
    """Return a Llama with heads of 32 numbers, and its tokenizer."""
    from tests.models.zoo import build

    tokenizer = trained_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    tokenizer.chat_template += "{% if thinks %}thinks {{ thinks }}{% endif %}"
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}
    return build("llama", vocab_size=320, max_position_embeddings=CONTEXT, **sizes, **config), tokenizer


def write_float_model(folder: Path, **config: Any) -> tuple[Any, Any]:
    """Write a `float_model` as `save_pretrained` does; return both."""
    model, tokenizer = float_model(**config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def warm(imported: Imported = "transformers") -> str:
    """Return an interpreter for projects that has imported libraries already."""
    return warm_python({**os.environ, "OMP_NUM_THREADS": "1"}, imported)


@dataclass
class Project:
    """A project that runs gates in processes of their own."""

    folder: Path
    files: Path  # what ``{files}`` in an entry means
    entries: Mapping[str, str] = field(default_factory=dict)  # of models, in every run
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 900  # seconds of a run

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def run(self, gates: list[str], models: dict[str, str] | None = None, **env: str) -> str:
        """Run gates, with more entries and environment variables, and return what is printed, without line breaks."""
        entries = {"float": "{path: {files}/float}", **self.entries, **(models or {})}
        lines = ["models:", *(f"  {name}: {entry}" for name, entry in entries.items())]
        lines += ["datasets:", "  text: {path: text.jsonl}", "  long: {path: long.txt}"]
        lines += ["  quiz: {path: quiz.jsonl, question: q, choices: options, answer: label}"]
        lines += ["  news: {path: news.jsonl, source: article, references: [summary]}"]
        lines += ["  chats: {path: news.jsonl, source: article, references: [summary], chat: true}"]
        lines += ["gates:", *(f"  - {gate}" for gate in gates)] if gates else []
        yaml = "\n".join(lines).replace("{files}", str(self.files))
        (self.folder / "lmgate.yaml").write_text(yaml, encoding="utf-8")
        arguments = ("-m", "pytest", "-p", "no:cacheprovider", "--lmgate-report", "json:report.json")
        alone = {"PATH": "", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
        alone["PYTEST_ADDOPTS"] = LEFT_OUT
        environment = {**alone, **self.environment, **env}
        found = run_warm(self.python, *arguments, folder=self.folder, environment=environment, timeout=self.patience)
        self.status, self.stderr = found.returncode, found.stderr
        return " ".join((found.stdout + found.stderr).split())

    @property
    def values(self) -> dict[str, Any]:
        """The value of each gate of the report by its id, as in ``ppl_max[float-text]``."""
        return {gate["id"].rpartition("::")[2]: gate["value"] for gate in self.judged}

    @property
    def verdicts(self) -> list[str]:
        return [gate["verdict"] for gate in self.judged]

    @property
    def judged(self) -> list[dict[str, Any]]:
        gates: list[dict[str, Any]] = json.loads((self.folder / "report.json").read_text())["gates"]
        return gates

    def fill(self) -> Project:
        """Write a text of six rows, a long one, questions, and prompts with references; return the project."""
        self.write("text.jsonl", [{"text": text_of(120, seed)} for seed in range(6)])
        (self.folder / "long.txt").write_text(text_of(900, 9), encoding="utf-8")
        questions = [
            {"q": text_of(12, row), "options": [text_of(4, 100 * row + k) for k in range(4)], "label": row % 4}
            for row in range(20)
        ]
        self.write("quiz.jsonl", questions)
        self.write("news.jsonl", [{"article": text_of(9, row), "summary": text_of(9, row + 50)} for row in range(8)])
        return self


def described(name: str, **entry: Any) -> Any:
    """Describe a model by the engine of an entry, without a project; the digest of a file is its name."""
    from pytest_lmgate.engines.base import ModelEntry
    from pytest_lmgate.engines.registry import backend_called, backend_name
    from pytest_lmgate.settings.entries import ModelSpec

    spec = ModelSpec(**entry)
    known: dict[str, Any] = {"path": Path, "hub_id": lambda _: None, "digest": lambda path: path.name, "device": "cpu"}
    return backend_called(backend_name(name, spec, {}), {}).describe(ModelEntry(name=name, spec=spec, **known))
