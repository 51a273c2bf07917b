"""Served models: real servers of a tiny float32 Llama, and one of the tests' own whose answers can be spoiled."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.projects import CONTEXT, Project, described, write_float_model
from tests.engines.server.faulty import NAME, ROOM, FaultyServer
from tests.engines.server.serving import QUIET, write_f32
from tests.models.tiny import made_once
from tests.warm import warm_python


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model and its tokenizer; copy a file before changing it."""
    return made_once(tmp_path_factory.getbasetemp(), "served", lambda folder: write_float_model(folder / "float"))


@pytest.fixture(scope="session")
def llama_gguf(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float32 GGUF of the model; copy it before changing it."""
    pytest.importorskip("llama_cpp.server.app", reason="llama-cpp-python[server] is NOT installed: make test-server")
    return write_f32(files / "float", tmp_path_factory.mktemp("gguf"))


@pytest.fixture
def served(files: Path) -> Callable[..., Any]:
    """Opens a model at an address; further arguments are those of its entry."""

    def open_(url: str, **entry: Any) -> Any:
        own = {"model": NAME, "tokenizer": str(files / "float"), "load": {"context": ROOM}}
        return described("m", server=url, **(own | entry)).open()

    return open_


@pytest.fixture(scope="session")
def tokenizer(files: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(files / "float")


@pytest.fixture
def faulty(tokenizer: Any) -> Iterator[FaultyServer]:
    server = FaultyServer(tokenizer)
    yield server
    server.close()


def damage(weights: Path) -> None:
    """Shuffle the second half of a file of float32 numbers, and make each a hundred times as large."""
    import numpy as np

    content = weights.read_bytes()
    begin = len(content) // 8 * 4
    numbers = np.frombuffer(content[begin : begin + len(content[begin:]) // 4 * 4], np.float32)
    weights.write_bytes(content[:begin] + (100 * np.random.default_rng(0).permutation(numbers)).tobytes())


def entry_of(server: str | dict[str, Any], **more: Any) -> str:
    """Return an entry of lmgate.yaml in one line, for the address of a server or how to start one."""
    return json.dumps({"server": server, "model": NAME, "tokenizer": "{files}/float", **more})


@pytest.fixture
def project(tmp_path: Path, files: Path) -> Project:
    assert CONTEXT == ROOM - 2
    python = warm_python({**os.environ, **QUIET})
    return Project(tmp_path, files, python=python, environment={"TMPDIR": str(tmp_path)}).fill()
