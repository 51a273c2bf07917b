"""A model of a thousand weights on the characters of a small text, in a project of its own."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.decoding import parse_fixture_call
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.settings.session import Options
from tests.measure.entries import PROTOCOL, entry, perplexity
from tests.models.tiny import made_once, tiny_llama, word_level

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,\n"
TEXT = "the cat sat on the mat, and the dog sat on the log.\n" * 4
ROWS = ("the cat sat on the mat.", "a dog ran.", "", "the log lay on the mat, and the cat on the log.")
CONTEXT = 32


def make_tokenizer() -> Any:
    return word_level(["<s>", *ALPHABET], letters=True, bos_token="<s>", unk_token="<s>")


def make_model(seed: int = 0, **settings: Any) -> Any:
    import torch

    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": CONTEXT}
    return tiny_llama(len(ALPHABET) + 1, **(sizes | settings))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a checkpoint; copy it before changing anything."""

    def save(folder: Path) -> None:
        make_model().save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)

    return made_once(tmp_path_factory.getbasetemp(), "checkpoint", save)


@dataclass
class Session:
    """An evaluator as one pytest session has it, with what it said."""

    evaluator: Evaluator
    warnings: list[str] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    interrupt_after: int | None = None  # batches

    def perplexity(
        self, model: Any = "float", dataset: Any = "text", protocol: WindowProtocol = PROTOCOL, **how: Any
    ) -> Score:
        return perplexity(self.evaluator, model, dataset, protocol, **how)

    def score(self, fixture: str, *arguments: Any, **how: Any) -> Score:
        """Measure as a fixture does."""
        return self.evaluator.evaluate(parse_fixture_call(fixture, arguments, how))

    def watch(self, progress: Any) -> None:
        """Note progress, and press ctrl-c if it is time to."""
        self.progress.append(progress)
        if len(self.progress) == self.interrupt_after:
            raise KeyboardInterrupt


@dataclass
class Workplace:
    """A project's folder, in which sessions can be started."""

    folder: Path

    def session(self, **options: Any) -> Session:
        session = Session(evaluator=None)  # type: ignore[arg-type]
        session.evaluator = Evaluator(
            load_project(self.folder),
            Options(**{"cache": self.folder / ".lmgate_cache", **options}),
            Log(progress=session.watch, remark=session.remarks.append, warn=session.warnings.append),
        )
        return session


@pytest.fixture
def workplace(tmp_path: Path, checkpoint: Path) -> Workplace:
    shutil.copytree(checkpoint, tmp_path / "models" / "float")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_text(TEXT)
    (tmp_path / "data" / "rows.jsonl").write_text("".join(f'{{"text": "{row}"}}\n' for row in ROWS))
    (tmp_path / "lmgate.yaml").write_text(
        """
        defaults: {device: cpu}
        models:
          float: {path: models/float}
          half: {path: models/float, dtype: bfloat16}
        datasets:
          text: {path: data/text.txt}
          rows: {path: data/rows.jsonl}
        """
    )
    return Workplace(tmp_path)


@pytest.fixture
def pair(workplace: Workplace) -> Workplace:
    """The workplace with another model in it, ``other``."""
    folder = workplace.folder / "models" / "other"
    make_model(seed=1).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    entry(workplace, "other", section="models", path="models/other")
    return workplace


def around_loading(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
) -> list[str]:
    """Do something before the first load from files, and something after it; return the names of what is loaded."""
    from pytest_lmgate.engines.transformers import loading

    load: Callable[..., Any] = loading.load_checkpoint
    names: list[str] = []

    def watched(checkpoint: Any, **settings: Any) -> Any:
        names.append(checkpoint.name)
        if len(names) > 1:
            return load(checkpoint, **settings)
        before()
        loaded = load(checkpoint, **settings)
        after()
        return loaded

    monkeypatch.setattr(loading, "load_checkpoint", watched)
    return names


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were loaded from files, in order."""
    return around_loading(monkeypatch)
