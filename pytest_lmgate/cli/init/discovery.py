"""Checkpoints and texts below a folder. The walk is bounded: some folders hold millions of files."""

from __future__ import annotations

__all__ = ["Places", "count_tokens", "find_places", "find_relative", "text_column"]

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pytest_lmgate.config.specs import TEXT_SUFFIXES

_DEPTH, _MOST_ENTRIES = 5, 20_000
_SKIPPED = frozenset({"__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv"})
_WEIGHTS = re.compile(r".*\.safetensors|pytorch_model.*\.bin")
_NO_TEXTS = re.compile(
    r"(requirements|constraints|licen[cs]e|notice|readme|changelog|cmakelists|robots|top_level)", re.I
)
_SUFFIXES = (*(suffix for suffix in TEXT_SUFFIXES if suffix != ".md"), ".jsonl")
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_SHAPE = ("model_type", "hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers")
_ALIKE = 1.1  # times as many bytes: weights of one size, with another header
_BEGINNING = 2**16  # bytes of a text from which its tokens are estimated


@dataclass
class Places:
    """Models (folders and GGUF files) and texts, the smallest first; `is_cut` if there was more to look at."""

    models: list[Path] = field(default_factory=list)
    texts: list[Path] = field(default_factory=list)
    is_cut: bool = False


def find_places(folder: Path) -> Places:
    """Look for checkpoints and texts in a folder and those below it; links are not followed."""
    found = Places()
    sizes: dict[Path, int] = {}
    for path, names, is_cut in _walk(folder):
        found.is_cut |= is_cut
        if "config.json" in names and any(map(_WEIGHTS.fullmatch, names)):
            found.models.append(path)
            continue  # its merges.txt is no text
        found.models += [path / name for name in names if name.endswith(".gguf")]
        for name in names:
            file = path / name
            if name.lower().endswith(_SUFFIXES) and not _NO_TEXTS.match(name) and (size := _size(file)):
                if name.endswith(".jsonl") and text_column(file) is None:
                    continue
                sizes[file] = size
    found.models.sort()
    found.texts = sorted(sizes, key=lambda file: (sizes[file], file))
    return found


def count_tokens(file: Path, rows: int | None, count: Callable[[str], int]) -> int:
    """Estimate the tokens of a text, or of the first `rows` of a file of JSON lines, from how it begins."""
    read, size = _size(file), 0
    with file.open(encoding="utf-8", errors="replace") as lines:
        if file.suffix != ".jsonl":
            beginning = lines.read(_BEGINNING)
            size = len(beginning.encode("utf-8", "replace"))
            return round(count(beginning) * max(read / max(size, 1), 1))
        column, texts = text_column(file), []
        for line in islice(lines, rows):
            try:
                texts.append(str(json.loads(line).get(column, "")))
            except (ValueError, AttributeError, RecursionError):  # measuring will name the line
                texts.append("")
            if (size := size + len(line.encode("utf-8", "replace"))) > _BEGINNING:
                break
    read = read if rows is None else round(min(read, size * rows / max(len(texts), 1)))
    return round(sum(map(count, texts)) * max(read / max(size, 1), 1))


def find_relative(model: Path, among: Iterable[Path]) -> tuple[Path, bool] | None:
    """Return a checkpoint of the same vocabulary and shape `among` others, and whether it is larger than this one.

    The largest is taken, else the largest of those that are smaller: one of two such models may be made of the other,
    by rounding its weights. None where there is none; models of one size do not tell which was made of which.
    """
    vocabulary, shape = _vocabulary(model), _shape(model)
    if vocabulary is None or not shape:
        return None
    others = [
        path for path in sorted(among) if path != model and _vocabulary(path) == vocabulary and _shape(path) == shape
    ]
    sizes = {path: size for path in others if (size := _weight_bytes(path))}
    own = _weight_bytes(model)
    for is_larger in (True, False):
        fits = [path for path, size in sizes.items() if (size > own * _ALIKE if is_larger else size * _ALIKE < own)]
        if fits:
            return max(fits, key=sizes.__getitem__), is_larger
    return None


def _weight_bytes(folder: Path) -> int:
    return sum(_size(path) for path in folder.iterdir() if _WEIGHTS.fullmatch(path.name))


def _vocabulary(folder: Path) -> object:
    """Return what tells the vocabularies of checkpoints apart; None for what is no checkpoint, or has no vocabulary."""
    if not (folder / "config.json").is_file():
        return None
    try:
        for name in _VOCABULARIES:
            if (file := folder / name).is_file():
                # Another program may have written the same tokens with other settings of padding.
                data = file.read_bytes()
                return json.loads(data)["model"]["vocab"] if name == "tokenizer.json" else data
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return None


def _shape(folder: Path) -> list[object]:
    """Return what a rounded model has in common with its original, and models of one family do not; [] if unknown."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        return [config.get(key) for key in _SHAPE]
    except (OSError, ValueError, AttributeError, RecursionError):
        return []


def text_column(file: Path) -> str | None:
    """Return the column of a file of JSON lines that holds the text: ``text``, else that of the longest text."""
    try:
        with file.open(encoding="utf-8") as lines:
            row = json.loads(next(lines, "null"))
    except (OSError, ValueError, RecursionError):
        return None
    texts = {key: value for key, value in row.items() if isinstance(value, str)} if isinstance(row, dict) else {}
    return "text" if "text" in texts else max(texts, key=lambda key: len(texts[key]), default=None)


def _walk(folder: Path) -> Iterator[tuple[Path, list[str], bool]]:
    """Yield folders with the names of their files, and whether something was left out."""
    seen = 0
    for path, folders, names in os.walk(folder):
        seen += len(folders) + len(names)
        is_deep = len(Path(path).relative_to(folder).parts) >= _DEPTH
        is_cut = seen > _MOST_ENTRIES or (is_deep and bool(folders))
        folders[:] = [] if is_cut else sorted(each for each in folders if each not in _SKIPPED and each[0] != ".")
        yield Path(path), sorted(names), is_cut
        if seen > _MOST_ENTRIES:
            return


def _size(file: Path) -> int:
    try:
        return 0 if file.is_symlink() and not file.is_file() else file.stat().st_size
    except OSError:
        return 0
