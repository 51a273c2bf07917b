"""The folder of a tokenizer that is not the model's own, found without importing transformers."""

from __future__ import annotations

__all__ = ["WEIGHTS", "facts_of_folder", "find_tokenizer", "tokenizer_beside", "tokenizer_files"]

from pathlib import Path

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.hf.models.checkpoint import require_own_code, require_tokenizer
from pytest_lmgate.backends.hf.models.hub import fetch_checkpoint
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.errors import ModelError
from pytest_lmgate.identity.files import checkpoint_files

# Files of these suffixes in a tokenizer's folder cannot change its tokens.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")


def find_tokenizer(entry: Entry, tokenizer: str) -> Path:
    """Return the folder that ``tokenizer:`` of a model's entry names, fetched from the hub where it is a hub id.

    Raises:
        ModelError: There is no such folder, or no tokenizer in it.
    """
    folder = entry.path(tokenizer)
    if not folder.is_dir():
        if (hub_id := entry.hub_id(tokenizer)) is None:
            raise ModelError(f"model {entry.name!r}: no such folder: {folder}; check its tokenizer:")
        folder = fetch_checkpoint(*hub_id, name=entry.name, offline=entry.offline, only_tokenizer=True)
    require_tokenizer(folder, name=entry.name)
    return folder


def tokenizer_beside(entry: Entry, model: Path) -> Path:
    """Return the folder of the tokenizer that a checkpoint runs with: its own, unless the entry names another.

    Raises:
        ModelError: There is no tokenizer, or code that may run is not in the folders.
    """
    name, spec = entry.name, entry.spec
    folder = model if spec.tokenizer is None else find_tokenizer(entry, spec.tokenizer)
    require_tokenizer(folder, name=name)
    for part in (model, folder) if spec.trust_remote_code else ():
        require_own_code(part, name=name)
    return folder


def facts_of_folder(name: str, folder: Path, *, trust_remote_code: bool = False) -> TokenizerFacts:
    """Load the tokenizer of a folder without a model.

    Raises:
        ModelError: It cannot be loaded.
    """
    from pytest_lmgate.backends.hf.models.loading import load_tokenizer, tokenizer_facts

    return tokenizer_facts(load_tokenizer(name, folder, trust_remote_code=trust_remote_code))


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """Return the files that can change the tokens, by their names in an address."""
    files = checkpoint_files(folder).items()
    return {f"tokenizer/{file}": path for file, path in files if path.suffix not in WEIGHTS}
