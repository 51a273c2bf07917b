"""Served models: real servers of a tiny float32 Llama, and one of the tests' own whose answers can be spoiled."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.projects import CONTEXT, Project, described, write_float_model
from tests.engines.server.faulty import NAME, ROOM, FaultyServer
from tests.models.tiny import made_once
from tests.warm import warm_python

# Threads of a server must not compete with those of the tests.
_QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model and its tokenizer; copy a file before changing it."""
    return made_once(tmp_path_factory.getbasetemp(), "served", lambda folder: write_float_model(folder / "float"))


@contextlib.contextmanager
def running(command: list[str], log: Path, port: int, **env: str) -> Iterator[str]:
    """Run a server until the end of a test; yields its address."""
    url = f"http://127.0.0.1:{port}/v1"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=out,
            stderr=out,
            env={**os.environ, **_QUIET, **env},
            start_new_session=True,
        )
        try:
            # A busy machine takes minutes to import vLLM.
            for _ in range(1800):
                assert process.poll() is None, log.read_text()[-3000:]
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"{url}/models", timeout=5).close()
                    break
                time.sleep(0.5)
            else:
                raise TimeoutError(log.read_text()[-3000:])
            yield url
        finally:
            process.terminate()
            process.wait(300)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def write_f32(checkpoint: Path, folder: Path) -> Path:
    """Write the float32 GGUF of a checkpoint; skips where the server of llama-cpp-python is not installed."""
    pytest.importorskip("llama_cpp.server.app", reason="llama-cpp-python[server] is NOT installed: make test-server")
    import transformers

    from tests.engines.gguf.converting import write_gguf

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    return write_gguf(folder / "f32.gguf", model, transformers.AutoTokenizer.from_pretrained(checkpoint))


@contextlib.contextmanager
def llama_cpp_serves(checkpoint: Path, folder: Path) -> Iterator[str]:
    """Run the server of llama-cpp-python with the float32 GGUF of a checkpoint; yields its address."""
    gguf, port = write_f32(checkpoint, folder), free_port()
    # Keys and values in float32, as transformers has them.
    command = f"-m llama_cpp.server --model {gguf} --model_alias {NAME} --port {port}"
    command += f" --n_ctx {ROOM} --type_k 0 --type_v 0"
    with running([*command.split(), "--verbose", "False"], folder / "log", port) as url:
        yield url


@contextlib.contextmanager
def vllm_serves(checkpoint: Path, folder: Path) -> Iterator[str]:
    """Run a server of vLLM with a checkpoint; yields its address."""
    pytest.importorskip("vllm", reason="vLLM is NOT installed: run this with the environment of make test-vllm")
    port = free_port()
    command = f"-m vllm.entrypoints.openai.api_server --model {checkpoint} --served-model-name {NAME} --port {port}"
    command += f" --host 127.0.0.1 --dtype float32 --max-model-len {ROOM} --enforce-eager"
    command += f" --kv-cache-memory-bytes {2**28}"
    with running(command.split(), folder / "log", port, VLLM_ALLOW_LONG_MAX_MODEL_LEN="1") as url:
        yield url


@pytest.fixture(scope="session")
def llama_gguf(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float32 GGUF of the model; copy it before changing it."""
    return write_f32(files / "float", tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def llama_cpp_server(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of llama-cpp-python with the model."""
    with llama_cpp_serves(files / "float", tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.fixture(scope="session")
def vllm_server(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of vLLM with the model."""
    with vllm_serves(files / "float", tmp_path_factory.mktemp("vllm")) as url:
        yield url


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
    """A project with a text, questions and prompts."""
    assert CONTEXT == ROOM - 2
    python = warm_python({**os.environ, **_QUIET})
    return Project(tmp_path, files, python=python, environment={"TMPDIR": str(tmp_path)}).fill()
