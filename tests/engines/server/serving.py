"""Real servers of a checkpoint, each until the end of a test."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.engines.server.faulty import NAME, ROOM

# Threads of a server must not compete with those of the tests.
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@contextlib.contextmanager
def running(command: list[str], log: Path, port: int, **env: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}/v1"
    with log.open("w") as out:
        variables = {**os.environ, **QUIET, **env}
        process = subprocess.Popen(
            [sys.executable, *command], stdout=out, stderr=out, env=variables, start_new_session=True
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
    port = free_port()
    command = f"-m vllm.entrypoints.openai.api_server --model {checkpoint} --served-model-name {NAME} --port {port}"
    command += f" --host 127.0.0.1 --dtype float32 --max-model-len {ROOM} --enforce-eager"
    command += f" --kv-cache-memory-bytes {2**28}"
    with running(command.split(), folder / "log", port, VLLM_ALLOW_LONG_MAX_MODEL_LEN="1") as url:
        yield url
