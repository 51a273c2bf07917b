"""A place where an engine measures: its models, a project around them, and what it found."""

import contextlib
import copy
import functools
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.decoding import parse_fixture_call
from pytest_lmgate.settings.entries import Project
from pytest_lmgate.settings.file import parse_project
from pytest_lmgate.settings.session import Options
from tests.engines.contract.engines import EOS, SECOND_END, Engine, Entry, model_and_tokenizer, nan_logits
from tests.engines.contract.oracle import Oracle
from tests.engines.projects import damaged, text_of
from tests.models.tiny import made_once

ROWS = [text_of(120, seed) for seed in range(4)]
QUIZ = [
    {"q": text_of(12, row), "options": [text_of(4, 100 * row + k) for k in range(4)], "label": row % 4}
    for row in range(16)
]
PROMPTS = [*(text_of(length, length) for length in (3, 9, 20, 1, 6, 5, 4)), f"<s>{text_of(4, 2)}"]
NEWS = [{"article": prompt, "summary": "the cat"} for prompt in PROMPTS]
LONG = text_of(230, 7)
MOST = 24  # tokens of a text
WRITING: Mapping[str, Any] = {"max_new_tokens": MOST}
DATASETS = {
    "text": {"path": "text.jsonl"},
    "quiz": {"path": "quiz.jsonl", "question": "q", "choices": "options", "answer": "label"},
    "news": {"path": "news.jsonl", "source": "article", "references": ["summary"]},
    "chats": {"path": "news.jsonl", "source": "article", "references": ["summary"], "chat": True},
    "long": {"path": "long.jsonl", "source": "article", "references": ["summary"], "truncate": "left"},
    "same": {"path": "same.jsonl", "source": "article", "references": ["summary"]},
}


def write_data(folder: Path) -> None:
    same = [{"article": PROMPTS[0], "summary": "the cat"}] * 200
    long = [{"article": LONG, "summary": "the cat"}]
    for name, rows in {"quiz": QUIZ, "news": NEWS, "same": same, "long": long}.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    (folder / "text.jsonl").write_text("".join(f"{json.dumps({'text': row})}\n" for row in ROWS), "utf-8")


def project(folder: Path, models: Mapping[str, Entry]) -> Project:
    return parse_project(json.dumps({"models": models, "datasets": DATASETS}), folder / "lmgate.yaml")


def evaluator_of(folder: Path, models: Mapping[str, Entry], cache: Path) -> Evaluator:
    return Evaluator(project(folder, models), Options(cache=cache, device="cpu"))


def copied(entry: Entry, folder: Path) -> tuple[Entry, Path]:
    """Copy the files of a model, or of a served one's tokenizer; return the entry of the copy, and its path."""
    key = "path" if "path" in entry else "tokenizer"
    path = Path(entry[key])
    shutil.copytree(path if path.is_dir() else path.parent, folder)
    copy = folder if path.is_dir() else folder / path.name
    return {**entry, key: str(copy)}, copy


class Bench:
    """An engine and its models: ``exact``, and others by name as they are asked for."""

    def __init__(self, engine: Engine, base: Path, folder: Path) -> None:
        self.engine, self.folder, self._base = engine, folder, base
        self._stack, self._entries = contextlib.ExitStack(), dict[str, Entry]()
        self.model, self.tokenizer = model_and_tokenizer()
        write_data(folder)
        self.cache = folder / "cache"
        self._first = evaluator_of(folder, {}, self.cache)
        self._stack.callback(self._first.measurements.close_models)
        self._stack.callback(self._first.close)

    def close(self) -> None:
        self._stack.close()

    def changed(self, name: str) -> Any:
        """Return the model that one of its names means."""
        changes = {"damaged": functools.partial(damaged, noise=0.1), "nan": nan_logits}
        return changes[name](self.model) if name in changes else self.model

    def entry(self, name: str = "exact", **changes: Any) -> Entry:
        """Return the entry of a model, which is made when it is first asked for, with changes."""
        if name not in self._entries:
            others = {key: write for key, (write, *_) in self.engine.rounded.items()}
            write = {**others, "looks-ahead": self.engine.looks_ahead}.get(name) or self.engine.write
            folder = self.folder / f"model-{name}"
            self._entries[name] = write(self._stack, folder, self.changed(name), self.tokenizer)
        return {**self._entries[name], **changes}

    def entry_of(self, name: str, model: Any, tokenizer: Any) -> Entry:
        return self.engine.write(self._stack, self.folder / f"model-{name}", model, tokenizer)

    def reference(self, *, ends: Sequence[int] = (EOS, SECOND_END)) -> Entry:
        """Return the entry of the model as transformers runs it, with ends of a text."""

        def save(folder: Path) -> None:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ends)}))

        return {"path": str(made_once(self._base, f"contract-{len(ends)}-ends", save))}

    def evaluator(self, models: Mapping[str, Entry], *, cache: Path | None = None) -> Evaluator:
        """Return an evaluator of some models; without a cache of its own, it shares measurements and open models."""
        if cache:
            return evaluator_of(self.folder, models, cache)
        return self._first.for_project(project(self.folder, models))

    def measure(self, fixture: str, model: str | Entry, dataset: str, **how: Any) -> Any:
        """Return the score and the statistics of a model, and of a ``reference``, by names here or entries."""
        names = {"model": model, **({"reference": how.pop("reference")} if "reference" in how else {})}
        named = {key: self.entry(each) if isinstance(each, str) else each for key, each in names.items()}
        evaluator = self.evaluator(named)
        asked = parse_fixture_call(fixture, (*names, dataset), how)
        score = evaluator.evaluate(asked)
        return score, evaluator.cached_statistics(asked)[1]

    def value(self, fixture: str, model: str | Entry, dataset: str, **how: Any) -> float:
        return float(self.measure(fixture, model, dataset, **how)[0])

    def texts(self, model: str | Entry = "exact", dataset: str = "news", **how: Any) -> list[str]:
        _, statistics = self.measure("chrf_of", model, dataset, **{**WRITING, **how})
        return list(statistics.texts)

    def runner(self, model: str | Entry = "exact") -> Any:
        evaluator = self.evaluator({"model": self.entry(model) if isinstance(model, str) else model})
        return evaluator.measurements.runner(evaluator.resolver.model("model"))

    def described(self, entry: Entry) -> Any:
        """Return what the engine says of an entry before it opens the model."""
        return self.evaluator({"model": entry}).resolver.model("model")

    @property
    def oracle(self) -> Oracle:
        return self.oracle_of("exact")

    @functools.cache  # noqa: B019 - as long as the bench
    def oracle_of(self, name: str) -> Oracle:
        return Oracle(copy.deepcopy(self.changed(name)), self.tokenizer)
