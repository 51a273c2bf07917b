"""Hub ids to local folders, by huggingface_hub's own cache. Its blobs are named by their content."""

from __future__ import annotations

__all__ = ["fetch_checkpoint"]

import contextlib
import json
import re
from pathlib import Path

from pytest_lmgate.errors import ModelError, OfflineError

_NEVER = ["*.md", "*.png", "*.jpg", "*.msgpack", "*.h5", "*.onnx", "*.ot", "*.tflite", "onnx/*", "original/*"]
_PICKLES = ["*.bin", "*.pt", "*.pth", "*.ckpt"]
_TOKENIZERS = ["tokenizer*", "vocab*", "tekken.json", "*.model"]
_WEIGHTS = ["*.safetensors", "*.gguf", *_PICKLES]


def fetch_checkpoint(
    repo: str,
    revision: str | None,
    *,
    name: str,
    offline: bool,
    pickle_weights: bool = False,
    only_tokenizer: bool = False,
) -> Path:
    """Return the local folder of a hub model, fetching what is missing.

    Args:
        repo: Hub id.
        revision: Branch, tag or commit. A branch is looked up again in each session; a full commit that is whole in the
            local cache is not, since it cannot change.
        name: The model's name, for messages.
        offline: Forbid the network.
        pickle_weights: Fetch weights in pickle files too.
        only_tokenizer: Fetch no weights at all.

    Raises:
        OfflineError: It is not in the local cache and `offline` is set.
        ModelError: It cannot be fetched.
    """
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    ignored = _NEVER + (_WEIGHTS if only_tokenizer else [] if pickle_weights else _PICKLES)
    if not offline and revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        with contextlib.suppress(LocalEntryNotFoundError):
            local = Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
            if _has_tokenizer(local) and (only_tokenizer or _has_weights(local)):
                return local
    where = f"hub:{repo}{'@' + revision if revision else ''}"
    try:
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, local_files_only=offline, ignore_patterns=ignored
        )
    except Exception as error:
        if offline:
            raise OfflineError(
                f"model {name!r}: {where} is not in the local hub cache, and --lmgate-offline forbids fetching it; "
                "run once without it, or give a local path"
            ) from error
        raise ModelError(f"model {name!r}: {where} cannot be fetched: {error}") from error
    return Path(folder)


def _has_tokenizer(folder: Path) -> bool:
    """Whether a snapshot has a tokenizer: where only a model was loaded, it has none."""
    return any(path for pattern in _TOKENIZERS for path in folder.glob(pattern))


def _has_weights(folder: Path) -> bool:
    """Whether a snapshot has its config and every file of its weights: a download may have been cut off."""
    if not (folder / "config.json").exists():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return (folder / "model.safetensors").exists()
    shards = json.loads(index.read_bytes())["weight_map"].values()
    return all((folder / shard).exists() for shard in shards)
