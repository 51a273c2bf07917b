"""Hub ids without a network: what is in the local cache is used, what is not is named."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from pytest_lmgate.backends.hf.models.hub import fetch_checkpoint
from pytest_lmgate.errors import ModelError, OfflineError


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Addresses that somebody tried to reach; none can be."""
    addresses: list[object] = []

    def refuse(*address: object, **_: object) -> None:
        addresses.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return addresses


def test_offline_a_model_that_is_not_here_is_an_error_and_nothing_is_asked_for(asked: list[object]) -> None:
    with pytest.raises(
        OfflineError, match=r"^model 'm': hub:no/such@v1 is not in the local hub cache, and --lmgate-offl"
    ):
        fetch_checkpoint("no/such", "v1", name="m", offline=True, pickle_weights=False)

    assert asked == []


def test_a_model_that_cannot_be_fetched_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("unreachable")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    with pytest.raises(ModelError, match=r"^model 'm': hub:no/such cannot be fetched: unreachable$"):
        fetch_checkpoint("no/such", None, name="m", offline=False, pickle_weights=False)


@pytest.mark.parametrize("pickle_weights", [False, True])
def test_pickled_weights_are_fetched_only_where_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pickle_weights: bool
) -> None:
    wanted: dict[str, Any] = {}

    def download(repo: str, **options: Any) -> str:
        wanted.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    folder = fetch_checkpoint("org/name", "abc", name="m", offline=False, pickle_weights=pickle_weights)

    assert folder == tmp_path
    assert (wanted["repo"], wanted["revision"], wanted["local_files_only"]) == ("org/name", "abc", False)
    assert ("*.bin" in wanted["ignore_patterns"]) is not pickle_weights
    assert "*.safetensors" not in wanted["ignore_patterns"]


COMMIT = "0123456789" * 4
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SHARDS = ("model-1.safetensors", "model-2.safetensors")


@pytest.mark.parametrize(
    ("files", "only_tokenizer", "is_whole"),
    [
        (("config.json", "model.safetensors", *TOKENIZER), False, True),
        (("config.json", "model.safetensors.index.json", *SHARDS, *TOKENIZER), False, True),
        (("config.json", "model.safetensors.index.json", SHARDS[0], *TOKENIZER), False, False),
        (("config.json", *TOKENIZER), False, False),
        (("model.safetensors", *TOKENIZER), False, False),
        (("config.json", "model.safetensors"), False, False),  # as AutoModel leaves it
        (TOKENIZER, True, True),
        (("vocab.txt",), True, True),
        (("config.json", "model.safetensors"), True, False),
    ],
)
def test_a_full_commit_is_looked_up_on_the_hub_unless_all_that_is_asked_for_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...], only_tokenizer: bool, is_whole: bool
) -> None:
    for file in files:
        index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}}
        (tmp_path / file).write_text(json.dumps(index))
    only_local: list[bool] = []

    def download(_: str, *, local_files_only: bool, **__: Any) -> str:
        only_local.append(local_files_only)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    assert fetch_checkpoint("org/name", COMMIT, name="m", offline=False, only_tokenizer=only_tokenizer) == tmp_path

    assert only_local == ([True] if is_whole else [True, False])
