"""What a checkpoint is, by content: the digests of all files that a loader may open, and whether they stayed so.

Any engine that reads folders made by ``save_pretrained`` identifies them by it.
"""

from __future__ import annotations

__all__ = ["Contents", "contents_of"]

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.entries import hashed
from pytest_lmgate.backends.hf.models.tokenizer import WEIGHTS
from pytest_lmgate.identity.code import imports_of
from pytest_lmgate.identity.files import Snapshot, checkpoint_files, folders_below, is_file, texts_in
from pytest_lmgate.identity.libraries import installed_packages


class Contents(NamedTuple):
    """The files of a model as they were when they were hashed.

    Attributes:
        ingredients: Digests of the files, and what the entry says beside them, as text.
        snapshot: The files and folders with their status.
        hashed: Paths of the files.
        parts: The model's folder, and those of its tokenizer and adapter where they are others.
        entry: The model's entry.
        unknown: What of the checkpoint's own code cannot be identified; empty for nothing.
    """

    ingredients: dict[str, str]
    snapshot: Snapshot
    hashed: frozenset[str]
    parts: Mapping[str, Path | None]
    entry: Entry
    unknown: str

    def changed(self) -> list[str]:
        """Return the files that have changed since, those that are new or gone included."""
        if not (moved := self.snapshot.moved):
            return []
        there = {str(path) for path in _files(self.parts, self.entry).values()}  # a file may be new
        return sorted((there ^ self.hashed) | (set(moved) & self.hashed))


def contents_of(entry: Entry, *, model: Path, tokenizer: Path, adapter: Path | None = None) -> Contents:
    """Hash the folders of a model's weights, of its tokenizer, which may be the same, and of its adapter, if any.

    Raises:
        ModelError: A file cannot be read.
    """
    spec, parts = entry.spec, {"model": model, "tokenizer": tokenizer, "adapter": adapter}
    files = _files(parts, entry)
    folders = [where for each in parts.values() if each is not None for where in folders_below(each)]
    snapshot, ingredients = hashed(entry, files, folders)
    ingredients |= {
        "load": json.dumps(_ordered(spec.load), default=str),
        "dtype": entry.dtype,
        "trust_remote_code": str(spec.trust_remote_code),
    }
    unknown, paths = "", frozenset(map(str, files.values()))
    if spec.trust_remote_code:
        imports = imports_of(Path(path) for path in sorted(paths) if path.endswith(".py"))
        unknown = imports.unknown
        if imports.packages:
            ingredients["installed packages"] = installed_packages()
    return Contents(ingredients, snapshot, paths, parts, entry, unknown)


def _files(parts: Mapping[str, Path | None], entry: Entry) -> dict[str, Path]:
    """Return the files of a model's parts by the names that an address has them under."""
    files: dict[str, Path] = {}
    for part, where in parts.items():
        if where is not None and (part == "model" or where != parts["model"]):
            for file, path in checkpoint_files(where, everything=entry.spec.trust_remote_code).items():
                if part != "tokenizer" or path.suffix not in WEIGHTS:
                    files[f"{part}/{file}"] = path
    for text in texts_in(entry.spec.load):  # as in gguf_file: inner/model.gguf
        for path in (Path(text), Path(str(parts["model"]), text)):
            if is_file(path):
                files[f"load/{text}"] = path
    return files


def _ordered(value: Any) -> Any:
    """Turn mappings into sorted lists of their items: YAML's may have numbers and texts as keys, which do not sort."""
    if isinstance(value, Mapping):
        return sorted(([repr(key), _ordered(each)] for key, each in value.items()), key=lambda item: item[0])
    return [_ordered(each) for each in value] if isinstance(value, list) else value
