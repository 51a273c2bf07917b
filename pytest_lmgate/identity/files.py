"""The files of a checkpoint, adapter or tokenizer that a loader may open, and whether they stayed as they were."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# No loader reads these files of a checkpoint's folder; every other file is taken to matter.
_IRRELEVANT_SUFFIXES = {".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".log", ".csv", ".lock"}
_IRRELEVANT_NAMES = {
    ".gitattributes", ".gitignore", ".DS_Store", "LICENSE", "LICENSE.txt", "NOTICE", "USE_POLICY", "all_results.json",
    "eval_results.json", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "train_results.json",
    "trainer_state.json", "training_args.bin",
}  # fmt: skip
_NO_CONFIG = {"added_tokens.json", "tokenizer.json", "vocab.json"}  # large, and they name no files
_LONGEST_PATH = 1024
_RACY_SECONDS = 2.0


def checkpoint_files(folder: Path, *, everything: bool = False) -> dict[str, Path]:
    """Return every file of a folder that a loader may open, by its name within the folder, sorted.

    These are the files of the folder itself, Python code and chat templates below it, and files in inner folders that a
    JSON file names, such as the shards of an index or ``transformers_weights`` of config.json; or `everything` below
    it, for a checkpoint whose own code may open any file.
    """
    found: set[str] = set()
    for parent, names in _walk(folder):
        inner = os.path.relpath(parent, folder)
        templates = inner == "additional_chat_templates"
        for name in names:
            if everything or templates or name.endswith(".py") or (inner == os.curdir and _matters(name)):
                found.add((Path(inner) / name).as_posix())
    waiting = [name for name in found if _is_config(name)]
    while waiting:
        name = waiting.pop()
        new = {named for named in _named_in(folder, name) if named not in found}
        found |= new
        waiting += filter(_is_config, new)
    return {name: folder / name for name in sorted(found) if is_file(folder / name)}


def folders_below(folder: Path) -> list[Path]:
    """Return a folder and the folders below it: adding a file to one changes its status."""
    return [Path(parent) for parent, _ in _walk(folder)]


def texts_in(content: Any) -> Iterator[str]:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and 0 < len(value) <= _LONGEST_PATH and "\0" not in value:
            yield value


def is_file(path: Path) -> bool:
    """Whether a path is a file; False for a text that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class Snapshot:
    """Files and folders with their status: device, inode, size, and times of modification and change."""

    states: dict[str, tuple[int, ...] | None]  # None for a path that does not exist
    taken: float  # seconds since the epoch

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Snapshot:
        return cls({str(path): _state(str(path)) for path in paths}, time.time())

    @property
    def moved(self) -> list[str]:
        return [path for path, state in self.states.items() if _state(path) != state]

    @property
    def is_settled(self) -> bool:
        """Whether everything is old enough that a further change would change a time too."""
        newest = max((max(state[3:]) for state in self.states.values() if state is not None), default=0)
        return self.taken - newest / 1e9 > _RACY_SECONDS


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders below a folder with their files' names, without hidden folders and bytecode."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each != "__pycache__")
        yield parent, names


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _matters(name: str) -> bool:
    return name not in _IRRELEVANT_NAMES and Path(name).suffix.lower() not in _IRRELEVANT_SUFFIXES


def _is_config(name: str) -> bool:
    return name.endswith(".json") and Path(name).name not in _NO_CONFIG


def _named_in(folder: Path, name: str) -> Iterator[str]:
    """Yield the files in inner folders that a JSON file names, relative to the folder or to the JSON file."""
    try:
        content = json.loads((folder / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # the loader will say what is wrong with it
    for text in set(texts_in(content)):
        for base in {Path(), Path(name).parent}:
            path = os.path.normpath(base / text)
            if is_file(folder / path):
                yield Path(path).as_posix()
