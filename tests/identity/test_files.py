"""Every file that a loader may open is hashed, a file that changes is noticed, and a source file has its package."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from pytest_lmgate.identity import Snapshot, checkpoint_files, folders_below, home_of_file


def write(folder: Path, *files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"0123456789")
    return folder


READ = [
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer.model", "merges.txt", "generation_config.json", "modeling_own.py", "own/layers.py",
    "chat_template.jinja", "additional_chat_templates/tool.jinja", "pytorch_model.bin", "unknown.data",
]  # fmt: skip
BESIDE = ["README.md", "LICENSE", "plot.png", "optimizer.pt", "training_args.bin", "checkpoint-5/model.safetensors"]


def test_every_file_that_a_loader_may_read_is_named_and_no_other(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", *READ, *BESIDE)
    files = checkpoint_files(folder)
    assert set(files) == {"config.json", *READ}
    assert list(files) == sorted(files)
    assert all(path == folder / name for name, path in files.items())


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"transformers_weights": "w/v.safetensors"}),
        ("config.json", {"inner": [{"any_key": "./w/v.safetensors"}]}),
        ("tokenizer_config.json", {"vocab_file": "w/v.safetensors"}),
        ("model.safetensors.index.json", {"weight_map": {"a": "w/v.safetensors", "b": "absent.safetensors"}}),
    ],
)
def test_a_file_in_an_inner_folder_that_a_json_file_names_is_read(tmp_path: Path, file: str, content: object) -> None:
    folder = write(tmp_path / "m", "w/v.safetensors", "w/other.safetensors")
    (folder / file).write_text(json.dumps(content))
    assert set(checkpoint_files(folder)) == {"config.json", file, "w/v.safetensors"}


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, '{"a": "' + "x" * 600 + '"}', '{"a": "' + "x" * 5000 + '"}', '{"a": "\\u0000"}']
)
def test_json_that_names_nothing_is_left_to_the_loader(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "m", "model.safetensors")
    (folder / "config.json").write_text(text)
    assert set(checkpoint_files(folder)) == {"config.json", "model.safetensors"}


def test_a_snapshot_names_the_files_that_changed(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "model.safetensors", "inner/x.py")
    weights = folder / "model.safetensors"
    snapshot = Snapshot.of([*checkpoint_files(folder).values(), *folders_below(folder)])
    assert snapshot.moved == []
    assert not snapshot.is_settled
    time.sleep(0.02)  # the clock of the file system ticks in milliseconds
    before = weights.stat()
    weights.write_bytes(b"9876543210")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert snapshot.moved == [str(weights)]
    snapshot = Snapshot.of([weights, folder])
    (tmp_path / "new").write_bytes(b"0123456789")
    (tmp_path / "new").replace(weights)
    assert set(snapshot.moved) == {str(weights), str(folder)}
    weights.unlink()
    assert str(weights) in snapshot.moved


def test_a_file_belongs_to_an_installed_package_to_python_or_to_the_user(tmp_path: Path) -> None:
    homes = {str(np.__file__): "numpy", str(json.__file__): "json", str(tmp_path / "conftest.py"): None, "<x>": None}
    assert {file: home_of_file(file) for file in homes} == homes
